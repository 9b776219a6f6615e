/* What the compute ops are made of: passes of the team over rows and over matrix outputs. A pass over few
 * rows runs on the caller alone, since waking the others would cost more. No row's result depends on the
 * others or on how a pass is cut. */
#ifndef KR_ENGINE_FORWARD_PASS_H
#define KR_ENGINE_FORWARD_PASS_H

#include "engine/forward_state.h"

enum { KR_PRODUCTS_MAX = 3 };

/* A pass over rows: run is called for each, on any thread. */
typedef struct kr_row_job kr_row_job;
struct kr_row_job {
    kr_forward *f;
    void (*run)(const kr_row_job *job, uint32_t row);
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
};

/* columns: of the widest row touched, which tells how much work a row is. */
void kr_pass_rows(kr_row_job *job, uint32_t columns);
/* Rounds a row of job->columns to job->forms. */
void kr_pass_round(const kr_row_job *job, const float *x, uint32_t row);
/* Input rows of an op's matrices in the forms they want: source, normed where norm is given. */
kr_inputs kr_pass_prepare(kr_forward *f, const float *source, const uint32_t *index, const float *norm,
                          uint32_t rows, uint32_t columns, uint32_t forms);

typedef struct {
    const kr_matrix *matrix;
    float *out;
    uint64_t out_stride;
} kr_product;

/* Up to KR_PRODUCTS_MAX products of the same inputs in one pass. */
void kr_pass_multiply(kr_forward *f, const kr_inputs *inputs, uint32_t rows, const kr_product *products,
                      uint32_t count);
/* out [rows][hidden] = down (activation(gate x) * up x), gate and up of equal width. */
void kr_pass_gated(kr_forward *f, const kr_inputs *inputs, uint32_t rows, const kr_matrix *gate,
                   const kr_matrix *up, const kr_matrix *down, float *out);
/* hidden += f->product, normed first where a norm is given: the end of both halves of a layer. */
void kr_pass_add(kr_forward *f, const kr_rows *rows, const float *post_norm);

/* The rotary tables of these positions: found from an earlier layer, or computed. */
kr_forward_angles *kr_pass_angles(kr_forward *f, const kr_rows *rows);
/* Table of rope i of the model (KR_FORWARD_ROPES) at a row. */
static inline const float *kr_pass_table(const kr_forward *f, const kr_forward_angles *angles, uint32_t i,
                                         uint32_t row)
{
    return angles->table[i] + (uint64_t)row * 2 * f->rope[i]->dims;
}

void kr_pass_check(const kr_forward *f, const kr_rows *rows);
/* n numbers into a row of keys or values. */
void kr_pass_store_kv(const kr_forward *f, const float *x, void *rows, uint32_t row, uint32_t n);

/* Bodies of ops for models with latent attention (forward_mla.c). */
void kr_forward_qkv_latent(kr_forward *f, const kr_rows *rows, uint32_t layer);

#endif
