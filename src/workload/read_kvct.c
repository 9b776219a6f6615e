/* KVCT: one JSON object a file, a session with its sub-agents.
 *
 * Rules: block_size comes before requests and every turn lists floor(in / block_size) ids. t of a
 * sub-agent's turns counts from its marker. A sub-agent becomes a session of its own behind its parent,
 * named PARENT/AGENT; its ids lie in the parent's number space but share no prefix with it, so reuse is
 * counted inside it. Unknown keys are read over. */
#include <string.h>

#include "base/arena.h"
#include "workload/read.h"

typedef struct {
    kr_scan *scan;
    kr_trace_builder *builder; /* of the session whose turns are being read */
    kr_trace_builder *agents;  /* of sub-agents; NULL inside one */
    char id[KR_TRACE_ID_BYTES];
    uint64_t block_tokens, tool_tokens, system_tokens;
    bool has_turns;
} kvct;

static kr_status ids(kvct *k, kr_err *err)
{
    kr_scan *s = k->scan;
    kr_status status = kr_scan_expect(s, KR_SCAN_ARRAY, "an array of ids", err);

    while (status == KR_OK) {
        status = kr_scan_next(s, err);
        if (status != KR_OK || s->kind == KR_SCAN_ARRAY_END)
            return status;
        if (s->kind != KR_SCAN_INTEGER)
            return kr_fail(err, KR_E_FORMAT, "%s:%llu: an id must be an integer below 2^64", s->path,
                           (unsigned long long)s->line);
        status = kr_trace_block(k->builder, s->u64, 1, s->line, err);
    }
    return status;
}

static kr_status requests(kvct *k, kr_err *err);

/* What a turn or a sub-agent's entry may say. */
typedef struct {
    kr_trace_turn turn;
    kvct agent;
    bool is_agent, has_input, has_output;
} entry;

static kr_status agent_requests(kvct *k, entry *e, kr_err *err)
{
    kr_status status;
    char id[2 * KR_TRACE_ID_BYTES];

    if (k->agents == NULL)
        return kr_fail(err, KR_E_FORMAT, "%s:%llu: a sub-agent inside a sub-agent", k->scan->path,
                       (unsigned long long)k->scan->line);
    snprintf(id, sizeof id, "%s/%s", k->id, e->agent.id);
    e->agent.scan = k->scan;
    e->agent.builder = k->agents;
    e->agent.block_tokens = k->block_tokens;
    e->is_agent = true;
    status = kr_trace_begin(k->agents, id, k->scan->line, err);
    if (status != KR_OK)
        return status;
    k->agents->session.block_tokens = (uint32_t)k->block_tokens;
    k->agents->session.start_us = e->turn.arrival_us;
    return requests(&e->agent, err);
}

static kr_status field(kvct *k, entry *e, kr_err *err)
{
    kr_scan *s = k->scan;
    const char *key = s->text;

    if (strcmp(key, "t") == 0)
        return kr_scan_time(s, "t", 1e6, &e->turn.arrival_us, err);
    if (strcmp(key, "in") == 0) {
        e->has_input = true;
        return kr_scan_u64(s, "in", KR_TRACE_TOKENS_MAX, &e->turn.input_tokens, err);
    }
    if (strcmp(key, "out") == 0) {
        e->has_output = true;
        return kr_scan_u64(s, "out", KR_TRACE_TOKENS_MAX, &e->turn.output_tokens, err);
    }
    if (strcmp(key, "think_time") == 0)
        return kr_scan_time(s, "think_time", 1e6, &e->turn.think_us, err);
    if (strcmp(key, "api_time") == 0)
        return kr_scan_time(s, "api_time", 1e6, &e->turn.api_us, err);
    if (strcmp(key, "hash_ids") == 0)
        return ids(k, err);
    if (strcmp(key, "requests") == 0)
        return agent_requests(k, e, err);
    if (strcmp(key, "agent_id") == 0) {
        const kr_status status = kr_scan_expect(s, KR_SCAN_STRING, "a string", err);

        if (status == KR_OK)
            snprintf(e->agent.id, sizeof e->agent.id, "%.40s", s->text);
        return status;
    }
    if (strcmp(key, "tool_tokens") == 0)
        return kr_scan_u64(s, "tool_tokens", KR_TRACE_TOKENS_MAX, &e->agent.tool_tokens, err);
    if (strcmp(key, "system_tokens") == 0)
        return kr_scan_u64(s, "system_tokens", KR_TRACE_TOKENS_MAX, &e->agent.system_tokens, err);
    return kr_scan_skip(s, err);
}

static kr_status one_entry(kvct *k, kr_err *err)
{
    entry e = {.turn = {.think_us = KR_TRACE_NONE, .api_us = KR_TRACE_NONE}};
    kr_scan *s = k->scan;
    kr_status status = KR_OK;

    memcpy(e.agent.id, "agent", 6);
    while (status == KR_OK) {
        status = kr_scan_next(s, err);
        if (status != KR_OK || s->kind == KR_SCAN_OBJECT_END)
            break;
        status = field(k, &e, err);
    }
    if (status != KR_OK)
        return status;
    if (e.is_agent) {
        k->agents->session.prefix_tokens = e.agent.tool_tokens + e.agent.system_tokens;
        /* The parent's number is known when its own turns are all read. */
        return kr_trace_end(k->agents, s->line, err);
    }
    if (!e.has_input || !e.has_output)
        return kr_fail(err, KR_E_FORMAT, "%s:%llu: a turn needs in and out", s->path,
                       (unsigned long long)s->line);
    return kr_trace_add_turn(k->builder, &e.turn, false, 0, s->line, err);
}

static kr_status requests(kvct *k, kr_err *err)
{
    kr_scan *s = k->scan;
    kr_status status;

    if (k->block_tokens == 0)
        return kr_fail(err, KR_E_FORMAT, "%s:%llu: block_size must come before requests", s->path,
                       (unsigned long long)s->line);
    if (k->has_turns)
        return kr_fail(err, KR_E_FORMAT, "%s:%llu: requests occurs twice", s->path,
                       (unsigned long long)s->line);
    k->has_turns = true;
    status = kr_scan_expect(s, KR_SCAN_ARRAY, "an array of requests", err);
    while (status == KR_OK) {
        status = kr_scan_next(s, err);
        if (status != KR_OK || s->kind == KR_SCAN_ARRAY_END)
            return status;
        if (s->kind != KR_SCAN_OBJECT)
            return kr_fail(err, KR_E_FORMAT, "%s:%llu: a request must be an object", s->path,
                           (unsigned long long)s->line);
        status = one_entry(k, err);
    }
    return status;
}

static kr_status head(kvct *k, kr_err *err)
{
    kr_scan *s = k->scan;
    kr_status status;

    if (strcmp(s->text, "id") == 0) {
        status = kr_scan_expect(s, KR_SCAN_STRING, "a string", err);
        if (status == KR_OK)
            status = kr_trace_begin(k->builder, s->text, s->line, err);
        if (status == KR_OK)
            memcpy(k->id, k->builder->session.id, sizeof k->id);
        return status;
    }
    if (strcmp(s->text, "block_size") == 0) {
        status = kr_scan_u64(s, "block_size", 1 << 20, &k->block_tokens, err);
        if (status == KR_OK && k->block_tokens == 0)
            status = kr_fail(err, KR_E_FORMAT, "%s:%llu: block_size must be above 0", s->path,
                             (unsigned long long)s->line);
        return status;
    }
    if (strcmp(s->text, "tool_tokens") == 0)
        return kr_scan_u64(s, "tool_tokens", KR_TRACE_TOKENS_MAX, &k->tool_tokens, err);
    if (strcmp(s->text, "system_tokens") == 0)
        return kr_scan_u64(s, "system_tokens", KR_TRACE_TOKENS_MAX, &k->system_tokens, err);
    if (strcmp(s->text, "requests") != 0)
        return kr_scan_skip(s, err);
    if (k->id[0] == '\0')
        return kr_fail(err, KR_E_FORMAT, "%s:%llu: id must come before requests", s->path,
                       (unsigned long long)s->line);
    k->builder->session.block_tokens = (uint32_t)k->block_tokens;
    return requests(k, err);
}

/* Moves the sessions of from behind those of to, as children of to's last. */
static kr_status adopt(kr_trace *to, const kr_trace *from, const char *path, kr_err *err)
{
    const uint32_t parent = to->sessions - 1;
    kr_trace_builder b;
    kr_status status = KR_OK;

    kr_trace_builder_init(&b, to, path);
    for (uint32_t i = 0; i < from->sessions && status == KR_OK; i++) {
        const kr_trace_session *session = &from->session[i];

        status = kr_trace_begin(&b, session->id, 1, err);
        b.session = *session;
        b.session.first_turn = to->turns;
        b.session.turns = 0;
        b.session.parent = parent;
        for (uint32_t t = 0; t < session->turns && status == KR_OK; t++) {
            const kr_trace_turn *turn = &from->turn[session->first_turn + t];

            for (uint32_t r = 0; r < turn->runs && status == KR_OK; r++)
                status = kr_trace_block(&b, from->run[turn->first_run + r].first,
                                        from->run[turn->first_run + r].count, 1, err);
            if (status == KR_OK)
                status = kr_trace_add_turn(&b, turn, true, turn->kept_blocks, 1, err);
        }
        if (status == KR_OK)
            status = kr_trace_end(&b, 1, err);
    }
    kr_trace_builder_free(&b);
    return status;
}

static kr_status one_file(kvct *k, kr_err *err)
{
    kr_scan *s = k->scan;
    kr_status status = kr_scan_expect(s, KR_SCAN_OBJECT, "an object", err);

    while (status == KR_OK) {
        status = kr_scan_next(s, err);
        if (status != KR_OK || s->kind == KR_SCAN_OBJECT_END)
            break;
        status = head(k, err);
    }
    if (status != KR_OK)
        return status;
    if (!k->has_turns)
        return kr_fail(err, KR_E_FORMAT, "%s: has no requests", s->path);
    k->builder->session.prefix_tokens = k->tool_tokens + k->system_tokens;
    status = kr_trace_end(k->builder, s->line, err);
    if (status == KR_OK)
        status = adopt(k->builder->trace, k->agents->trace, s->path, err);
    return status == KR_OK ? kr_scan_expect(s, KR_SCAN_END, "the end of the file", err) : status;
}

kr_status kr_read_kvct(kr_scan *scan, kr_trace *trace, kr_err *err)
{
    kr_trace agents = {0};
    kr_trace_builder builder, agent_builder;
    kvct k = {.scan = scan, .builder = &builder, .agents = &agent_builder};
    kr_status status;

    kr_trace_builder_init(&builder, trace, scan->path);
    kr_trace_builder_init(&agent_builder, &agents, scan->path);
    status = one_file(&k, err);
    kr_trace_builder_free(&builder);
    kr_trace_builder_free(&agent_builder);
    kr_trace_free(&agents);
    return status;
}
