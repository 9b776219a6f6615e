/* Weight matrices of every stored type: products are those of the file's values in double within
 * the input form's precision, and a row has the same bits alone, in any batch, from any range of
 * units and as any worker. */
#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/arena.h"
#include "engine/weights.h"
#include "tests/test.h"

enum { ROWS = 150, COLUMNS = 512, OUTPUTS = 150, WORKERS = 3 };

/* Inputs in all forms. */
typedef struct {
    float f32[ROWS * COLUMNS];
    uint16_t bf16[ROWS * COLUMNS];
    int8_t q[ROWS * COLUMNS];
    kr_quant_meta meta[ROWS * COLUMNS / KR_QUANT_BLOCK];
} inputs;

static inputs *make_inputs(kr_rng *rng)
{
    inputs *in = kr_alloc(sizeof *in);
    const kr_row_ops *ops = kr_row_ops_choose();

    for (uint32_t i = 0; i < ROWS * COLUMNS; i++)
        in->f32[i] = (float)kr_rng_normal(rng);
    for (uint32_t r = 0; r < ROWS; r++) {
        ops->to_bf16(in->f32 + r * COLUMNS, COLUMNS, in->bf16 + r * COLUMNS);
        ops->quantise(in->f32 + r * COLUMNS, COLUMNS, in->q + r * COLUMNS,
                      in->meta + r * COLUMNS / KR_QUANT_BLOCK);
    }
    return in;
}

static kr_inputs rows_from(const inputs *in, uint32_t row)
{
    return (kr_inputs){.columns = COLUMNS,
                       .f32 = in->f32 + row * COLUMNS,
                       .bf16 = (uint16_t *)in->bf16 + row * COLUMNS,
                       .q = (int8_t *)in->q + row * COLUMNS,
                       .meta = (kr_quant_meta *)in->meta + row * COLUMNS / KR_QUANT_BLOCK};
}

/* A tensor in a mapped file, as kr_model_file gives them. */
static kr_tensor make_tensor(kr_rng *rng, kr_weight_type type)
{
    const kr_weight_type_info *info = kr_weight_type_of(type);
    const uint64_t bytes = OUTPUTS * kr_weight_row_bytes(type, COLUMNS);
    const int fd = memfd_create("tensor", 0);
    assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
    uint8_t *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(data != MAP_FAILED);
    close(fd);

    for (uint64_t i = 0; i < bytes; i += info->block_bytes) {
        const uint16_t scale = kr_f16_from_f32((float)kr_rng_normal(rng) * 0.01f);
        const float x = (float)kr_rng_normal(rng) * 0.1f;
        const uint16_t half = type == KR_W_BF16 ? kr_bf16_from_f32(x) : kr_f16_from_f32(x);
        for (uint32_t k = 0; k < info->block_bytes; k++)
            data[i + k] = (uint8_t)kr_rng_below(rng, 256);
        if (type == KR_W_F32)
            memcpy(data + i, &x, sizeof x);
        else if (info->block_elements == 1)
            memcpy(data + i, &half, sizeof half);
        else
            memcpy(data + i + (type == KR_W_Q6_K ? 208 : 0), &scale, sizeof scale);
        if (kr_weight_is_quantised(type) && kr_quant_has_minimum(type))
            memcpy(data + i + 2, &scale, sizeof scale);
    }
    return (kr_tensor){
        .type = type, .rows = OUTPUTS, .columns = COLUMNS, .data = data, .bytes = bytes, .name = info->name};
}

/* Against double: the inputs' form costs half a step of 2^-8 (BF16) or 1/127 of a block's largest. */
static void check_values(const kr_matrix *m, const kr_tensor *tensor, const inputs *in, const float *out)
{
    static float w[OUTPUTS * COLUMNS];

    for (uint32_t o = 0; o < OUTPUTS; o++)
        kr_dequantise(m->type, tensor->data + o * kr_weight_row_bytes(m->type, COLUMNS), w + o * COLUMNS,
                      COLUMNS);
    for (uint32_t r = 0; r < ROWS; r++)
        for (uint32_t o = 0; o < OUTPUTS; o++) {
            double sum = 0.0, magnitude = 0.0, steps = 0.0;
            for (uint32_t c = 0; c < COLUMNS; c++) {
                const double x = (double)in->f32[r * COLUMNS + c], y = (double)w[o * COLUMNS + c];
                sum += x * y;
                magnitude += fabs(x * y);
                steps += fabs(y) * (double)in->meta[(r * COLUMNS + c) / KR_QUANT_BLOCK].scale;
            }
            const double rounding = (COLUMNS + 3.0) * (double)FLT_EPSILON / 2 * magnitude;
            const double form = m->form == KR_FORM_INT8   ? 0.51 * steps
                                : m->form == KR_FORM_BF16 ? magnitude / 512
                                                          : 0;
            /* A minimum's products cancel against the scale's, so their roundings count by size. */
            const double slack = m->form == KR_FORM_INT8 ? 1e-4 * steps : 0.0;
            const double error = fabs((double)out[r * OUTPUTS + o] - sum);
            if (!(error <= rounding + form + slack))
                fail_msg("%s row %u output %u: off by %g of %g", tensor->name, r, o, error, magnitude);
        }
}

static void check_same_bits(const kr_matrix *m, kr_gemm *gemm, const inputs *in, const float *want)
{
    static const uint32_t batches[] = {1, 2, 3, 7, 8, 13, 64, 65};
    static float got[ROWS * OUTPUTS];

    for (size_t b = 0; b < sizeof batches / sizeof batches[0]; b++) {
        memset(got, 0, sizeof got);
        for (uint32_t row = 0; row < ROWS; row += batches[b]) {
            const uint32_t rows = ROWS - row < batches[b] ? ROWS - row : batches[b];
            const kr_inputs x = rows_from(in, row);
            for (uint32_t unit = 0; unit < m->units; unit++)
                kr_matrix_multiply(m, gemm, (unit + row) % WORKERS, unit, 1, &x, rows, got + row * OUTPUTS,
                                   OUTPUTS);
        }
        for (uint32_t i = 0; i < ROWS * OUTPUTS; i++)
            if (kr_f32_bits(got[i]) != kr_f32_bits(want[i]))
                fail_msg("%s in batches of %u: row %u output %u has %a, in one batch %a",
                         kr_weight_type_of(m->type)->name, batches[b], i / OUTPUTS, i % OUTPUTS,
                         (double)got[i], (double)want[i]);
    }
}

static void products(void **state)
{
    static float out[ROWS * OUTPUTS];
    kr_rng rng = test_rng("products");
    kr_gemm *gemm;
    kr_team *team;
    kr_err err;
    (void)state;

    inputs *in = make_inputs(&rng);
    assert_int_equal(kr_gemm_create(&gemm, WORKERS, &err), KR_OK);
    assert_int_equal(kr_team_create(&team, WORKERS, NULL, &err), KR_OK);
    for (int t = 0; t < KR_W_TYPES; t++)
        for (int as_f32 = 0; as_f32 < 2; as_f32++) {
            kr_tensor tensor = make_tensor(&rng, t);
            kr_matrix m;
            kr_arena arena;
            assert_int_equal(kr_matrix_plan(&m, gemm, &tensor, as_f32, &err), KR_OK);
            assert_int_equal(
                kr_arena_init(&arena, kr_matrix_packed_bytes(&m) + kr_matrix_chunk_bytes(&m), &err), KR_OK);
            m.packed = kr_arena_take(&arena, kr_matrix_packed_bytes(&m));
            m.chunk = kr_matrix_chunk_bytes(&m) != 0 ? kr_arena_take(&arena, kr_matrix_chunk_bytes(&m))
                                                     : NULL;
            assert_int_equal(kr_matrix_pack(&m, gemm, team, &tensor, &err), KR_OK);
            assert_true(as_f32 ? m.form == KR_FORM_F32
                               : (m.form == KR_FORM_INT8) == kr_weight_is_quantised(t));

            const kr_inputs x = rows_from(in, 0);
            kr_matrix_multiply(&m, gemm, 0, 0, m.units, &x, ROWS, out, OUTPUTS);
            check_values(&m, &tensor, in, out);
            check_same_bits(&m, gemm, in, out);
            kr_matrix_drop(&m);
            kr_arena_free(&arena);
            munmap((void *)(uintptr_t)tensor.data, tensor.bytes);
        }
    kr_team_destroy(team);
    kr_gemm_destroy(gemm);
    kr_free(in);
}

static int run_all(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(products)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Once as this CPU is, and first, in a process of its own, with oneDNN held to AVX2: its kernels
 * there sum a row differently in different batches, which the tiles must hide, and have no BF16. */
int main(void)
{
    int status = 1;
    const pid_t child = fork();

    if (child == 0) {
        setenv("ONEDNN_MAX_CPU_ISA", "AVX2", 1);
        _exit(run_all());
    }
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
        printf("FAILED with ONEDNN_MAX_CPU_ISA=AVX2\n");
        return 1;
    }
    return run_all();
}
