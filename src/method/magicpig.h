/* What tests and evaluation need of MagicPIG beside its stages. */
#ifndef KR_METHOD_MAGICPIG_H
#define KR_METHOD_MAGICPIG_H

#include "method/method.h"

/* Start of the record body. */
typedef struct {
    uint64_t hashed_begin, hashed_end; /* tokens in the tables */
    uint64_t planes_drawn;             /* 0: drawn from the seed when the first prompt ends */
    uint64_t reserved[5];
} kr_magicpig_state;

/* Probability that a key at this cosine shares the query's code in at least 2 of `tables` tables of
 * `bits` Gaussian hyperplanes. The cosine is clamped to [-1, 1]. */
double kr_magicpig_weight(double cosine, uint32_t bits, uint32_t tables);

/* Hyperplanes in the record: [tables * bits][key_dim]; row l * bits + i gives bit i of table l. */
float *kr_magicpig_planes(const kr_view *view);

#endif
