/* Published decode steps with the descriptors of the tree: the errors that docs/planner.md states, to
 * half a point, so that a change of model or data cannot move them unseen. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "plan/anchors.h"

static void errors_are_as_stated(void **state)
{
    static const double stated[KR_ANCHORS] = {-6.8, -8.5, -7.8, -20.3, -17.4, 9.3};
    kr_anchor_result r[KR_ANCHORS];
    kr_err err;

    (void)state;
    if (kr_anchors_run("data", NULL, 0, r, &err) != KR_OK)
        fail_msg("%s", err.text);
    for (int i = 0; i < KR_ANCHORS; i++) {
        const double error = 100 * (r[i].ms / kr_anchors[i].published_ms - 1);

        if (fabs(error - stated[i]) > 0.5)
            fail_msg("%s: %.1f %%, docs/planner.md says %.1f %%", kr_anchors[i].name, error, stated[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(errors_are_as_stated)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
