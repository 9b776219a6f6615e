/* Figures of the KARAT paper that follow from its own inputs, rederived from karat's model and program
 * modules: spec for unit tests and the first part of the reproduction report. */
#ifndef KR_PLAN_REDERIVE_H
#define KR_PLAN_REDERIVE_H

#include "base/status.h"

typedef struct {
    const char *id, *what, *unit;
    double paper, ours;
    double tolerance; /* relative: what the paper's rounding leaves open */
} kr_rederived;

enum { KR_REDERIVED_MAX = 64 };

/* Fills list [KR_REDERIVED_MAX]; data is the folder with models/ and devices/. */
kr_status kr_rederive(const char *data, kr_rederived *list, unsigned *count, kr_err *err);

#endif
