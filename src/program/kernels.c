/* An op as the kernels that an accelerator launches: shapes and types of its matrix products, and how
 * many small kernels stand around them. The counts are those of a serving engine's decode path: a norm
 * with its residual, one quantisation before each FP8 product, rotary, the gated activation. */
#include "program/program.h"

static kr_dtype type_of_bytes(double bytes) { return bytes > 3.0 ? KR_F32 : bytes > 1.5 ? KR_BF16 : KR_E4M3; }

static kr_dtype wide_type(const kr_model *m)
{
    return type_of_bytes(m->weight_bytes_wide > 0.0 ? m->weight_bytes_wide : m->weight_bytes_dense);
}

kr_dtype kr_program_math(const kr_program *program, kr_op_kind kind, uint32_t layer)
{
    const kr_model *m = program->model;

    switch (kind) {
    case KR_OP_EXPERTS:
        return type_of_bytes(m->weight_bytes_experts);
    case KR_OP_EMBED:
    case KR_OP_ROUTER:
    case KR_OP_HEAD:
    case KR_OP_SAMPLE:
        return wide_type(m);
    case KR_OP_SCORE:
        return program->plan[layer].separate_index_query ? m->index_dtype : m->kv_dtype;
    case KR_OP_SELECT:
    case KR_OP_APPEND:
    case KR_OP_GATHER:
    case KR_OP_ATTEND:
        return m->kv_dtype;
    default:
        return type_of_bytes(m->weight_bytes_dense);
    }
}

typedef struct {
    const kr_model *m;
    uint32_t tp, heads; /* heads of one accelerator */
    kr_dtype dense;     /* type of dense weights */
} shapes;

/* One product and the small kernels around it; in FP8 one more quantises the rows. */
static void add(kr_op_kernels *k, uint64_t in, uint64_t out, kr_dtype math, uint32_t small)
{
    k->matrix[k->matrices++] = (kr_matrix){
        .in = (uint32_t)in, .out = (uint32_t)out, .count = 1, .math = math};
    k->small = (uint8_t)(k->small + small + (math == KR_E4M3));
}

static void add_qkv(const shapes *s, kr_op_kernels *k)
{
    const kr_model *m = s->m;
    const uint64_t kv_heads = kr_ceil_div(m->kv_heads, s->tp);

    /* Norm with residual and rotary; MLA also norms both latent rows. */
    if (m->attention == KR_ATTENTION_MLA)
        add(k, m->hidden, (uint64_t)m->q_lora + m->kv_lora + m->rope_dim, s->dense, 4);
    else
        add(k, m->hidden,
            (uint64_t)s->heads * m->head_dim + kv_heads * (m->head_dim + (uint64_t)m->value_dim), s->dense,
            2);
}

static void add_index(const shapes *s, kr_op_kernels *k)
{
    const kr_model *m = s->m;
    const bool dsa = m->indexer == KR_INDEXER_DSA;
    const uint64_t query = (uint64_t)m->index_heads * m->index_dim;

    /* Norm of the key, rotary, and the form in which query and key are scored. */
    add(k, dsa ? m->q_lora : m->hidden, query, s->dense, 3);
    add(k, m->hidden, m->index_dim, s->dense, 0);
    if (dsa)
        add(k, m->hidden, m->index_heads, wide_type(m), 0);
}

static void add_ffn(const shapes *s, kr_op_kernels *k, uint64_t width, uint32_t small)
{
    add(k, s->m->hidden, 2 * width, s->dense, small);
    add(k, width, s->m->hidden, s->dense, s->dense == KR_E4M3 ? 0 : 1);
}

/* A product for each head: out of a row's nope or latent part. */
static kr_matrix per_head(const shapes *s, uint32_t in, uint32_t out)
{
    /* Served engines keep W_uk and W_uv in BF16. */
    return (kr_matrix){.in = in, .out = out, .count = s->heads, .math = KR_BF16};
}

static void fill_projection(const shapes *s, kr_op_kind kind, kr_op_kernels *k)
{
    const kr_model *m = s->m;

    switch (kind) {
    case KR_OP_QKV:
        add_qkv(s, k);
        break;
    case KR_OP_Q_UP:
        add(k, m->q_lora, (uint64_t)s->heads * m->head_dim, s->dense, 0);
        break;
    case KR_OP_ABSORB:
        k->matrix[k->matrices++] = k->unit = per_head(s, m->nope_dim, m->kv_lora);
        break;
    case KR_OP_V_UP:
        k->matrix[k->matrices++] = k->unit = per_head(s, m->kv_lora, m->value_dim);
        break;
    case KR_OP_INDEX_PROJECT:
        add_index(s, k);
        break;
    case KR_OP_O_PROJ:
        add(k, (uint64_t)s->heads * m->value_dim, m->hidden, s->dense, 0);
        break;
    default:
        break;
    }
}

static void fill_rest(const shapes *s, kr_op_kind kind, kr_op_kernels *k)
{
    const kr_model *m = s->m;

    switch (kind) {
    case KR_OP_EMBED:
    case KR_OP_SAMPLE:
        k->small = 1;
        break;
    case KR_OP_ROUTER: /* norm with residual before, the choice of experts after */
        add(k, m->hidden, m->moe.experts, wide_type(m), 2);
        break;
    case KR_OP_SHARED_EXPERT:
        add_ffn(s, k, kr_ceil_div((uint64_t)m->moe.shared * m->moe.shared_width, s->tp), 0);
        break;
    case KR_OP_FFN: /* norm with residual before */
        add_ffn(s, k, kr_ceil_div(m->ffn_width, s->tp), 1);
        break;
    case KR_OP_HEAD:
        add(k, m->hidden, kr_ceil_div(m->vocab, s->tp), wide_type(m), 1);
        break;
    default:
        break;
    }
}

kr_op_kernels kr_program_kernels(const kr_program *program, kr_op_kind kind, uint32_t layer)
{
    const kr_model *m = program->model;
    const kr_parallel *parallel = &program->parallel;
    const shapes s = {m, parallel->tp, m->heads / parallel->tp, type_of_bytes(m->weight_bytes_dense)};
    const kr_dtype math = kr_program_math(program, kind, layer);
    kr_op_kernels k = {0};

    if (kind == KR_OP_EXPERTS)
        k.unit = (kr_matrix){m->hidden, m->moe.width, (uint32_t)kr_ceil_div(m->moe.experts, parallel->ep),
                             math};
    else if (kind == KR_OP_ATTEND)
        k.unit = (kr_matrix){program->shape[layer].key_dim, program->shape[layer].value_dim, s.heads, math};
    else if (kind == KR_OP_DISPATCH || kind == KR_OP_COMBINE || kind == KR_OP_REDUCE)
        k.unit = (kr_matrix){m->hidden, m->moe.active, 1, math};
    else if (kind <= KR_OP_O_PROJ)
        fill_projection(&s, kind, &k);
    if (kind == KR_OP_EMBED || kind > KR_OP_O_PROJ)
        fill_rest(&s, kind, &k);
    return k;
}
