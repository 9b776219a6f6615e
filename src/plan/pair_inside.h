/* Inside plan/: what pair.c and pair_claims.c share. */
#ifndef KR_PLAN_PAIR_INSIDE_H
#define KR_PLAN_PAIR_INSIDE_H

#include "plan/pair.h"

/* Bit k: kr_op_kind k. */
typedef uint64_t op_set;
_Static_assert(KR_OP_KINDS <= 64, "an op_set holds every kind");

typedef struct {
    const kr_reproduce_options *options;
    kr_pair_change change;
    kr_device_model mi210, u55c;
    char mi210_path[1024];
    kr_pair_tables *tables;
} pair_room;

/* The paper's claims on the tables; returns how many were written. */
uint32_t kr_pair_claims(const pair_room *room, kr_claim claims[KR_CLAIMS_MAX]);

#endif
