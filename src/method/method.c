/* The table of built-in methods, and finding one by name. */
#include "method/method.h"

#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "method/dense.h"
#include "method/native.h"
#include "method/outside.h"
#include "method/quest.h"
#include "method/trained.h"
#include "method/training_free.h"

const kr_method *const kr_methods[] = {
    &kr_method_dense,        &kr_method_quest,      &kr_method_dsa,      &kr_method_msa,
    &kr_method_streamingllm, &kr_method_snapkv,     &kr_method_h2o,      &kr_method_sparq,
    &kr_method_starc,        &kr_method_retroinfer, &kr_method_magicpig, &kr_method_lserve,
    &kr_method_moba,         &kr_method_infllm2,    &kr_method_seer,     NULL,
};

enum { METHODS = sizeof kr_methods / sizeof kr_methods[0] - 1 };

const kr_method *kr_method_at(uint32_t index)
{
    return index < METHODS ? kr_methods[index] : kr_method_outside(index - METHODS);
}

kr_status kr_method_find(const char *name, const kr_method **method, kr_err *err)
{
    const char *names[METHODS + KR_METHODS_OUTSIDE_MAX + 1], *near;
    char list[KR_ERR_TEXT_BYTES / 2] = "";
    size_t used = 0;
    uint32_t n = 0;

    for (const kr_method *m; (m = kr_method_at(n)) != NULL; n++) {
        names[n] = m->name;
        if (strcmp(m->name, name) == 0) {
            *method = m;
            return KR_OK;
        }
        if (used < sizeof list)
            used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", n > 0 ? ", " : "", m->name);
    }
    names[n] = NULL;
    near = kr_text_nearest(name, names);
    if (near != NULL)
        return kr_fail(err, KR_E_NOT_FOUND, "no method \"%.15s\"; did you mean \"%s\"? There are: %s", name,
                       near, list);
    return kr_fail(err, KR_E_NOT_FOUND, "no method \"%.15s\"; there are: %s", name, list);
}
