/* The loop over steps: packing prompts, batching decode, judging tokens. */
#include "engine/generate.h"

#include "base/arena.h"
#include "base/check.h"
#include "files/tokenizer.h"

const char *kr_finish_name(kr_finish finish)
{
    static const char *const name[] = {"none", "stop", "length"};
    return (unsigned)finish < sizeof name / sizeof name[0] ? name[finish] : "?";
}

/* What one call works with; item and owner are [count * micro-batches] at most. */
typedef struct {
    kr_engine *engine;
    kr_request *request;
    uint32_t count;
    kr_generation *generation;
    const struct kr_tokenizer *tokenizer;
    kr_step_item *item;
    uint32_t *owner; /* request of item */
    uint32_t items;
} run;

static uint64_t pending(const kr_session *session)
{
    uint64_t tokens;
    kr_session_tokens(session, &tokens);
    return tokens - kr_session_kv_tokens(session);
}

/* The token that a step appended for a request: reported, counted, and judged. */
static void take_token(run *r, uint32_t owner, uint32_t token)
{
    kr_request *request = &r->request[owner];
    request->produced++;
    if (!request->ignore_end && kr_tokenizer_is_end(r->tokenizer, token))
        request->finish = KR_FINISH_STOP;
    else if (request->produced == request->tokens_max)
        request->finish = KR_FINISH_LENGTH;
    if (r->generation->on_token != NULL)
        r->generation->on_token(r->generation->context, owner, token);
}

/* Packs the next chunks into the micro-batches, requests in order from the first that still has
 * prompt; returns the rows. A request is in items once a micro-batch at most: what is left of a prompt
 * either fits into the room or fills it. */
static uint64_t pack_prefill(run *r, uint32_t first)
{
    const uint32_t chunk = r->generation->chunk, mbs = kr_engine_program(r->engine)->parallel.micro_batches;
    uint64_t taken = 0, rows = 0;
    uint32_t owner = first;
    r->items = 0;
    for (uint32_t mb = 0; mb < mbs; mb++) {
        for (uint32_t room = chunk; room != 0 && owner < r->count;) {
            const uint64_t left = pending(r->request[owner].session) - taken;
            const uint32_t tokens = left < room ? (uint32_t)left : room;
            const bool last = tokens == left;
            r->owner[r->items] = owner;
            r->item[r->items++] = (kr_step_item){.session = r->request[owner].session,
                                                 .tokens = tokens,
                                                 .micro_batch = mb,
                                                 .prefill = true,
                                                 .want = last ? KR_WANT_TOKEN : KR_WANT_NOTHING};
            room -= tokens;
            rows += tokens;
            taken = last ? 0 : taken + tokens;
            owner += last;
        }
    }
    return rows;
}

/* Methods that build at the end of a prompt do so before the first decode step. */
static kr_status finish_prompts(run *r, kr_err *err)
{
    for (uint32_t i = 0; i < r->items; i++) {
        if (r->item[i].want != KR_WANT_TOKEN)
            continue;
        kr_status status = kr_session_end_prefill(r->item[i].session, err);
        if (status != KR_OK)
            return status;
        take_token(r, r->owner[i], r->item[i].token);
    }
    return KR_OK;
}

static kr_status prefill(run *r, kr_err *err)
{
    kr_generation *g = r->generation;
    uint64_t all = 0, done = 0;
    for (uint32_t i = 0; i < r->count; i++)
        all += pending(r->request[i].session);
    for (uint32_t first = 0; first < r->count;) {
        const uint64_t rows = pack_prefill(r, first);
        kr_status status = kr_engine_step(r->engine, r->item, r->items, err);
        if (status == KR_OK)
            status = finish_prompts(r, err);
        if (status != KR_OK)
            return status;
        while (first < r->count && r->request[first].produced != 0)
            first++;
        done += rows;
        if (g->on_prefill != NULL)
            g->on_prefill(g->context, done, all);
    }
    g->times.prompt_tokens += all;
    return KR_OK;
}

static kr_status decode(run *r, kr_err *err)
{
    kr_generation *g = r->generation;
    for (;;) {
        r->items = 0;
        for (uint32_t i = 0; i < r->count; i++) {
            kr_request *request = &r->request[i];
            if (request->finish != KR_FINISH_NONE)
                continue;
            r->owner[r->items] = i;
            r->item[r->items++] = (kr_step_item){.session = request->session,
                                                 .tokens = 1,
                                                 .want = KR_WANT_TOKEN,
                                                 .micro_batch = kr_session_micro_batch(request->session)};
        }
        if (r->items == 0)
            return KR_OK;
        kr_status status = kr_engine_step(r->engine, r->item, r->items, err);
        if (status != KR_OK)
            return status;
        for (uint32_t i = 0; i < r->items; i++)
            take_token(r, r->owner[i], r->item[i].token);
        g->times.decode_tokens += r->items;
        g->times.decode_steps++;
    }
}

static kr_status run_phases(run *r, kr_err *err)
{
    const kr_clock *clock = kr_engine_clock(r->engine);
    kr_generate_times *times = &r->generation->times;
    uint64_t begin = kr_now_ns(clock);
    kr_status status = prefill(r, err);
    times->prefill_ns += kr_now_ns(clock) - begin;
    if (status != KR_OK)
        return status;
    begin = kr_now_ns(clock);
    status = decode(r, err);
    times->decode_ns += kr_now_ns(clock) - begin;
    return status;
}

kr_status kr_generate(kr_engine *engine, kr_request *requests, uint32_t count, kr_generation *generation,
                      kr_err *err)
{
    const uint64_t items = (uint64_t)count + kr_engine_program(engine)->parallel.micro_batches;
    KR_CHECK(generation->chunk != 0);
    for (uint32_t i = 0; i < count; i++) {
        KR_CHECK(requests[i].tokens_max != 0 && pending(requests[i].session) != 0);
        requests[i].produced = 0;
        requests[i].finish = KR_FINISH_NONE;
    }
    run r = {.engine = engine,
             .request = requests,
             .count = count,
             .generation = generation,
             .tokenizer = kr_engine_tokenizer(engine),
             .item = kr_alloc(items * sizeof *r.item),
             .owner = kr_alloc(items * sizeof *r.owner)};
    kr_status status = KR_OK;
    if (r.item == NULL || r.owner == NULL)
        status = kr_fail(err, KR_E_MEMORY, "no memory for a batch of %u requests", count);
    if (status == KR_OK)
        status = run_phases(&r, err);
    kr_free(r.item);
    kr_free(r.owner);
    return status;
}

kr_status kr_force(kr_engine *engine, kr_session *session, uint32_t chunk, float *scratch,
                   void (*on_logits)(void *context, uint64_t position, const float *logits), void *context,
                   kr_err *err)
{
    const uint32_t vocab = kr_engine_model(engine)->vocab;
    while (pending(session) != 0) {
        const uint64_t position = kr_session_kv_tokens(session), left = pending(session);
        const uint32_t rows = chunk == 0 ? 1 : (uint32_t)(left < chunk ? left : chunk);
        kr_step_item item = {.session = session,
                             .tokens = rows,
                             .prefill = chunk != 0,
                             .want = KR_WANT_ALL_LOGITS,
                             .logits = scratch};
        kr_status status = kr_engine_step(engine, &item, 1, err);
        if (status != KR_OK)
            return status;
        for (uint32_t i = 0; i < rows; i++)
            on_logits(context, position + i, scratch + (uint64_t)i * vocab);
    }
    return chunk == 0 ? KR_OK : kr_session_end_prefill(session, err);
}
