/* What an evaluation must know of a method beyond the method table: whether it needs training, what a
 * budget means to it, and how to read its figures. */
#ifndef KR_EVAL_EVAL_METHODS_H
#define KR_EVAL_EVAL_METHODS_H

#include <stdbool.h>

#include "files/model_file.h"
#include "method/method.h"

typedef struct {
    const char *name;    /* in reports and on the command line */
    const char *variant; /* the method's name where it differs, with this mode; NULL: name, default mode */
    uint32_t mode;
    bool training_free;
    bool has_budget;
    const char *note; /* one sentence, or NULL */
    /* Sets what the budget is to the method; NULL: config.budget. */
    void (*apply)(kr_method_config *config, uint32_t budget, uint64_t context, const kr_model *model);
} kr_eval_method;

/* In the order of reports. */
extern const kr_eval_method kr_eval_methods[];
extern const uint32_t kr_eval_method_count;

/* name may be that of a file with a method outside the tree (method/outside.h), which is loaded; its row is
 * made in the caller's *outside. KR_E_NOT_FOUND names the methods. */
kr_status kr_eval_method_find(const char *name, kr_eval_method *outside, const kr_eval_method **method,
                              kr_err *err);
/* Whether it is compared when no method is named: the model's own ones, and those that need no training
 * where they can run. */
bool kr_eval_method_is_default(const kr_eval_method *method, const kr_model *model);
/* Name, budget and parameters; the rest is 0. */
kr_method_config kr_eval_method_config(const kr_eval_method *method, uint32_t budget, uint64_t context,
                                       const kr_model *model);

#endif
