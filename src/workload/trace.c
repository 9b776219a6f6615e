/* Building a trace: growth within the limits, the rules for turns and ids, the digest. */
#include "workload/trace.h"

#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/hash.h"
#include "base/num.h"

const char *kr_trace_format_name(kr_trace_format format)
{
    static const char *const names[KR_TRACE_FORMATS] = {
        "auto", "kvct", "runs", "mooncake", "llmservingsim", "copilot", "azure", "burstgpt", "synthetic",
    };

    return (unsigned)format < KR_TRACE_FORMATS ? names[format] : "?";
}

void kr_trace_free(kr_trace *trace)
{
    kr_free(trace->session);
    kr_free(trace->turn);
    kr_free(trace->run);
    *trace = (kr_trace){0};
}

/* Makes room for one more item of bytes. */
static kr_status grow(void **items, uint32_t count, uint32_t *capacity, uint32_t max, size_t bytes,
                      const char *path, const char *what, kr_err *err)
{
    uint32_t larger;
    void *moved;

    if (count < *capacity)
        return KR_OK;
    if (count == max)
        return kr_fail(err, KR_E_LIMIT, "%s: more than %u %s; split the trace", path, max, what);
    larger = *capacity == 0 ? 64 : *capacity > max / 2 ? max : *capacity * 2;
    moved = kr_realloc(*items, larger * bytes);
    if (moved == NULL)
        return kr_fail(err, KR_E_MEMORY, "%s: no memory for %u %s", path, larger, what);
    *items = moved;
    *capacity = larger;
    return KR_OK;
}

void kr_trace_builder_init(kr_trace_builder *builder, kr_trace *trace, const char *path)
{
    *builder = (kr_trace_builder){.trace = trace, .path = path};
}

void kr_trace_builder_free(kr_trace_builder *builder)
{
    kr_free(builder->previous);
    kr_free(builder->current);
}

kr_status kr_trace_begin(kr_trace_builder *b, const char *id, uint64_t line, kr_err *err)
{
    const size_t length = strlen(id);

    if (length == 0 || length >= KR_TRACE_ID_BYTES)
        return kr_fail(err, KR_E_FORMAT, "%s:%llu: a session's id must have 1 to %d bytes", b->path,
                       (unsigned long long)line, KR_TRACE_ID_BYTES - 1);
    b->session = (kr_trace_session){.parent = KR_TRACE_NO_PARENT, .first_turn = b->trace->turns};
    memcpy(b->session.id, id, length + 1);
    b->previous_runs = b->current_runs = 0;
    b->current_blocks = 0;
    b->blocks_up = false;
    return KR_OK;
}

kr_status kr_trace_block(kr_trace_builder *b, uint64_t first, uint64_t count, uint64_t line, kr_err *err)
{
    kr_block_run *last = b->current_runs > 0 ? &b->current[b->current_runs - 1] : NULL;
    void *items = b->current;
    kr_status status;

    if (count == 0 || count > KR_TRACE_BLOCKS_MAX - b->current_blocks || first > UINT64_MAX - (count - 1))
        return kr_fail(err, KR_E_LIMIT, "%s:%llu: a turn has 1 to %d blocks, with ids of 64 bits", b->path,
                       (unsigned long long)line, KR_TRACE_BLOCKS_MAX);
    b->current_blocks += count;
    if (last != NULL && first != 0 && last->first + (last->count - 1) == first - 1) {
        last->count += count;
        return KR_OK;
    }
    status = grow(&items, b->current_runs, &b->current_capacity, KR_TRACE_BLOCKS_MAX, sizeof *b->current,
                  b->path, "runs of ids in a turn", err);
    b->current = items;
    if (status == KR_OK)
        b->current[b->current_runs++] = (kr_block_run){first, count};
    return status;
}

static int by_first(const void *a, const void *b)
{
    const kr_block_run *x = a, *y = b;

    return x->first < y->first ? -1 : x->first > y->first;
}

/* Whether an id occurs twice among the runs; sorted is scratch of as many. */
static bool repeats(const kr_block_run *run, uint32_t runs, kr_block_run *sorted)
{
    memcpy(sorted, run, runs * sizeof *run);
    qsort(sorted, runs, sizeof *sorted, by_first);
    for (uint32_t i = 1; i < runs; i++)
        if (sorted[i].first - sorted[i - 1].first < sorted[i - 1].count)
            return true;
    return false;
}

/* Blocks that both lists begin with. */
static uint64_t common_blocks(const kr_trace_builder *b)
{
    uint64_t common = 0, used[2] = {0, 0};
    uint32_t i = 0, j = 0;

    while (i < b->previous_runs && j < b->current_runs &&
           b->previous[i].first + used[0] == b->current[j].first + used[1]) {
        const uint64_t left[2] = {b->previous[i].count - used[0], b->current[j].count - used[1]};
        const uint64_t n = left[0] < left[1] ? left[0] : left[1];

        common += n;
        used[0] = left[0] == n ? 0 : used[0] + n;
        used[1] = left[1] == n ? 0 : used[1] + n;
        i += left[0] == n;
        j += left[1] == n;
    }
    return common;
}

/* Puts the first kept blocks of the previous turn before the current ones. */
static kr_status prepend(kr_trace_builder *b, uint64_t kept, uint64_t line, kr_err *err)
{
    kr_block_run *own;
    const uint32_t runs = b->current_runs;
    kr_status status = KR_OK;

    if (kept == 0)
        return KR_OK;
    own = kr_alloc((runs + 1) * sizeof *own);
    if (own == NULL)
        return kr_fail(err, KR_E_MEMORY, "%s: no memory for %u runs", b->path, runs);
    if (runs != 0)
        memcpy(own, b->current, runs * sizeof *own);
    b->current_runs = 0;
    b->current_blocks = 0;
    for (uint32_t i = 0; kept > 0 && status == KR_OK; i++) {
        uint64_t n;

        if (i == b->previous_runs) {
            status = kr_fail(err, KR_E_FORMAT, "%s:%llu: keeps more blocks than the previous turn had",
                             b->path, (unsigned long long)line);
            break;
        }
        n = b->previous[i].count < kept ? b->previous[i].count : kept;
        status = kr_trace_block(b, b->previous[i].first, n, line, err);
        kept -= n;
    }
    for (uint32_t i = 0; i < runs && status == KR_OK; i++)
        status = kr_trace_block(b, own[i].first, own[i].count, line, err);
    kr_free(own);
    return status;
}

/* Appends what the turn's ids have beyond kept blocks to the trace's runs. */
static kr_status store_runs(kr_trace_builder *b, kr_trace_turn *turn, kr_err *err)
{
    kr_trace *t = b->trace;
    uint64_t skip = turn->kept_blocks;

    turn->first_run = t->runs;
    for (uint32_t i = 0; i < b->current_runs; i++) {
        const kr_block_run run = b->current[i];
        void *items = t->run;
        kr_status status;

        if (run.count <= skip) {
            skip -= run.count;
            continue;
        }
        status = grow(&items, t->runs, &t->run_capacity, KR_TRACE_RUNS_MAX, sizeof *t->run, b->path,
                      "runs of ids", err);
        t->run = items;
        if (status != KR_OK)
            return status;
        t->run[t->runs++] = (kr_block_run){run.first + skip, run.count - skip};
        skip = 0;
    }
    turn->runs = t->runs - turn->first_run;
    return KR_OK;
}

static kr_status check_blocks(kr_trace_builder *b, const kr_trace_turn *turn, uint64_t line, kr_err *err)
{
    const uint64_t size = b->session.block_tokens;
    const uint64_t expected = size == 0      ? 0
                              : b->blocks_up ? kr_ceil_div(turn->input_tokens, size)
                                             : turn->input_tokens / size;
    kr_block_run *sorted;
    bool twice;

    if (b->current_blocks != expected)
        return kr_fail(
            err, KR_E_FORMAT,
            "%s:%llu: %llu ids for %llu input tokens, blocks of %llu would give %llu; is the block "
            "size another?",
            b->path, (unsigned long long)line, (unsigned long long)b->current_blocks,
            (unsigned long long)turn->input_tokens, (unsigned long long)size, (unsigned long long)expected);
    if (b->current_runs < 2)
        return KR_OK;
    sorted = kr_alloc(b->current_runs * sizeof *sorted);
    if (sorted == NULL)
        return kr_fail(err, KR_E_MEMORY, "%s: no memory for %u runs", b->path, b->current_runs);
    twice = repeats(b->current, b->current_runs, sorted);
    kr_free(sorted);
    return twice ? kr_fail(err, KR_E_FORMAT, "%s:%llu: an id occurs twice in one turn", b->path,
                           (unsigned long long)line)
                 : KR_OK;
}

static void derive_cache(const kr_trace_builder *b, kr_trace_turn *turn, bool first, bool stated)
{
    const uint64_t before = first ? 0 : b->trace->turn[b->trace->turns - 1].input_tokens;

    turn->kept_blocks = first ? 0 : common_blocks(b);
    if (stated)
        return;
    if (b->session.block_tokens != 0)
        turn->cached_tokens = turn->kept_blocks * b->session.block_tokens;
    else
        turn->cached_tokens = before < turn->input_tokens ? before : turn->input_tokens;
    if (turn->cached_tokens > turn->input_tokens) /* a last block that is partly filled */
        turn->cached_tokens = turn->input_tokens;
}

kr_status kr_trace_add_turn(kr_trace_builder *b, const kr_trace_turn *given, bool stated_cache, uint64_t kept,
                            uint64_t line, kr_err *err)
{
    kr_trace *t = b->trace;
    const bool first = b->session.turns == 0;
    kr_trace_turn turn = *given;
    void *items = t->turn;
    kr_block_run *swap = b->previous;
    const uint32_t swap_capacity = b->previous_capacity;
    kr_status status;

    if (turn.input_tokens > KR_TRACE_TOKENS_MAX || turn.output_tokens > KR_TRACE_TOKENS_MAX ||
        turn.cached_tokens > turn.input_tokens)
        return kr_fail(err, KR_E_FORMAT,
                       "%s:%llu: a turn has at most %d tokens, and caches at most its input", b->path,
                       (unsigned long long)line, KR_TRACE_TOKENS_MAX);
    if (!first && turn.arrival_us < t->turn[t->turns - 1].arrival_us)
        return kr_fail(err, KR_E_FORMAT, "%s:%llu: a turn begins before the one above it; sort them by time",
                       b->path, (unsigned long long)line);
    status = prepend(b, kept, line, err);
    if (status == KR_OK)
        status = check_blocks(b, &turn, line, err);
    if (status != KR_OK)
        return status;
    derive_cache(b, &turn, first, stated_cache);
    status = store_runs(b, &turn, err);
    if (status == KR_OK)
        status = grow(&items, t->turns, &t->turn_capacity, KR_TRACE_TURNS_MAX, sizeof *t->turn, b->path,
                      "turns", err);
    t->turn = items;
    if (status != KR_OK)
        return status;
    t->turn[t->turns++] = turn;
    b->session.turns++;
    b->previous = b->current;
    b->previous_runs = b->current_runs;
    b->previous_capacity = b->current_capacity;
    b->current = swap;
    b->current_capacity = swap_capacity;
    b->current_runs = 0;
    b->current_blocks = 0;
    return KR_OK;
}

kr_status kr_trace_end(kr_trace_builder *b, uint64_t line, kr_err *err)
{
    kr_trace *t = b->trace;
    void *items = t->session;
    kr_status status;

    if (b->session.turns == 0)
        return kr_fail(err, KR_E_FORMAT, "%s:%llu: session %s has no turn", b->path, (unsigned long long)line,
                       b->session.id);
    status = grow(&items, t->sessions, &t->session_capacity, KR_TRACE_SESSIONS_MAX, sizeof *t->session,
                  b->path, "sessions", err);
    t->session = items;
    if (status == KR_OK)
        t->session[t->sessions++] = b->session;
    return status;
}

typedef struct {
    uint64_t hash;
    uint32_t session;
} named;

static int by_hash(const void *a, const void *b)
{
    const named *x = a, *y = b;

    return x->hash != y->hash ? (x->hash < y->hash ? -1 : 1) : x->session < y->session ? -1 : 1;
}

static kr_status check_names(const kr_trace *t, const char *path, kr_err *err)
{
    named *list = kr_alloc((t->sessions + 1) * sizeof *list);
    kr_status status = KR_OK;

    if (list == NULL)
        return kr_fail(err, KR_E_MEMORY, "%s: no memory for %u names", path, t->sessions);
    for (uint32_t s = 0; s < t->sessions; s++)
        list[s] = (named){kr_hash64(t->session[s].id, strlen(t->session[s].id), 0), s};
    qsort(list, t->sessions, sizeof *list, by_hash);
    for (uint32_t i = 1; i < t->sessions && status == KR_OK; i++)
        if (strcmp(t->session[list[i].session].id, t->session[list[i - 1].session].id) == 0)
            status = kr_fail(err, KR_E_EXISTS, "%s: sessions %u and %u have the same id %s", path,
                             list[i - 1].session + 1, list[i].session + 1, t->session[list[i].session].id);
    kr_free(list);
    return status;
}

kr_status kr_trace_seal(kr_trace *t, const char *path, kr_err *err)
{
    const kr_status status = check_names(t, path, err);

    if (status != KR_OK)
        return status;
    t->digest = 0;
    for (uint32_t s = 0; s < t->sessions; s++) {
        const kr_trace_session *session = &t->session[s];

        t->digest = kr_digest_add(t->digest, kr_hash64(session->id, strlen(session->id), 0));
        for (uint32_t i = 0; i < session->turns; i++) {
            const kr_trace_turn *turn = &t->turn[session->first_turn + i];

            t->digest = kr_digest_add(t->digest, turn->arrival_us);
            t->digest = kr_digest_add(t->digest, turn->input_tokens);
            t->digest = kr_digest_add(t->digest, turn->output_tokens);
            t->digest = kr_digest_add(t->digest, turn->cached_tokens);
        }
    }
    return KR_OK;
}
