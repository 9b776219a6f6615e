/* Chooses a matrix's kernel, packs its units with the team, and runs ranges of them. */
#include "engine/weights.h"

#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/check.h"

static uint32_t outputs_of(const kr_matrix *m, uint32_t unit)
{
    const uint32_t left = m->outputs - unit * m->unit_outputs;

    return left < m->unit_outputs ? left : m->unit_outputs;
}

static const kr_gemm_plan *plan_of(const kr_matrix *m, uint32_t unit)
{
    return unit + 1 == m->units ? m->last : m->plan;
}

static void choose_kernel(kr_matrix *m, const kr_gemm *gemm, bool as_f32)
{
    m->kernel = KR_KERNEL_GEMM;
    m->form = KR_FORM_F32;
    m->unit_outputs = KR_GEMM_OUTPUTS;
    if (!as_f32 && kr_weight_is_quantised(m->type)) {
        m->kernel = KR_KERNEL_QUANT;
        m->form = KR_FORM_INT8;
        m->unit_outputs = KR_PANEL_OUTPUTS;
    } else if (!as_f32 && m->type == KR_W_BF16 && kr_gemm_has_bf16(gemm)) {
        m->form = KR_FORM_BF16;
    } else if (!as_f32 && m->type != KR_W_F32) {
        m->kernel = KR_KERNEL_HALF;
        m->unit_outputs = KR_HALF_OUTPUTS;
    }
    m->units = (uint32_t)kr_ceil_div(m->outputs, m->unit_outputs);
}

kr_status kr_matrix_plan(kr_matrix *matrix, kr_gemm *gemm, const kr_tensor *tensor, bool as_f32, kr_err *err)
{
    kr_matrix m = {
        .type = tensor->type, .columns = (uint32_t)tensor->columns, .outputs = (uint32_t)tensor->rows};

    KR_CHECK(tensor->rows > 0 && tensor->rows <= UINT32_MAX && tensor->columns <= UINT32_MAX);
    choose_kernel(&m, gemm, as_f32);
    if (m.kernel == KR_KERNEL_GEMM) {
        const kr_dtype type = m.form == KR_FORM_BF16 ? KR_BF16 : KR_F32;
        kr_status s = kr_gemm_plan_for(gemm, type, m.columns, outputs_of(&m, 0), &m.plan, err);
        if (s == KR_OK)
            s = kr_gemm_plan_for(gemm, type, m.columns, outputs_of(&m, m.units - 1), &m.last, err);
        if (s != KR_OK)
            return s;
        m.unit_bytes = kr_gemm_plan_bytes(m.plan);
    } else {
        m.unit_bytes = m.kernel == KR_KERNEL_QUANT ? kr_panel_bytes(m.type, m.columns)
                                                   : kr_half_panel_bytes(m.columns);
    }
    *matrix = m;
    return KR_OK;
}

uint64_t kr_matrix_packed_bytes(const kr_matrix *m)
{
    if (m->kernel != KR_KERNEL_GEMM)
        return m->units * m->unit_bytes;
    return (m->units - 1) * m->unit_bytes + kr_gemm_plan_bytes(m->last);
}

uint64_t kr_matrix_chunk_bytes(const kr_matrix *m)
{
    return m->kernel == KR_KERNEL_GEMM ? m->units * sizeof(kr_gemm_weights *) : 0;
}

typedef struct {
    kr_matrix *matrix;
    kr_gemm *gemm;
    const kr_tensor *tensor;
    float *staging;     /* [threads][KR_GEMM_OUTPUTS][columns], when rows must be expanded */
    _Atomic int status; /* of the first chunk that failed */
    kr_err *err;        /* [threads] */
} pack_job;

static void pack_chunk(pack_job *job, uint32_t unit, const uint8_t *rows, uint32_t worker)
{
    kr_matrix *m = job->matrix;
    const void *from = rows;

    if (job->staging != NULL) {
        const uint64_t row_bytes = kr_weight_row_bytes(m->type, m->columns);
        float *expanded = job->staging + (uint64_t)worker * KR_GEMM_OUTPUTS * m->columns;
        for (uint32_t o = 0; o < outputs_of(m, unit); o++)
            kr_dequantise(m->type, rows + o * row_bytes, expanded + (uint64_t)o * m->columns, m->columns);
        from = expanded;
    }
    const kr_status s = kr_gemm_pack(job->gemm, plan_of(m, unit), worker, from,
                                     m->packed + unit * m->unit_bytes, &m->chunk[unit], &job->err[worker]);
    if (s != KR_OK)
        atomic_store(&job->status, s);
}

static void pack_unit(void *context, uint32_t unit, uint32_t worker)
{
    pack_job *job = context;
    kr_matrix *m = job->matrix;
    const uint64_t row_bytes = kr_weight_row_bytes(m->type, m->columns);
    const uint8_t *rows = job->tensor->data + (uint64_t)unit * m->unit_outputs * row_bytes;
    uint8_t *packed = m->packed + unit * m->unit_bytes;

    if (m->kernel == KR_KERNEL_GEMM)
        pack_chunk(job, unit, rows, worker);
    else if (m->kernel == KR_KERNEL_HALF)
        kr_half_pack(rows, outputs_of(m, unit), m->columns, (uint16_t *)(void *)packed);
    else
        kr_panel_pack(m->type, rows, row_bytes, outputs_of(m, unit), m->columns, packed);
}

/* A hint: whole pages of the map that only this tensor lies in; another read brings them back. */
static void let_go(const kr_tensor *tensor)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t from = ((uintptr_t)tensor->data + page - 1) & ~(page - 1);
    const uintptr_t to = ((uintptr_t)tensor->data + tensor->bytes) & ~(page - 1);

    if (from < to)
        (void)madvise((void *)from, to - from, MADV_DONTNEED);
}

kr_status kr_matrix_pack(kr_matrix *matrix, kr_gemm *gemm, kr_team *team, const kr_tensor *tensor,
                         kr_err *err)
{
    const uint32_t threads = kr_team_threads(team);
    const bool expand = matrix->kernel == KR_KERNEL_GEMM && matrix->form == KR_FORM_F32 &&
                        matrix->type != KR_W_F32;
    pack_job job = {.matrix = matrix, .gemm = gemm, .tensor = tensor, .status = KR_OK};
    kr_status s = KR_OK;

    KR_CHECK(tensor->rows == matrix->outputs && tensor->columns == matrix->columns &&
             tensor->type == matrix->type);
    job.err = kr_alloc(threads * sizeof *job.err);
    if (expand)
        job.staging = kr_alloc((uint64_t)threads * KR_GEMM_OUTPUTS * matrix->columns * sizeof *job.staging);
    if (job.err == NULL || (expand && job.staging == NULL)) {
        s = kr_fail(err, KR_E_MEMORY, "no memory to stage weights of %s", tensor->name);
        goto done;
    }
    kr_team_run(team, pack_unit, &job, matrix->units);
    if (atomic_load(&job.status) != KR_OK) {
        for (uint32_t i = 0; i < threads && s == KR_OK; i++)
            if (job.err[i].status != KR_OK)
                s = kr_fail(err, job.err[i].status, "%s: %s", tensor->name, job.err[i].text);
        goto done;
    }
    let_go(tensor);
done:
    kr_free(job.staging);
    kr_free(job.err);
    return s;
}

void kr_matrix_drop(kr_matrix *matrix)
{
    for (uint32_t i = 0; matrix->chunk != NULL && i < matrix->units; i++)
        kr_gemm_weights_destroy(matrix->chunk[i]);
    matrix->chunk = NULL;
}

void kr_matrix_multiply(const kr_matrix *m, kr_gemm *gemm, uint32_t worker, uint32_t first, uint32_t count,
                        const kr_inputs *inputs, uint32_t rows, float *out, uint64_t out_stride)
{
    KR_CHECK(inputs->columns == m->columns && first + count <= m->units);
    switch (m->kernel) {
    case KR_KERNEL_QUANT:
        kr_quant_dot_choose(NULL)(&(kr_quant_dot_args){.type = m->type,
                                                       .panels = m->packed,
                                                       .columns = m->columns,
                                                       .outputs = m->outputs,
                                                       .first_panel = first,
                                                       .panels_count = count,
                                                       .q = inputs->q,
                                                       .meta = inputs->meta,
                                                       .rows = rows,
                                                       .out = out,
                                                       .out_stride = out_stride});
        break;
    case KR_KERNEL_HALF:
        kr_half_dot_choose(NULL)(&(kr_half_dot_args){.type = m->type == KR_W_F16 ? KR_F16 : KR_BF16,
                                                     .panels = (const uint16_t *)(const void *)m->packed,
                                                     .columns = m->columns,
                                                     .outputs = m->outputs,
                                                     .first_panel = first,
                                                     .panels_count = count,
                                                     .x = inputs->f32,
                                                     .rows = rows,
                                                     .out = out,
                                                     .out_stride = out_stride});
        break;
    default:
        for (uint32_t unit = first; unit < first + count; unit++)
            kr_gemm_run(gemm, plan_of(m, unit), m->chunk[unit], worker,
                        m->form == KR_FORM_BF16 ? (const void *)inputs->bf16 : (const void *)inputs->f32,
                        rows, out + (uint64_t)unit * KR_GEMM_OUTPUTS, out_stride);
    }
}
