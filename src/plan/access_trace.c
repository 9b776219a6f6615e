/* Reads of Score and Gather as lines of a trace. */
#include "plan/access_trace.h"

#include <string.h>

#include "base/rng.h"

typedef struct {
    const kr_method_plan *plan;
    const kr_attention_shape *shape;
    kr_layout layout;
    uint64_t page_bytes, tokens;
    uint32_t access_bytes;
    FILE *out;
    uint64_t lines, last; /* last: address of the newest line, so that neighbours share one */
} writer;

/* All accesses that touch [begin, begin + bytes). */
static void read_bytes(writer *w, uint64_t begin, uint64_t bytes)
{
    const uint64_t mask = ~(uint64_t)(w->access_bytes - 1);

    for (uint64_t a = begin & mask; a < begin + bytes; a += w->access_bytes) {
        if (w->lines != 0 && a == w->last)
            continue;
        fprintf(w->out, "LD 0x%llx\n", (unsigned long long)a);
        w->last = a;
        w->lines++;
    }
}

static uint64_t block_of(const writer *w, uint64_t token)
{
    return token / KR_PAGE_TOKENS * w->page_bytes + w->layout.block_offset;
}

static uint64_t score(writer *w)
{
    const uint64_t per_token = w->layout.index_bytes / KR_PAGE_TOKENS;
    uint64_t sum = 0;

    for (uint64_t t = 0; t < w->tokens; t += KR_PAGE_TOKENS) {
        const uint64_t left = w->tokens - t < KR_PAGE_TOKENS ? w->tokens - t : KR_PAGE_TOKENS;

        read_bytes(w, block_of(w, t) + w->layout.index_offset, left * per_token);
        sum += left * per_token;
    }
    return sum;
}

/* Keys and values of one token, head after head. */
static uint64_t gather_token(writer *w, uint64_t token)
{
    const kr_attention_shape *s = w->shape;
    const uint64_t element = kr_dtype_bytes(s->kv_dtype), in_page = token % KR_PAGE_TOKENS;
    const uint64_t key = s->key_dim * element, value = s->latent ? 0 : s->value_dim * element;

    for (uint64_t h = 0; h < s->kv_heads; h++) {
        const uint64_t row = h * KR_PAGE_TOKENS + in_page;

        read_bytes(w, block_of(w, token) + w->layout.key_offset + row * key, key);
        if (value != 0)
            read_bytes(w, block_of(w, token) + w->layout.value_offset + row * value, value);
    }
    return s->kv_heads * (key + value);
}

/* Selects units tokens-wide runs in ascending order, each with the same chance. */
static uint64_t gather(writer *w, uint64_t seed)
{
    const uint64_t unit = w->plan->unit_tokens, units = kr_ceil_div(w->tokens, unit);
    const uint64_t wanted = w->plan->selected_max / unit;
    uint64_t left = wanted < units ? wanted : units, sum = 0;
    kr_rng rng = kr_rng_make(seed, 0x6163u);

    for (uint64_t u = 0; u < units && left != 0; u++) {
        if (kr_rng_below(&rng, units - u) >= left)
            continue;
        left--;
        for (uint64_t t = u * unit; t < (u + 1) * unit && t < w->tokens; t++)
            sum += gather_token(w, t);
    }
    return sum;
}

kr_status kr_access_trace_write(const kr_scenario *scenario, uint64_t context_tokens, uint32_t access_bytes,
                                uint64_t seed, FILE *out, kr_access_sums *sums, kr_err *err)
{
    const kr_program *p = &scenario->program;
    writer w = {.tokens = context_tokens, .access_bytes = access_bytes, .out = out};
    uint32_t layer = 0;
    kr_status status;

    if (access_bytes == 0 || (access_bytes & (access_bytes - 1)) != 0 || context_tokens == 0)
        return kr_fail(err, KR_E_ARG, "plan: accesses of %u bytes over %llu tokens", access_bytes,
                       (unsigned long long)context_tokens);
    while (layer < p->model->layers &&
           (p->plan[layer].dense || !p->plan[layer].owns_index || p->plan[layer].page_index_bytes == 0 ||
            p->plan[layer].keys != KR_KEYS_ROWS))
        layer++;
    if (layer == p->model->layers)
        return kr_fail(err, KR_E_UNSUPPORTED, "plan: no layer of %s keeps an index and rows in its pages",
                       p->model->name);
    status = kr_program_layout(p, layer, &w.layout, &w.page_bytes, err);
    if (status != KR_OK)
        return status;
    w.plan = &p->plan[layer];
    w.shape = &p->shape[layer];
    *sums = (kr_access_sums){.layer = layer};
    sums->score_bytes = score(&w);
    sums->gather_bytes = gather(&w, seed);
    sums->lines = w.lines;
    return ferror(out) ? kr_fail(err, KR_E_IO, "the access trace cannot be written") : KR_OK;
}
