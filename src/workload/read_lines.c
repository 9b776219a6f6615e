/* JSON lines of three makers: Mooncake (a request a line), LLMServingSim (a request or a session a
 * line) and GitHub Copilot's coding agent (a session a line).
 *
 * Rules. Mooncake: requests in order of time, ceil(input_length / block) ids, each request a session of
 * its own, since the trace names none. LLMServingSim: any order of lines, as its own reader has it; the
 * ids of input_tok_ids are token ids, which are counted and not kept; a session has at least one
 * sub-request. Copilot: calls of a session in order of time; cached is the maker's own count. */
#include <string.h>

#include "workload/read.h"

static kr_status wrong(const kr_scan *s, kr_err *err, const char *what)
{
    return kr_fail(err, KR_E_FORMAT, "%s:%llu: %s", s->path, (unsigned long long)s->line, what);
}

static void line_id(char id[KR_TRACE_ID_BYTES], const kr_trace *trace)
{
    snprintf(id, KR_TRACE_ID_BYTES, "request %u", trace->sessions + 1);
}

/* ---- Mooncake ---- */

static kr_status mooncake_ids(kr_trace_builder *b, kr_scan *s, kr_err *err)
{
    kr_status status = kr_scan_expect(s, KR_SCAN_ARRAY, "an array of ids", err);

    while (status == KR_OK) {
        status = kr_scan_next(s, err);
        if (status != KR_OK || s->kind == KR_SCAN_ARRAY_END)
            return status;
        if (s->kind != KR_SCAN_INTEGER)
            return wrong(s, err, "an id must be an integer below 2^64");
        status = kr_trace_block(b, s->u64, 1, s->line, err);
    }
    return status;
}

static kr_status mooncake_line(kr_trace_builder *b, kr_scan *s, uint32_t block, uint64_t *last_us,
                               kr_err *err)
{
    kr_trace_turn turn = {.think_us = KR_TRACE_NONE, .api_us = KR_TRACE_NONE};
    char id[KR_TRACE_ID_BYTES];
    unsigned seen = 0;
    kr_status status;

    line_id(id, b->trace);
    status = kr_trace_begin(b, id, s->line, err);
    b->session.block_tokens = block;
    b->blocks_up = true;
    while (status == KR_OK) {
        status = kr_scan_next(s, err);
        if (status != KR_OK || s->kind == KR_SCAN_OBJECT_END)
            break;
        if (strcmp(s->text, "timestamp") == 0) {
            seen |= 1;
            status = kr_scan_time(s, "timestamp", 1e3, &b->session.start_us, err);
        } else if (strcmp(s->text, "input_length") == 0) {
            seen |= 2;
            status = kr_scan_u64(s, "input_length", KR_TRACE_TOKENS_MAX, &turn.input_tokens, err);
        } else if (strcmp(s->text, "output_length") == 0) {
            seen |= 4;
            status = kr_scan_u64(s, "output_length", KR_TRACE_TOKENS_MAX, &turn.output_tokens, err);
        } else if (strcmp(s->text, "hash_ids") == 0) {
            status = mooncake_ids(b, s, err);
        } else {
            status = kr_scan_skip(s, err);
        }
    }
    if (status != KR_OK)
        return status;
    if (seen != 7)
        return wrong(s, err, "a request needs timestamp, input_length and output_length");
    if (b->session.start_us < *last_us)
        return wrong(s, err, "a request comes before the one above it; sort the lines by timestamp");
    *last_us = b->session.start_us;
    status = kr_trace_add_turn(b, &turn, false, 0, s->line, err);
    return status == KR_OK ? kr_trace_end(b, s->line, err) : status;
}

/* ---- LLMServingSim ---- */

typedef struct {
    kr_trace_turn turn;
    uint64_t tool_us, ids[2]; /* counted: of input, of output */
    unsigned seen;            /* 1 input, 2 output, 4 input ids, 8 output ids */
} lss_call;

static kr_status count_ids(kr_scan *s, uint64_t *count, kr_err *err)
{
    kr_status status = kr_scan_expect(s, KR_SCAN_ARRAY, "an array of token ids", err);

    *count = 0;
    while (status == KR_OK) {
        status = kr_scan_next(s, err);
        if (status != KR_OK || s->kind == KR_SCAN_ARRAY_END)
            return status;
        if (s->kind != KR_SCAN_INTEGER)
            return wrong(s, err, "a token id must be an integer");
        ++*count;
    }
    return status;
}

static kr_status lss_field(kr_scan *s, lss_call *c, kr_err *err)
{
    if (strcmp(s->text, "input_toks") == 0) {
        c->seen |= 1;
        return kr_scan_u64(s, "input_toks", KR_TRACE_TOKENS_MAX, &c->turn.input_tokens, err);
    }
    if (strcmp(s->text, "output_toks") == 0) {
        c->seen |= 2;
        return kr_scan_u64(s, "output_toks", KR_TRACE_TOKENS_MAX, &c->turn.output_tokens, err);
    }
    if (strcmp(s->text, "input_tok_ids") == 0) {
        c->seen |= 4;
        return count_ids(s, &c->ids[0], err);
    }
    if (strcmp(s->text, "output_tok_ids") == 0) {
        c->seen |= 8;
        return count_ids(s, &c->ids[1], err);
    }
    if (strcmp(s->text, "tool_duration_ns") == 0)
        return kr_scan_time(s, "tool_duration_ns", 1e-3, &c->tool_us, err);
    return kr_scan_skip(s, err);
}

static kr_status lss_add(kr_trace_builder *b, kr_scan *s, const lss_call *c, kr_err *err)
{
    if ((c->seen & 3) != 3)
        return wrong(s, err, "a call needs input_toks and output_toks");
    if (((c->seen & 4) != 0 && c->ids[0] != c->turn.input_tokens) ||
        ((c->seen & 8) != 0 && c->ids[1] != c->turn.output_tokens))
        return wrong(s, err, "the token ids are not as many as the tokens");
    return kr_trace_add_turn(b, &c->turn, false, 0, s->line, err);
}

static kr_status lss_calls(kr_trace_builder *b, kr_scan *s, kr_err *err)
{
    kr_status status = kr_scan_expect(s, KR_SCAN_ARRAY, "an array of sub_requests", err);
    uint64_t gap_us = KR_TRACE_NONE;

    while (status == KR_OK) {
        lss_call c = {.turn = {.think_us = gap_us, .api_us = KR_TRACE_NONE}};

        status = kr_scan_next(s, err);
        if (status != KR_OK || s->kind == KR_SCAN_ARRAY_END)
            return status;
        if (s->kind != KR_SCAN_OBJECT)
            return wrong(s, err, "a sub-request must be an object");
        while (status == KR_OK) {
            status = kr_scan_next(s, err);
            if (status != KR_OK || s->kind == KR_SCAN_OBJECT_END)
                break;
            status = lss_field(s, &c, err);
        }
        if (status == KR_OK)
            status = lss_add(b, s, &c, err);
        gap_us = c.tool_us;
    }
    return status;
}

static kr_status lss_line(kr_trace_builder *b, kr_scan *s, kr_err *err)
{
    lss_call flat = {.turn = {.think_us = KR_TRACE_NONE, .api_us = KR_TRACE_NONE}};
    char id[KR_TRACE_ID_BYTES];
    bool agentic = false;
    kr_status status;

    line_id(id, b->trace);
    status = kr_trace_begin(b, id, s->line, err);
    while (status == KR_OK) {
        status = kr_scan_next(s, err);
        if (status != KR_OK || s->kind == KR_SCAN_OBJECT_END)
            break;
        if (strcmp(s->text, "session_id") == 0) {
            status = kr_scan_expect(s, KR_SCAN_STRING, "a string", err);
            if (status == KR_OK && (s->cut || s->text[0] == '\0' || strlen(s->text) >= KR_TRACE_ID_BYTES))
                return wrong(s, err, "session_id must have 1 to 63 bytes");
            if (status == KR_OK)
                memcpy(b->session.id, s->text, strlen(s->text) + 1);
        } else if (strcmp(s->text, "arrival_time_ns") == 0) {
            status = kr_scan_time(s, "arrival_time_ns", 1e-3, &b->session.start_us, err);
        } else if (strcmp(s->text, "sub_requests") == 0) {
            if (agentic)
                return wrong(s, err, "sub_requests occurs twice");
            agentic = true;
            status = lss_calls(b, s, err);
        } else {
            status = lss_field(s, &flat, err);
        }
    }
    if (status == KR_OK && !agentic)
        status = lss_add(b, s, &flat, err);
    return status == KR_OK ? kr_trace_end(b, s->line, err) : status;
}

/* ---- Copilot ---- */

typedef struct {
    kr_trace_turn turn;
    uint64_t start_us;
    bool has_tokens;
} copilot_call;

static kr_status copilot_tokens(kr_scan *s, copilot_call *c, kr_err *err)
{
    kr_status status = kr_scan_expect(s, KR_SCAN_OBJECT, "an object of tokens", err);

    c->has_tokens = true;
    while (status == KR_OK) {
        status = kr_scan_next(s, err);
        if (status != KR_OK || s->kind == KR_SCAN_OBJECT_END)
            return status;
        if (strcmp(s->text, "prompt") == 0)
            status = kr_scan_u64(s, "prompt", KR_TRACE_TOKENS_MAX, &c->turn.input_tokens, err);
        else if (strcmp(s->text, "completion") == 0)
            status = kr_scan_u64(s, "completion", KR_TRACE_TOKENS_MAX, &c->turn.output_tokens, err);
        else if (strcmp(s->text, "cached") == 0)
            status = kr_scan_u64(s, "cached", KR_TRACE_TOKENS_MAX, &c->turn.cached_tokens, err);
        else
            status = kr_scan_skip(s, err);
    }
    return status;
}

static kr_status copilot_one(kr_scan *s, copilot_call *c, kr_err *err)
{
    kr_status status = KR_OK;

    while (status == KR_OK) {
        status = kr_scan_next(s, err);
        if (status != KR_OK || s->kind == KR_SCAN_OBJECT_END)
            return status;
        if (strcmp(s->text, "timestamp") == 0) {
            status = kr_scan_next(s, err);
            if (status == KR_OK && (s->kind < KR_SCAN_STRING || s->kind > KR_SCAN_REAL ||
                                    !kr_read_timestamp(s->text, &c->start_us)))
                return wrong(s, err, "timestamp is neither a date with time nor a number of seconds");
        } else if (strcmp(s->text, "duration_ms") == 0) {
            status = kr_scan_time(s, "duration_ms", 1e3, &c->turn.api_us, err);
        } else if (strcmp(s->text, "tokens") == 0) {
            status = copilot_tokens(s, c, err);
        } else {
            status = kr_scan_skip(s, err);
        }
    }
    return status;
}

/* end_us: when the session's previous call ended, KR_TRACE_NONE before the first. */
static kr_status copilot_calls(kr_trace_builder *b, kr_scan *s, uint64_t *end_us, kr_err *err)
{
    kr_status status = kr_scan_expect(s, KR_SCAN_ARRAY, "an array of llm_calls", err);

    while (status == KR_OK) {
        copilot_call c = {.turn = {.think_us = KR_TRACE_NONE, .api_us = KR_TRACE_NONE}};

        status = kr_scan_next(s, err);
        if (status != KR_OK || s->kind == KR_SCAN_ARRAY_END)
            return status;
        if (s->kind != KR_SCAN_OBJECT)
            return wrong(s, err, "a call must be an object");
        status = copilot_one(s, &c, err);
        if (status != KR_OK)
            return status;
        if (!c.has_tokens)
            return wrong(s, err, "a call needs tokens");
        if (b->session.turns == 0)
            b->session.start_us = c.start_us;
        if (c.start_us < b->session.start_us)
            return wrong(s, err, "a call begins before the session's first");
        c.turn.arrival_us = c.start_us - b->session.start_us;
        if (*end_us != KR_TRACE_NONE)
            c.turn.think_us = c.start_us > *end_us ? c.start_us - *end_us : 0;
        *end_us = c.start_us + (c.turn.api_us != KR_TRACE_NONE ? c.turn.api_us : 0);
        status = kr_trace_add_turn(b, &c.turn, true, 0, s->line, err);
    }
    return status;
}

static kr_status copilot_turns(kr_trace_builder *b, kr_scan *s, kr_err *err)
{
    kr_status status = kr_scan_expect(s, KR_SCAN_ARRAY, "an array of turns", err);
    uint64_t end_us = KR_TRACE_NONE;

    while (status == KR_OK) {
        status = kr_scan_next(s, err);
        if (status != KR_OK || s->kind == KR_SCAN_ARRAY_END)
            return status;
        if (s->kind != KR_SCAN_OBJECT)
            return wrong(s, err, "a turn must be an object");
        while (status == KR_OK) {
            status = kr_scan_next(s, err);
            if (status != KR_OK || s->kind == KR_SCAN_OBJECT_END)
                break;
            status = strcmp(s->text, "llm_calls") == 0 ? copilot_calls(b, s, &end_us, err)
                                                       : kr_scan_skip(s, err);
        }
    }
    return status;
}

static kr_status copilot_line(kr_trace_builder *b, kr_scan *s, kr_err *err)
{
    kr_status status = KR_OK;
    bool named = false;

    while (status == KR_OK) {
        status = kr_scan_next(s, err);
        if (status != KR_OK || s->kind == KR_SCAN_OBJECT_END)
            break;
        if (strcmp(s->text, "session_id") == 0) {
            status = kr_scan_expect(s, KR_SCAN_STRING, "a string", err);
            if (status == KR_OK)
                status = kr_trace_begin(b, s->text, s->line, err);
            named = true;
        } else if (strcmp(s->text, "turns") == 0) {
            if (!named)
                return wrong(s, err, "session_id must come before turns");
            status = copilot_turns(b, s, err);
        } else {
            status = kr_scan_skip(s, err);
        }
    }
    if (status == KR_OK && !named)
        return wrong(s, err, "a session needs session_id");
    return status == KR_OK ? kr_trace_end(b, s->line, err) : status;
}

/* ---- lines ---- */

/* Reads objects up to the end of the file. block != 0: Mooncake, whose lines have an order. */
static kr_status lines(kr_scan *s, kr_trace *trace, uint32_t block,
                       kr_status (*line)(kr_trace_builder *b, kr_scan *s, kr_err *err), kr_err *err)
{
    kr_trace_builder b;
    kr_status status = KR_OK;
    uint64_t last_us = 0;

    kr_trace_builder_init(&b, trace, s->path);
    while (status == KR_OK) {
        status = kr_scan_next(s, err);
        if (status != KR_OK || s->kind == KR_SCAN_END)
            break;
        if (s->kind != KR_SCAN_OBJECT)
            status = wrong(s, err, "a line must be an object");
        else
            status = block != 0 ? mooncake_line(&b, s, block, &last_us, err) : line(&b, s, err);
    }
    kr_trace_builder_free(&b);
    return status;
}

kr_status kr_read_mooncake(kr_scan *scan, kr_trace *trace, uint32_t block_tokens, kr_err *err)
{
    return lines(scan, trace, block_tokens != 0 ? block_tokens : 512, NULL, err);
}

kr_status kr_read_lss(kr_scan *scan, kr_trace *trace, kr_err *err)
{
    return lines(scan, trace, 0, lss_line, err);
}

kr_status kr_read_copilot(kr_scan *scan, kr_trace *trace, kr_err *err)
{
    return lines(scan, trace, 0, copilot_line, err);
}
