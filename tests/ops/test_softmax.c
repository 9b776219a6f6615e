/* softmax: scalar against float64, variants against scalar bit for bit, partial vectors, in place and
 * added, NaN, infinities, rows without a finite score. */
#include "ops/variants.h"
#include "ops_random.h"

enum { N_MAX = 1100 };

static const uint32_t sizes[] = {1, 2, 7, 15, 16, 17, 31, 32, 33, 100, 1000, N_MAX};

typedef struct {
    float score[N_MAX + 1], out[N_MAX + 1];
} row;

static void copy_row(row *to, const row *from) { memcpy(to, from, sizeof *to); }

/* Runs a variant on a copy; nothing behind the row may change. */
static void run(kr_softmax_fn fn, const row *in, uint32_t n, float scale, bool add, row *got)
{
    copy_row(got, in);
    got->score[n] = got->out[n] = 12345.0f;
    fn(&(kr_softmax_args){.score = got->score, .n = n, .scale = scale, .add = add, .out = got->out});
    assert_true(got->score[n] == 12345.0f && got->out[n] == 12345.0f);
}

static void variants_agree(const row *in, uint32_t n, float scale, bool add, row *want)
{
    row got;

    run(kr_softmax_scalar, in, n, scale, add, want);
    for (uint32_t v = 0; kr_softmax_variants[v].run != NULL; v++) {
        const kr_variant *variant = &kr_softmax_variants[v].variant;

        if (!variant->usable()) {
            print_message("SKIP softmax %s\n", variant->name);
            continue;
        }
        run(kr_softmax_variants[v].run, in, n, scale, add, &got);
        assert_same_floats(got.out, want->out, n, variant->name);
        assert_same_floats(got.score, want->score, n, variant->name);
        copy_row(&got, in); /* in place */
        kr_softmax_variants[v].run(
            &(kr_softmax_args){.score = got.score, .n = n, .scale = scale, .out = got.score});
        if (!add)
            assert_same_floats(got.score, want->out, n, variant->name);
    }
}

static void fill(kr_rng *rng, row *r, float size)
{
    test_fill(rng, KR_F32, r->score, N_MAX, size);
    test_fill(rng, KR_F32, r->out, N_MAX, 1.0f);
}

static void matches_float64(void **state)
{
    (void)state;
    kr_rng rng = test_rng("softmax");
    row in, want;

    for (size_t c = 0; c < sizeof sizes / sizeof *sizes * 6; c++) {
        const uint32_t n = sizes[c / 6];
        const float scale = c % 3 == 0 ? 1.0f : 0.125f;
        const bool add = c % 2;
        double m = -HUGE_VAL, total = 0.0;

        fill(&rng, &in, c % 6 < 3 ? 1.0f : 30.0f);
        variants_agree(&in, n, scale, add, &want);
        for (uint32_t i = 0; i < n; i++)
            m = fmax(m, (double)in.score[i]);
        for (uint32_t i = 0; i < n; i++)
            total += exp(((double)in.score[i] - m) * (double)scale);
        for (uint32_t i = 0; i < n; i++) {
            const double share = exp(((double)in.score[i] - m) * (double)scale) / total;
            const double expected = add ? (double)in.out[i] + share : share;

            /* exp of an argument up to 300 rounded in F32, then sums. */
            assert_true(fabs((double)want.out[i] - expected) <= 4e-5 * share + 3e-7);
        }
    }
}

static void bad_scores(void **state)
{
    (void)state;
    kr_rng rng = test_rng("softmax bad");
    row in, want;

    for (size_t c = 0; c < sizeof sizes / sizeof *sizes; c++) {
        const uint32_t n = sizes[c], at = (uint32_t)kr_rng_below(&rng, n);

        fill(&rng, &in, 1.0f);
        in.score[at] = -INFINITY; /* weighs nothing */
        variants_agree(&in, n, 1.0f, true, &want);
        assert_true(want.out[at] == in.out[at]);
        in.score[at] = NAN; /* spoils every share */
        variants_agree(&in, n, 1.0f, false, &want);
        for (uint32_t i = 0; i < n; i++)
            assert_true(isnan(want.out[i]));
        in.score[at] = INFINITY;
        variants_agree(&in, n, 1.0f, false, &want);
        assert_true(isnan(want.out[at]));
        for (uint32_t i = 0; i < n; i++)
            in.score[i] = -INFINITY; /* nothing to weigh */
        variants_agree(&in, n, 1.0f, false, &want);
        for (uint32_t i = 0; i < n; i++)
            assert_true(want.out[i] == 0.0f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matches_float64),
        cmocka_unit_test(bad_scores),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
