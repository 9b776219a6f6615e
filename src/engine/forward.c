/* Runs the compute ops. Each is a few passes over the team: rows (norm, rounding to the matrices'
 * input form), outputs (matrix units), rows again (bias, q/k norm, rotation, residual). A pass
 * over few rows runs on the caller alone, since waking the others would cost more. */
#include "engine/forward.h"

#include <string.h>

#include "base/check.h"
#include "engine/forward_state.h"

enum { PARTS_PER_THREAD = 4, OUTPUTS_PER_PART_MIN = 64, ELEMENTS_PER_PART_MIN = 8192, PRODUCTS_MAX = 3 };

/* ---- passes over rows ---- */

typedef struct row_job row_job;
struct row_job {
    kr_forward *f;
    void (*run)(const row_job *job, uint32_t row);
    uint32_t rows, rows_per_part;
    const kr_rows *in; /* of the op */
    const kr_forward_layer *layer;

    const float *source;   /* [rows][columns], or the rows listed in index */
    const uint32_t *index; /* [rows]; NULL: 0, 1, ... */
    const float *norm;     /* [columns]; NULL: none */
    uint32_t columns, forms;
    kr_forward_angles *angles;
    const kr_rope *rope;
    uint32_t rope_index;
    const float *product; /* [rows][hidden] to add to the residual stream */
};

static void run_rows(void *context, uint32_t part, uint32_t worker)
{
    const row_job *job = context;
    const uint32_t from = part * job->rows_per_part, left = job->rows - from;
    const uint32_t count = left < job->rows_per_part ? left : job->rows_per_part;

    (void)worker;
    for (uint32_t row = from; row < from + count; row++)
        job->run(job, row);
}

/* columns: of the widest row touched, which tells how much work a row is. */
static void for_rows(row_job *job, uint32_t columns)
{
    const uint32_t most = kr_team_threads(job->f->team) * PARTS_PER_THREAD;
    const uint64_t worth = (uint64_t)job->rows * columns / ELEMENTS_PER_PART_MIN;
    const uint32_t parts = worth < 1 ? 1 : worth < most ? (uint32_t)worth : most;

    job->rows_per_part = (uint32_t)kr_ceil_div(job->rows, parts);
    kr_team_run(job->f->team, run_rows, job, (uint32_t)kr_ceil_div(job->rows, job->rows_per_part));
}

/* Rounds a row of normed (or source) to the forms asked for. */
static void round_row(const row_job *job, const float *x, uint32_t row)
{
    kr_forward *f = job->f;

    if (job->forms & KR_FORM_BF16)
        f->ops->to_bf16(x, job->columns, f->bf16 + (uint64_t)row * job->columns);
    if (job->forms & KR_FORM_INT8)
        f->ops->quantise(x, job->columns, f->q + (uint64_t)row * job->columns,
                         f->meta + (uint64_t)row * (job->columns / KR_QUANT_BLOCK));
}

static void prepare_row(const row_job *job, uint32_t row)
{
    const uint32_t from = job->index != NULL ? job->index[row] : row;
    const float *x = job->source + (uint64_t)from * job->columns;

    if (job->norm != NULL) {
        float *normed = job->f->normed + (uint64_t)row * job->columns;
        job->f->ops->rms_norm(x, job->norm, (float)job->f->model->norm_eps, normed, job->columns);
        x = normed;
    }
    round_row(job, x, row);
}

/* Input rows of an op's matrices in the forms they want: source, normed where norm is given. */
static kr_inputs prepare(kr_forward *f, const float *source, const uint32_t *index, const float *norm,
                         uint32_t rows, uint32_t columns, uint32_t forms)
{
    row_job job = {.f = f,
                   .run = prepare_row,
                   .rows = rows,
                   .source = source,
                   .index = index,
                   .norm = norm,
                   .columns = columns,
                   .forms = forms};

    KR_CHECK(norm != NULL || index == NULL);
    if (norm != NULL || (forms & ~(uint32_t)KR_FORM_F32) != 0)
        for_rows(&job, columns);
    return (kr_inputs){.columns = columns,
                       .f32 = norm != NULL ? f->normed : source,
                       .bf16 = f->bf16,
                       .q = f->q,
                       .meta = f->meta};
}

/* ---- passes over outputs ---- */

typedef struct {
    const kr_matrix *matrix;
    float *out;
    uint64_t out_stride;
} product;

typedef struct {
    kr_forward *f;
    const kr_inputs *inputs;
    uint32_t rows, products;
    product product[PRODUCTS_MAX];
    uint32_t units_per_part[PRODUCTS_MAX], parts[PRODUCTS_MAX];
} product_job;

static void run_product(void *context, uint32_t part, uint32_t worker)
{
    const product_job *job = context;
    uint32_t i = 0;

    while (part >= job->parts[i])
        part -= job->parts[i++];
    const product *p = &job->product[i];
    const uint32_t first = part * job->units_per_part[i], left = p->matrix->units - first;
    kr_matrix_multiply(p->matrix, job->f->gemm, worker, first,
                       left < job->units_per_part[i] ? left : job->units_per_part[i], job->inputs, job->rows,
                       p->out, p->out_stride);
}

/* Several products of the same inputs in one pass, cut into parts of about equally many outputs. */
static void multiply(kr_forward *f, const kr_inputs *inputs, uint32_t rows, const product *products,
                     uint32_t count)
{
    product_job job = {.f = f, .inputs = inputs, .rows = rows, .products = count};
    const uint32_t threads = kr_team_threads(f->team);
    uint64_t outputs = 0;
    uint32_t parts = 0;

    for (uint32_t i = 0; i < count; i++)
        outputs += products[i].matrix->outputs;
    uint64_t per_part = threads == 1 ? outputs : kr_ceil_div(outputs, threads * PARTS_PER_THREAD);
    per_part = per_part < OUTPUTS_PER_PART_MIN ? OUTPUTS_PER_PART_MIN : per_part;
    for (uint32_t i = 0; i < count; i++) {
        const kr_matrix *m = products[i].matrix;
        job.product[i] = products[i];
        job.units_per_part[i] = (uint32_t)kr_ceil_div(per_part, m->unit_outputs);
        job.parts[i] = (uint32_t)kr_ceil_div(m->units, job.units_per_part[i]);
        parts += job.parts[i];
    }
    kr_team_run(f->team, run_product, &job, parts);
}

/* ---- rotary tables ---- */

static void angles_row(const row_job *job, uint32_t row)
{
    const kr_forward *f = job->f;

    for (uint32_t i = 0; i < 2; i++) {
        const kr_rope *rope = &f->model->rope[i];
        if (rope->dims != 0)
            kr_rope_table(job->in->position[row], f->inv_freq[i], rope->dims, f->rope_factor[i],
                          rope->layout == KR_ROPE_INTERLEAVED,
                          job->angles->table[i] + (uint64_t)row * 2 * rope->dims);
    }
}

/* The tables of these positions: found from an earlier layer, or computed into the older set. */
static kr_forward_angles *angles_of(kr_forward *f, const kr_rows *rows)
{
    kr_forward_angles *oldest = &f->angles[0];
    const size_t bytes = rows->rows * sizeof *rows->position;

    f->tick++;
    for (uint32_t i = 0; i < KR_FORWARD_ANGLES; i++) {
        kr_forward_angles *a = &f->angles[i];
        if (a->rows == rows->rows && memcmp(a->position, rows->position, bytes) == 0) {
            a->used = f->tick;
            return a;
        }
        oldest = a->used < oldest->used ? a : oldest;
    }
    row_job job = {.f = f, .run = angles_row, .rows = rows->rows, .in = rows, .angles = oldest};
    memcpy(oldest->position, rows->position, bytes);
    oldest->rows = rows->rows;
    oldest->used = f->tick;
    /* A sine costs about as much as ten elements of other work. */
    for_rows(&job, 10 * (f->model->rope[0].dims + f->model->rope[1].dims));
    return oldest;
}

/* ---- the ops ---- */

static void check_rows(const kr_forward *f, const kr_rows *rows)
{
    KR_CHECK(rows->rows >= 1 && rows->rows <= f->rows_max);
}

static void embed_row(const row_job *job, uint32_t row)
{
    const kr_forward *f = job->f;
    const uint32_t hidden = f->model->hidden, token = job->in->token[row];
    const float scale = (float)f->model->embed_scale;
    float *x = job->in->hidden + (uint64_t)row * hidden;

    KR_CHECK(token < f->embedding.rows);
    kr_dequantise(f->embedding.type,
                  f->embedding.data + token * kr_weight_row_bytes(f->embedding.type, hidden), x, hidden);
    for (uint32_t i = 0; scale != 1.0f && i < hidden; i++)
        x[i] *= scale;
}

void kr_forward_embed(kr_forward *forward, const kr_rows *rows)
{
    row_job job = {.f = forward, .run = embed_row, .rows = rows->rows, .in = rows};

    check_rows(forward, rows);
    for_rows(&job, forward->model->hidden);
}

/* Bias, norm and rotation of the heads of one row of queries or keys; pre_rope (NULL: nowhere) is where
 * all rows before rotation are kept. */
static void finish_heads(const row_job *job, float *x, uint32_t heads, const float *bias, const float *norm,
                         float *pre_rope, uint32_t row)
{
    const kr_forward *f = job->f;
    const uint32_t dim = f->model->head_dim;
    const float *table = job->angles->table[job->rope_index] + (uint64_t)row * 2 * job->rope->dims;

    if (bias != NULL)
        f->ops->add(x, bias, heads * dim);
    for (uint32_t h = 0; h < heads; h++, x += dim) {
        if (norm != NULL)
            f->ops->rms_norm(x, norm, (float)f->model->norm_eps, x, dim);
        if (pre_rope != NULL)
            memcpy(pre_rope + ((uint64_t)row * heads + h) * dim, x, dim * sizeof *x);
        if (job->rope->dims != 0)
            f->ops->rope(x + job->rope->first, table, job->rope->dims,
                         job->rope->layout == KR_ROPE_INTERLEAVED);
    }
}

static void store_kv(const kr_forward *f, const float *x, void *rows, uint32_t row, uint32_t n)
{
    uint8_t *to = (uint8_t *)rows + (uint64_t)row * n * kr_dtype_bytes(f->kv_dtype);

    if (f->kv_dtype == KR_BF16)
        f->ops->to_bf16(x, n, (uint16_t *)(void *)to);
    else
        kr_from_f32(f->kv_dtype, x, to, n);
}

static void finish_qkv_row(const row_job *job, uint32_t row)
{
    const kr_forward *f = job->f;
    const kr_model *m = f->model;
    const kr_forward_layer *w = job->layer;
    const uint32_t q_n = m->heads * m->head_dim, k_n = m->kv_heads * m->head_dim,
                   v_n = m->kv_heads * m->value_dim;
    float *key = f->product + (uint64_t)row * (k_n + v_n), *value = key + k_n;

    finish_heads(job, job->in->query + (uint64_t)row * q_n, m->heads, w->q_bias, w->q_norm,
                 job->in->query_pre_rope, row);
    finish_heads(job, key, m->kv_heads, w->k_bias, w->k_norm, job->in->key_pre_rope, row);
    if (w->v_bias != NULL)
        f->ops->add(value, w->v_bias, v_n);
    store_kv(f, key, job->in->key, row, k_n);
    store_kv(f, value, job->in->value, row, v_n);
}

void kr_forward_qkv(kr_forward *forward, const kr_rows *rows, uint32_t layer)
{
    kr_forward *f = forward;
    const kr_model *m = f->model;
    const kr_forward_layer *w = &f->layer[layer];
    const uint32_t q_n = m->heads * m->head_dim, k_n = m->kv_heads * m->head_dim,
                   v_n = m->kv_heads * m->value_dim;

    check_rows(f, rows);
    KR_CHECK(layer < m->layers);
    const kr_inputs in = prepare(f, rows->hidden, NULL, w->attn_norm, rows->rows, m->hidden,
                                 w->q.form | w->k.form | w->v.form);
    const product products[] = {
        {&w->q, rows->query, q_n}, {&w->k, f->product, k_n + v_n}, {&w->v, f->product + k_n, k_n + v_n}};
    multiply(f, &in, rows->rows, products, 3);

    const uint32_t r = m->layer[layer].rope;
    row_job job = {.f = f,
                   .run = finish_qkv_row,
                   .rows = rows->rows,
                   .in = rows,
                   .layer = w,
                   .angles = angles_of(f, rows),
                   .rope = &m->rope[r],
                   .rope_index = r};
    for_rows(&job, q_n + k_n + v_n);
}

/* hidden += product, normed first where norm is given. */
static void add_row(const row_job *job, uint32_t row)
{
    const kr_forward *f = job->f;
    const uint32_t hidden = f->model->hidden;
    float *x = f->product + (uint64_t)row * hidden;

    if (job->norm != NULL)
        f->ops->rms_norm(x, job->norm, (float)f->model->norm_eps, x, hidden);
    f->ops->add(job->in->hidden + (uint64_t)row * hidden, x, hidden);
}

/* hidden += matrix * inputs: the end of both halves of a layer. */
static void multiply_add(kr_forward *f, const kr_rows *rows, const kr_inputs *in, const kr_matrix *matrix,
                         const float *post_norm)
{
    const product p = {matrix, f->product, f->model->hidden};
    row_job job = {.f = f, .run = add_row, .rows = rows->rows, .in = rows, .norm = post_norm};

    multiply(f, in, rows->rows, &p, 1);
    for_rows(&job, f->model->hidden);
}

void kr_forward_o_proj(kr_forward *forward, const kr_rows *rows, uint32_t layer)
{
    const kr_model *m = forward->model;
    const kr_forward_layer *w = &forward->layer[layer];

    check_rows(forward, rows);
    KR_CHECK(layer < m->layers);
    const kr_inputs in = prepare(forward, rows->attended, NULL, NULL, rows->rows, m->heads * m->value_dim,
                                 w->o.form);
    multiply_add(forward, rows, &in, &w->o, w->post_attn_norm);
}

/* The gated activation of one row, straight into the input forms of the last matrix. */
static void activate_row(const row_job *job, uint32_t row)
{
    const kr_forward *f = job->f;
    const uint64_t at = (uint64_t)row * job->columns;
    float *y = f->normed + at;

    (f->model->activation == KR_ACT_SILU ? f->ops->silu_mul : f->ops->gelu_mul)(f->gate + at, f->up + at, y,
                                                                                job->columns);
    round_row(job, y, row);
}

void kr_forward_ffn(kr_forward *forward, const kr_rows *rows, uint32_t layer)
{
    kr_forward *f = forward;
    const uint32_t width = f->model->ffn_width;
    const kr_forward_layer *w = &f->layer[layer];

    check_rows(f, rows);
    KR_CHECK(layer < f->model->layers);
    kr_inputs in = prepare(f, rows->hidden, NULL, w->ffn_norm, rows->rows, f->model->hidden,
                           w->gate.form | w->up.form);
    const product products[] = {{&w->gate, f->gate, width}, {&w->up, f->up, width}};
    multiply(f, &in, rows->rows, products, 2);

    row_job job = {.f = f, .run = activate_row, .rows = rows->rows, .columns = width, .forms = w->down.form};
    for_rows(&job, 4 * width);
    in.columns = width;
    in.f32 = f->normed;
    multiply_add(f, rows, &in, &w->down, w->post_ffn_norm);
}

void kr_forward_head(kr_forward *forward, const kr_rows *rows, const uint32_t *row, uint32_t count,
                     float *logits)
{
    check_rows(forward, rows);
    KR_CHECK(count <= forward->rows_max);
    for (uint32_t i = 0; i < count; i++)
        KR_CHECK(row[i] < rows->rows);
    if (count == 0)
        return;
    const kr_inputs in = prepare(forward, rows->hidden, row, forward->final_norm, count,
                                 forward->model->hidden, forward->output.form);
    product p = {.matrix = &forward->output, .out_stride = forward->output.outputs};

    p.out = logits;
    multiply(forward, &in, count, &p, 1);
}
