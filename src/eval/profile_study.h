/* A whole profile of one model on this machine: which points are measured, and in what order.
 *
 * Points that the fit sees and points that it does not (the check) run between each other, so that both
 * meet the same machine. The fit sees all rows at the smallest context and powers of two at the others, of
 * each micro-batch, with dense attention and with each method and budget; the check has other contexts, other
 * combinations of rows, another budget, and batches of unequal contexts. */
#ifndef KR_EVAL_PROFILE_STUDY_H
#define KR_EVAL_PROFILE_STUDY_H

#include "eval/profile.h"

enum {
    KR_PROFILE_LIST_MAX = 8,
    KR_PROFILE_CHECKS = 12,
    KR_PROFILE_CHECK_CONTEXTS = 2,
    KR_PROFILE_FITTED_MAX = 512
};

typedef struct {
    const kr_model_file *file;
    bool weights_f32;
    kr_dtype kv_dtype;
    uint32_t cores;
    const char *folder;                      /* empty, for saved sessions */
    const char *method[KR_PROFILE_LIST_MAX]; /* beside dense */
    uint32_t budget[KR_PROFILE_LIST_MAX];
    uint64_t context[KR_PROFILE_LIST_MAX]; /* ascending */
    uint32_t methods, budgets, contexts;
    uint32_t dense_layers; /* first layers that stay dense; UINT32_MAX = each method's default */
    uint32_t rows_max, steps, rounds;
    kr_status (*connect)(void *context, uint64_t pool_bytes, uint32_t sessions, uint32_t threads,
                         kr_engine_node *node, kr_err *err); /* these three as in kr_profile_setup */
    void (*disconnect)(void *context, kr_engine_node *node);
    void *connect_context;
    bool check;
    uint32_t check_budget;
    uint64_t check_context[KR_PROFILE_CHECK_CONTEXTS];
} kr_profile_options;

/* A measured point with what ran it. */
typedef struct {
    kr_profile_point point;
    kr_arrangement arrangement;
    kr_method_config method;
} kr_profile_run;

typedef struct {
    kr_profile_setup setup;
    kr_machine_mode mode[KR_MACHINE_MODE_KINDS]; /* by kind */
    uint32_t modes;                              /* 2: none with a node in another process */
    kr_profile_run fitted[KR_PROFILE_FITTED_MAX], check[KR_PROFILE_CHECKS]; /* check: not seen by the fit */
    uint32_t fits, checks;
    uint32_t kept, total; /* steps of the fit */
} kr_profile_result;

/* The mode that an arrangement's steps are predicted in; those that serve only a fit have none. */
bool kr_profile_mode_of(kr_arrangement arrangement, kr_machine_mode_kind *kind);

/* Minutes; progress goes to base/log. KR_E_LIMIT: contexts over the model's, rows over
 * KR_PROFILE_ROWS_MAX. */
kr_status kr_profile_study(const kr_profile_options *options, kr_profile_result *result, kr_err *err);

#endif
