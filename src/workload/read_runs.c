/* karat's run-length form, read and written. A turn is an array of eight: arrival, input, output,
 * think, api, cached, kept blocks, runs. */
#include <inttypes.h>
#include <string.h>

#include "workload/read.h"

static kr_status runs_of(kr_trace_builder *b, kr_scan *s, kr_err *err)
{
    kr_status status = kr_scan_expect(s, KR_SCAN_ARRAY, "an array of runs", err);

    while (status == KR_OK) {
        uint64_t first, count = 0;

        status = kr_scan_next(s, err);
        if (status != KR_OK || s->kind == KR_SCAN_ARRAY_END)
            return status;
        if (s->kind != KR_SCAN_INTEGER)
            return kr_fail(err, KR_E_FORMAT, "%s:%llu: an id must be an integer below 2^64", s->path,
                           (unsigned long long)s->line);
        first = s->u64;
        status = kr_scan_u64(s, "count of a run", KR_TRACE_BLOCKS_MAX, &count, err);
        if (status == KR_OK)
            status = kr_trace_block(b, first, count, s->line, err);
    }
    return status;
}

/* Behind the array's opening bracket. */
static kr_status one_turn(kr_trace_builder *b, kr_scan *s, kr_err *err)
{
    kr_trace_turn turn = {.think_us = KR_TRACE_NONE, .api_us = KR_TRACE_NONE};
    uint64_t kept = 0;
    kr_status status = kr_scan_time(s, "arrival", 1.0, &turn.arrival_us, err);

    if (status == KR_OK)
        status = kr_scan_u64(s, "input", KR_TRACE_TOKENS_MAX, &turn.input_tokens, err);
    if (status == KR_OK)
        status = kr_scan_u64(s, "output", KR_TRACE_TOKENS_MAX, &turn.output_tokens, err);
    if (status == KR_OK)
        status = kr_scan_time(s, "think", 1.0, &turn.think_us, err);
    if (status == KR_OK)
        status = kr_scan_time(s, "api", 1.0, &turn.api_us, err);
    if (status == KR_OK)
        status = kr_scan_u64(s, "cached", KR_TRACE_TOKENS_MAX, &turn.cached_tokens, err);
    if (status == KR_OK)
        status = kr_scan_u64(s, "kept blocks", KR_TRACE_BLOCKS_MAX, &kept, err);
    if (status == KR_OK)
        status = runs_of(b, s, err);
    if (status == KR_OK)
        status = kr_scan_expect(s, KR_SCAN_ARRAY_END, "the end of a turn", err);
    return status == KR_OK ? kr_trace_add_turn(b, &turn, true, kept, s->line, err) : status;
}

static kr_status turns(kr_trace_builder *b, kr_scan *s, kr_err *err)
{
    kr_status status = kr_scan_expect(s, KR_SCAN_ARRAY, "an array of turns", err);

    while (status == KR_OK) {
        status = kr_scan_next(s, err);
        if (status != KR_OK || s->kind == KR_SCAN_ARRAY_END)
            return status;
        if (s->kind != KR_SCAN_ARRAY)
            return kr_fail(err, KR_E_FORMAT, "%s:%llu: a turn must be an array", s->path,
                           (unsigned long long)s->line);
        status = one_turn(b, s, err);
    }
    return status;
}

static kr_status parent_of(kr_trace_builder *b, uint32_t before, kr_scan *s, kr_err *err)
{
    const kr_status status = kr_scan_next(s, err);

    if (status != KR_OK || s->kind == KR_SCAN_NULL)
        return status;
    if (s->kind != KR_SCAN_INTEGER || s->u64 >= b->trace->sessions - before)
        return kr_fail(err, KR_E_FORMAT, "%s:%llu: parent must be the number of an earlier session", s->path,
                       (unsigned long long)s->line);
    b->session.parent = before + (uint32_t)s->u64;
    return KR_OK;
}

/* before: sessions of the trace that are not of this file. */
static kr_status one_session(kr_trace_builder *b, uint32_t before, kr_scan *s, kr_err *err)
{
    kr_status status = KR_OK;
    uint64_t block = 0;
    bool named = false, done = false;

    while (status == KR_OK) {
        status = kr_scan_next(s, err);
        if (status != KR_OK || s->kind == KR_SCAN_OBJECT_END)
            break;
        if (strcmp(s->text, "id") == 0 && !named) {
            status = kr_scan_expect(s, KR_SCAN_STRING, "a string", err);
            if (status == KR_OK)
                status = kr_trace_begin(b, s->text, s->line, err);
            named = true;
        } else if (!named) {
            return kr_fail(err, KR_E_FORMAT, "%s:%llu: id must be a session's first key", s->path,
                           (unsigned long long)s->line);
        } else if (strcmp(s->text, "block") == 0) {
            status = kr_scan_u64(s, "block", 1 << 20, &block, err);
            b->session.block_tokens = (uint32_t)block;
            b->blocks_up = false;
        } else if (strcmp(s->text, "block_up") == 0) {
            status = kr_scan_u64(s, "block_up", 1 << 20, &block, err);
            b->session.block_tokens = (uint32_t)block;
            b->blocks_up = true;
        } else if (strcmp(s->text, "prefix") == 0) {
            status = kr_scan_u64(s, "prefix", UINT64_MAX, &b->session.prefix_tokens, err);
        } else if (strcmp(s->text, "start") == 0) {
            status = kr_scan_time(s, "start", 1.0, &b->session.start_us, err);
        } else if (strcmp(s->text, "parent") == 0) {
            status = parent_of(b, before, s, err);
        } else if (strcmp(s->text, "turns") == 0 && !done) {
            status = turns(b, s, err);
            done = true;
        } else {
            return kr_fail(err, KR_E_FORMAT, "%s:%llu: unknown or repeated key %s", s->path,
                           (unsigned long long)s->line, s->text);
        }
    }
    if (status == KR_OK && !named)
        return kr_fail(err, KR_E_FORMAT, "%s:%llu: a session without an id", s->path,
                       (unsigned long long)s->line);
    return status == KR_OK ? kr_trace_end(b, s->line, err) : status;
}

static kr_status header(kr_scan *s, kr_err *err)
{
    uint64_t version = 0;
    kr_status status = kr_scan_expect(s, KR_SCAN_OBJECT, "the header", err);

    if (status == KR_OK)
        status = kr_scan_expect(s, KR_SCAN_KEY, "karat_trace", err);
    if (status == KR_OK)
        status = kr_scan_u64(s, "karat_trace", UINT32_MAX, &version, err);
    if (status == KR_OK && version != 1)
        status = kr_fail(err, KR_E_VERSION, "%s: trace version %llu, this program reads 1", s->path,
                         (unsigned long long)version);
    return status == KR_OK ? kr_scan_expect(s, KR_SCAN_OBJECT_END, "the end of the header", err) : status;
}

kr_status kr_read_runs(kr_scan *scan, kr_trace *trace, kr_err *err)
{
    const uint32_t before = trace->sessions;
    kr_trace_builder b;
    kr_status status = header(scan, err);

    kr_trace_builder_init(&b, trace, scan->path);
    while (status == KR_OK) {
        status = kr_scan_next(scan, err);
        if (status != KR_OK || scan->kind == KR_SCAN_END)
            break;
        status = scan->kind == KR_SCAN_OBJECT
                     ? one_session(&b, before, scan, err)
                     : kr_fail(err, KR_E_FORMAT, "%s:%llu: a session must be an object", scan->path,
                               (unsigned long long)scan->line);
    }
    kr_trace_builder_free(&b);
    return status;
}

static void write_time(uint64_t us, FILE *out)
{
    if (us == KR_TRACE_NONE)
        fputs("null,", out);
    else
        fprintf(out, "%" PRIu64 ",", us);
}

static void write_turn(const kr_trace *trace, const kr_trace_turn *turn, FILE *out)
{
    fprintf(out, "[%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",", turn->arrival_us, turn->input_tokens,
            turn->output_tokens);
    write_time(turn->think_us, out);
    write_time(turn->api_us, out);
    fprintf(out, "%" PRIu64 ",%" PRIu64 ",[", turn->cached_tokens, turn->kept_blocks);
    for (uint32_t r = 0; r < turn->runs; r++)
        fprintf(out, "%s%" PRIu64 ",%" PRIu64, r > 0 ? "," : "", trace->run[turn->first_run + r].first,
                trace->run[turn->first_run + r].count);
    fputs("]]", out);
}

/* A string of JSON: control bytes cannot be in an id that was read, but could in a generator's. */
static void write_string(const char *text, FILE *out)
{
    fputc('"', out);
    for (; *text != '\0'; text++) {
        if (*text == '"' || *text == '\\')
            fputc('\\', out);
        fputc((unsigned char)*text < 0x20 ? '?' : *text, out);
    }
    fputc('"', out);
}

/* Whether the session's blocks are rounded up: then a turn has more than floor(input / size). */
static bool rounds_up(const kr_trace *trace, const kr_trace_session *session)
{
    for (uint32_t t = 0; session->block_tokens != 0 && t < session->turns; t++) {
        const kr_trace_turn *turn = &trace->turn[session->first_turn + t];
        uint64_t blocks = turn->kept_blocks;

        for (uint32_t r = 0; r < turn->runs; r++)
            blocks += trace->run[turn->first_run + r].count;
        if (blocks > turn->input_tokens / session->block_tokens)
            return true;
    }
    return false;
}

kr_status kr_trace_write_runs(const kr_trace *trace, FILE *out, kr_err *err)
{
    fputs("{\"karat_trace\":1}\n", out);
    for (uint32_t s = 0; s < trace->sessions; s++) {
        const kr_trace_session *session = &trace->session[s];

        fputs("{\"id\":", out);
        write_string(session->id, out);
        fprintf(out, ",\"%s\":%" PRIu32 ",\"prefix\":%" PRIu64 ",\"start\":%" PRIu64 ",\"parent\":",
                rounds_up(trace, session) ? "block_up" : "block", session->block_tokens,
                session->prefix_tokens, session->start_us);
        if (session->parent == KR_TRACE_NO_PARENT)
            fputs("null", out);
        else
            fprintf(out, "%" PRIu32, session->parent);
        fputs(",\"turns\":[", out);
        for (uint32_t t = 0; t < session->turns; t++) {
            if (t > 0)
                fputc(',', out);
            write_turn(trace, &trace->turn[session->first_turn + t], out);
        }
        fputs("]}\n", out);
    }
    return ferror(out) ? kr_fail(err, KR_E_IO, "the trace cannot be written") : KR_OK;
}
