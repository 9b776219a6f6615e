/* The table of built-in methods. */
#include "method/method.h"

#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "method/dense.h"
#include "method/native.h"
#include "method/quest.h"
#include "method/trained.h"
#include "method/training_free.h"

const kr_method *const kr_methods[] = {
    &kr_method_dense,        &kr_method_quest,      &kr_method_dsa,      &kr_method_msa,
    &kr_method_streamingllm, &kr_method_snapkv,     &kr_method_h2o,      &kr_method_sparq,
    &kr_method_starc,        &kr_method_retroinfer, &kr_method_magicpig, &kr_method_lserve,
    &kr_method_moba,         &kr_method_infllm2,    &kr_method_seer,     NULL,
};

enum { METHODS = sizeof kr_methods / sizeof kr_methods[0] };

kr_status kr_method_find(const char *name, const kr_method **method, kr_err *err)
{
    const char *names[METHODS], *near;
    char list[KR_ERR_TEXT_BYTES / 2] = "";
    size_t used = 0;

    for (size_t i = 0; i < METHODS; i++) {
        names[i] = kr_methods[i] != NULL ? kr_methods[i]->name : NULL;
        if (names[i] != NULL && strcmp(names[i], name) == 0) {
            *method = kr_methods[i];
            return KR_OK;
        }
        if (names[i] != NULL && used < sizeof list)
            used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", i > 0 ? ", " : "", names[i]);
    }
    near = kr_text_nearest(name, names);
    if (near != NULL)
        return kr_fail(err, KR_E_NOT_FOUND, "no method \"%.15s\"; did you mean \"%s\"? There are: %s", name,
                       near, list);
    return kr_fail(err, KR_E_NOT_FOUND, "no method \"%.15s\"; there are: %s", name, list);
}
