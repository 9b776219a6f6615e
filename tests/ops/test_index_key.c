/* index_key: E4M3 quantisation with its power-of-two scale, the Hadamard rotation, both RoPE
 * layouts and LayerNorm, each against its formula in float64. */
#include "ops/index_key.h"
#include "ops_random.h"

static void scale_is_the_ceiling_power_of_two(void **state)
{
    (void)state;
    /* {largest element, expected scale}: 448 -> 1; just above -> 2; the 1e-4 floor -> 2^-22. */
    static const float cases[][2] = {{448.0f, 1.0f},   {448.5f, 2.0f},    {449.0f, 2.0f},
                                     {447.9f, 1.0f},   {224.0f, 0.5f},    {1.0f, 0x1p-8f},
                                     {0.0f, 0x1p-22f}, {1e-6f, 0x1p-22f}, {896.0f, 2.0f}};
    uint8_t code[2];

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const float x[2] = {0.25f * cases[i][0], -cases[i][0]};
        const float s = kr_e4m3_quantise(x, 2, code);

        if (s != cases[i][1])
            fail_msg("amax %g: scale %g, expected %g", (double)cases[i][0], (double)s, (double)cases[i][1]);
        assert_true(fabsf(kr_f32_from_e4m3(code[1]) * s - x[1]) <= 0.0625f * fabsf(x[1]) + s * 0x1p-10f);
    }
}

static void codes_are_nearest(void **state)
{
    (void)state;
    kr_rng rng = test_rng("e4m3_quantise");
    float x[128];
    uint8_t code[128];

    for (int round = 0; round < 200; round++) {
        test_fill(&rng, KR_F32, x, 128, ldexpf(1.0f, (int)kr_rng_below(&rng, 30) - 15));
        const float s = kr_e4m3_quantise(x, 128, code);

        for (int i = 0; i < 128; i++) {
            const float error = fabsf(kr_f32_from_e4m3(code[i]) * s - x[i]);

            for (int c = 0; c < 256; c++) /* no code is nearer */
                if (c % 128 != 127)
                    assert_true(fabsf(kr_f32_from_e4m3((uint8_t)c) * s - x[i]) >= error);
        }
    }
}

static void bad_elements_make_nan_keys(void **state)
{
    (void)state;
    const float bad[] = {NAN, INFINITY, -INFINITY};
    uint8_t code[4];

    for (int b = 0; b < 3; b++) {
        const float x[4] = {1.0f, bad[b], 0.0f, 2.0f};

        assert_true(kr_e4m3_quantise(x, 4, code) == 1.0f);
        for (int i = 0; i < 4; i++)
            assert_int_equal(code[i], 0x7f);
    }
}

static void hadamard_is_the_sylvester_matrix(void **state)
{
    (void)state;
    kr_rng rng = test_rng("hadamard");
    float x[128], y[128];

    for (uint32_t dim = 1; dim <= 128; dim *= 2) {
        double before = 0.0, after = 0.0;

        test_fill(&rng, KR_F32, x, dim, 1.0f);
        memcpy(y, x, sizeof x);
        kr_hadamard(y, dim);
        for (uint32_t r = 0; r < dim; r++) {
            double want = 0.0;

            for (uint32_t c = 0; c < dim; c++)
                want += __builtin_parity(r & c) ? -(double)x[c] : (double)x[c];
            assert_true(fabs((double)y[r] - want / sqrt(dim)) < 1e-5);
            before += (double)x[r] * (double)x[r], after += (double)y[r] * (double)y[r];
        }
        assert_true(fabs(before - after) < 1e-4 * before);
        kr_hadamard(y, dim); /* its own inverse */
        for (uint32_t r = 0; r < dim; r++)
            assert_true(fabsf(y[r] - x[r]) < 1e-5f);
    }
}

static void rope_rotates_pairs(void **state)
{
    (void)state;
    const float inv_freq[2] = {1.0f, 0.1f};
    const float x[6] = {1.0f, 2.0f, 3.0f, 4.0f, 5.0f, 6.0f};
    float half[6], inter[6];

    memcpy(half, x, sizeof x), memcpy(inter, x, sizeof x);
    kr_rope_first(half, inv_freq, 4, 3, false);
    kr_rope_first(inter, inv_freq, 4, 3, true);
    assert_true(fabs((double)half[0] - (1 * cos(3) - 3 * sin(3))) < 1e-6);
    assert_true(fabs((double)half[2] - (1 * sin(3) + 3 * cos(3))) < 1e-6);
    assert_true(fabs((double)half[3] - (2 * sin(0.3) + 4 * cos(0.3))) < 1e-6);
    assert_true(fabs((double)inter[1] - (1 * sin(3) + 2 * cos(3))) < 1e-6);
    assert_true(fabs((double)inter[2] - (3 * cos(0.3) - 4 * sin(0.3))) < 1e-6);
    assert_true(half[4] == 5.0f && inter[5] == 6.0f);
}

static void layer_norm_subtracts_the_mean(void **state)
{
    (void)state;
    float x[4] = {1.0f, 2.0f, 3.0f, 6.0f};
    const float weight[4] = {1.0f, 2.0f, 1.0f, 1.0f}, bias[4] = {0.0f, 0.0f, 0.5f, 0.0f};

    kr_layer_norm(x, weight, bias, 4, 1e-6); /* mean 3, variance 3.5 */
    assert_true(fabs((double)x[0] + 2 / sqrt(3.5)) < 1e-6);
    assert_true(fabs((double)x[1] + 2 / sqrt(3.5)) < 1e-6);
    assert_true(fabs((double)x[2] - 0.5) < 1e-6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scale_is_the_ceiling_power_of_two),
        cmocka_unit_test(codes_are_nearest),
        cmocka_unit_test(bad_elements_make_nan_keys),
        cmocka_unit_test(hadamard_is_the_sylvester_matrix),
        cmocka_unit_test(rope_rotates_pairs),
        cmocka_unit_test(layer_norm_subtracts_the_mean),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
