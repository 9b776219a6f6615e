/* One query row's attention in one layer, beside dense attention over the same keys and values, both
 * recomputed in double: what share of the dense softmax the selection holds, and how far the output is. */
#ifndef KR_EVAL_EVAL_ATTENTION_H
#define KR_EVAL_EVAL_ATTENTION_H

#include "method/view.h"

typedef struct {
    const kr_attention_shape *shape;
    const float *query;  /* [heads][key_dim], post-RoPE */
    const float *output; /* [heads][value_dim], what the method made of it */
    /* Rows of tokens [0, first) and [first, tokens), [kv_heads][dim] of the KV type each. */
    const uint8_t *key[2], *value[2];
    uint64_t first, tokens;
    /* Ascending units of each list, one list after the other; lists 0: everything is attended. A list
     * of none stands for a dense row. */
    uint32_t lists, unit_tokens;
    const uint32_t *count; /* [lists] */
    const uint32_t *unit;
} kr_eval_row_view;

/* Of one head. */
typedef struct {
    double recall;   /* dense softmax mass of the selected tokens; exactly 1 when all are selected */
    double error;    /* |output - dense output| / |dense output| */
    double attended; /* tokens selected */
} kr_eval_head;

/* head [heads]; weight [tokens] and sum [value_dim] are scratch. */
void kr_eval_attention(const kr_eval_row_view *row, double *weight, double *sum, kr_eval_head *head);

#endif
