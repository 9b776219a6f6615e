/* The experiments of the two papers, run on the simulator, and what comes out beside what they say.
 *
 * Nothing here is tuned to a claim. A claim's verdict follows from numbers alone: see kr_claim_verdict. */
#ifndef KR_PLAN_REPRODUCE_H
#define KR_PLAN_REPRODUCE_H

#include <stdio.h>

#include "plan/batch.h"

enum { KR_TRACES = 3, KR_CLAIMS_MAX = 96, KR_CLAIM_VALUES_MAX = 64, KR_REPRODUCE_CHANGES_MAX = 32 };

typedef struct {
    const char *data;
    const char *kvct; /* KVCT trace or folder; NULL: the synthetic kvct-like */
    uint32_t seeds, threads, trace_sessions;
    uint64_t seed;
    const kr_ranks *ranks; /* that share the points, or NULL */
    bool no_changes;       /* leave out the runs under changes of what the papers leave open */
} kr_reproduce_options;

/* A claim: the paper's range and what ours came to, point by point. */
typedef struct {
    const char *id, *text, *paper; /* paper: its value in words */
    double low, high;              /* the paper's range; NAN: it gives no figure to judge by */
    double pivot; /* 1 for ratios, 0 for differences: which side of it is the sign; NAN: no sign */
    const char *unit;
    double value[KR_CLAIM_VALUES_MAX];
    uint32_t values, lost; /* lost: points that could not be run */
    const char *cause;     /* of a miss, as far as known */
} kr_claim;

typedef enum { KR_CLAIM_HOLDS, KR_CLAIM_SIGN, KR_CLAIM_MISSED, KR_CLAIM_CANNOT_SAY } kr_verdict;

/* Appends a claim to list [*count], which has room for it, and returns it. */
kr_claim *kr_claim_add(kr_claim *list, uint32_t *count, const char *id, const char *text, const char *paper,
                       double low, double high, double pivot, const char *unit, const char *cause);
/* A point's value; one that is not finite counts as lost. */
void kr_claim_value(kr_claim *claim, double value);

/* HOLDS: every value lies in the paper's range widened by a tenth of its ends. SIGN: not so, but every
 * value is on the paper's side of the pivot; a range with the pivot inside has no side, then at least one
 * value must lie in the widened range. MISSED: otherwise, and for counts and shares (pivot NAN) whenever
 * a value lies outside. CANNOT_SAY: no value. */
kr_verdict kr_claim_verdict(const kr_claim *claim);
const char *kr_verdict_name(kr_verdict verdict);

/* A claim whose verdict a change moves, or whose values it moves far. */
typedef struct {
    uint32_t claim;
    kr_verdict before, after;
    kr_claim moved;
} kr_moved_claim;

/* A run of everything under one change of what the papers leave open. */
typedef struct {
    const char *parameter, *here, *instead; /* parameter empty: as the change before it */
    uint32_t count[4];                      /* claims by verdict */
    kr_moved_claim *moved;                  /* [moved_count], from kr_alloc */
    uint32_t moved_count;
} kr_changed_run;

/* Claims of one paper. */
typedef struct {
    kr_claim claim[KR_CLAIMS_MAX];
    uint32_t claims;
    kr_changed_run change[KR_REPRODUCE_CHANGES_MAX];
    uint32_t changes;
} kr_paper_claims;

typedef struct {
    kr_paper_claims karat, pair;
    uint32_t runs;               /* points that were run */
    char traces[KR_TRACES][160]; /* name, sessions, digest */
    uint64_t digest;             /* of all runs of the KARAT paper's points */
    kr_study_job *grid;          /* [grid_count]: all of them */
    uint32_t grid_count;
    struct kr_pair_tables *tables; /* of the memory-pipeline paper */
    double wall_s;                 /* that it took, by the caller */
} kr_reproduction;

/* Runs everything. KR_E_MEMORY, and what reading data and traces returns. Free with kr_reproduction_free. */
kr_status kr_reproduce(const kr_reproduce_options *options, kr_reproduction *reproduction, kr_err *err);
void kr_reproduction_free(kr_reproduction *reproduction);

/* The report, in Markdown. KR_E_IO. */
kr_status kr_reproduction_write(const kr_reproduce_options *options, const kr_reproduction *reproduction,
                                FILE *out, kr_err *err);

#endif
