/* Experts on one rank, in plain form: the router chooses for each row, then each expert that was chosen
 * runs over its rows, in the order of expert numbers, so that a row's sum has one order whatever else is
 * in the step. */
#include <math.h>
#include <string.h>

#include "base/check.h"
#include "engine/forward_pass.h"

static void norm_row(const kr_row_job *job, uint32_t row)
{
    const kr_forward *f = job->f;
    const uint32_t hidden = f->model->hidden;

    f->ops->rms_norm(job->in->hidden + (uint64_t)row * hidden, job->layer->ffn_norm,
                     (float)f->model->norm_eps, job->in->ffn_input + (uint64_t)row * hidden, hidden);
}

/* ---- the choice ---- */

/* Number of the best of n scores that is not taken; the first of equal ones. */
static uint32_t best_of(const double *score, const bool *taken, uint32_t n)
{
    uint32_t best = UINT32_MAX;

    for (uint32_t i = 0; i < n; i++)
        if (!taken[i] && (best == UINT32_MAX || score[i] > score[best]))
            best = i;
    return best;
}

/* Experts outside the best groups_kept groups count as taken; a group scores as its two best experts. */
static void limit_groups(const kr_moe *moe, const double *choice, bool *taken)
{
    const uint32_t size = moe->experts / moe->groups;
    double score[KR_EXPERTS_MAX];
    bool kept[KR_EXPERTS_MAX] = {false};

    for (uint32_t g = 0; g < moe->groups; g++) {
        double best = -INFINITY, second = -INFINITY;

        for (uint32_t e = g * size; e < (g + 1) * size; e++) {
            second = choice[e] > best ? best : choice[e] > second ? choice[e] : second;
            best = choice[e] > best ? choice[e] : best;
        }
        score[g] = size > 1 ? best + second : best;
    }
    for (uint32_t i = 0; i < moe->groups_kept; i++)
        kept[best_of(score, kept, moe->groups)] = true;
    for (uint32_t e = 0; e < moe->experts; e++)
        taken[e] = !kept[e / size];
}

/* Sigmoid scores; the bias counts in the choice alone; weights sum to routed_scale. */
static void choose_row(const kr_row_job *job, uint32_t row)
{
    const kr_moe *moe = &job->f->model->moe;
    const float *logit = job->f->product + (uint64_t)row * moe->experts;
    uint32_t *expert = job->in->expert + (uint64_t)row * moe->active, count = 0;
    float *weight = job->in->expert_weight + (uint64_t)row * moe->active;
    double score[KR_EXPERTS_MAX], choice[KR_EXPERTS_MAX] = {0}, total = 0.0;
    bool taken[KR_EXPERTS_MAX] = {false}, chosen[KR_EXPERTS_MAX] = {false};

    for (uint32_t e = 0; e < moe->experts; e++) {
        score[e] = 1.0 / (1.0 + exp(-(double)logit[e]));
        choice[e] = score[e] + (double)job->layer->router_bias[e];
    }
    if (moe->groups > 1)
        limit_groups(moe, choice, taken);
    for (uint32_t i = 0; i < moe->active; i++) {
        const uint32_t e = best_of(choice, taken, moe->experts);

        taken[e] = chosen[e] = true;
        total += score[e];
    }
    for (uint32_t e = 0; e < moe->experts; e++)
        if (chosen[e]) {
            expert[count] = e;
            weight[count++] = (float)(score[e] / total * moe->routed_scale);
        }
}

void kr_forward_router(kr_forward *forward, const kr_rows *rows, uint32_t layer)
{
    const kr_model *m = forward->model;
    const kr_forward_layer *w = &forward->layer[layer];
    kr_row_job job = {.f = forward, .run = norm_row, .rows = rows->rows, .in = rows, .layer = w};

    kr_pass_check(forward, rows);
    kr_pass_rows(&job, m->hidden);
    const kr_inputs in = {.columns = m->hidden, .f32 = rows->ffn_input};
    kr_pass_multiply(forward, &in, rows->rows, &(kr_product){&w->router, forward->product, m->moe.experts},
                     1);
    job.run = choose_row;
    kr_pass_rows(&job, 16 * m->moe.experts);
}

/* ---- the experts ---- */

void kr_forward_shared_expert(kr_forward *forward, const kr_rows *rows, uint32_t layer)
{
    const kr_forward_layer *w = &forward->layer[layer];

    kr_pass_check(forward, rows);
    const kr_inputs in = kr_pass_prepare(forward, rows->ffn_input, NULL, NULL, rows->rows,
                                         forward->model->hidden, w->shared_gate.form | w->shared_up.form);
    kr_pass_gated(forward, &in, rows->rows, &w->shared_gate, &w->shared_up, &w->shared_down,
                  forward->product);
    kr_pass_add(forward, rows, NULL);
}

/* Collects the rows that chose the expert; returns their number. */
static uint32_t collect(kr_forward *f, const kr_rows *rows, uint32_t expert)
{
    const uint32_t active = f->model->moe.active, hidden = f->model->hidden;
    uint32_t count = 0;

    for (uint32_t r = 0; r < rows->rows; r++)
        for (uint32_t i = 0; i < active; i++)
            if (rows->expert[(uint64_t)r * active + i] == expert) {
                memcpy(f->expert_rows + (uint64_t)count * hidden, rows->ffn_input + (uint64_t)r * hidden,
                       hidden * sizeof(float));
                f->expert_row[count++] = r * active + i;
            }
    return count;
}

static void add_routed_row(const kr_row_job *job, uint32_t row)
{
    const kr_forward *f = job->f;
    const uint32_t hidden = f->model->hidden, pair = f->expert_row[row];
    const float weight = job->in->expert_weight[pair], *x = f->product + (uint64_t)row * hidden;
    float *sum = f->routed + (uint64_t)(pair / f->model->moe.active) * hidden;

    for (uint32_t i = 0; i < hidden; i++)
        sum[i] += weight * x[i];
}

static void add_sum_row(const kr_row_job *job, uint32_t row)
{
    const uint64_t hidden = job->f->model->hidden;

    job->f->ops->add(job->in->hidden + row * hidden, job->f->routed + row * hidden, (uint32_t)hidden);
}

void kr_forward_experts(kr_forward *forward, const kr_rows *rows, uint32_t layer)
{
    kr_forward *f = forward;
    const uint32_t hidden = f->model->hidden;
    const kr_forward_layer *w = &f->layer[layer];
    kr_row_job job = {.f = f, .run = add_sum_row, .rows = rows->rows, .in = rows};

    kr_pass_check(f, rows);
    memset(f->routed, 0, (uint64_t)rows->rows * hidden * sizeof *f->routed);
    for (uint32_t e = 0; e < f->model->moe.experts; e++) {
        const kr_matrix *gate = &w->expert[3 * e], *up = gate + 1, *down = gate + 2;
        const uint32_t count = collect(f, rows, e);
        kr_row_job part = {.f = f, .run = add_routed_row, .rows = count, .in = rows};

        if (count == 0)
            continue;
        const kr_inputs in = kr_pass_prepare(f, f->expert_rows, NULL, NULL, count, hidden,
                                             gate->form | up->form);
        kr_pass_gated(f, &in, count, gate, up, down, f->product);
        kr_pass_rows(&part, hidden);
    }
    kr_pass_rows(&job, hidden);
}
