/* What `karat run` prints: text, the summary of where the time went, and JSON. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "cli/run.h"
#include "files/utf8.h"

/* ---- text ---- */

void kr_run_print_token(const kr_run *run, uint32_t token)
{
    char piece[KR_TOKEN_BYTES_MAX];
    const size_t bytes = kr_detokenize(run->tokenizer, token, false, piece, sizeof piece);
    fwrite(piece, 1, bytes, stdout);
    fflush(stdout);
}

char *kr_run_text(const kr_run *run, const kr_session *session, uint64_t from, size_t *bytes)
{
    uint64_t count;
    const uint32_t *token = kr_session_tokens(session, &count);
    char piece[KR_TOKEN_BYTES_MAX];
    size_t all = 0;
    for (uint64_t i = from; i < count; i++)
        all += kr_detokenize(run->tokenizer, token[i], false, piece, sizeof piece);
    char *text = kr_alloc(all + 1);
    *bytes = 0;
    for (uint64_t i = from; i < count && text != NULL; i++)
        *bytes += kr_detokenize(run->tokenizer, token[i], false, text + *bytes, all + 1 - *bytes);
    return text;
}

static uint64_t first_new(const kr_request *request)
{
    uint64_t tokens;
    kr_session_tokens(request->session, &tokens);
    return tokens - request->produced;
}

void kr_run_print_texts(const kr_run *run)
{
    if (run->stream) {
        fputc('\n', stdout);
        fflush(stdout); /* the summary on standard error comes after it */
        return;
    }
    for (uint32_t i = 0; i < run->config.sessions_max; i++) {
        size_t bytes;
        char *text = kr_run_text(run, run->session[i], first_new(&run->request[i]), &bytes);
        printf("== %u\n", i + 1);
        if (text != NULL)
            fwrite(text, 1, bytes, stdout);
        fputc('\n', stdout);
        kr_free(text);
    }
}

/* ---- progress ---- */

/* One line that is written over, five times a second at most. */
static void show(kr_run *run, const char *what, uint64_t done, uint64_t all)
{
    const uint64_t now = kr_now_ns(&kr_clock_system);
    if (done != all && now - run->shown_ns < 200000000)
        return;
    run->shown_ns = now;
    fprintf(stderr, "\r%s %" PRIu64 "/%" PRIu64 "%s", what, done, all, done == all ? "\n" : "");
}

void kr_run_show_packing(void *context, uint32_t done, uint32_t all)
{
    show(context, "packing weights", done, all);
}

void kr_run_show_prefill(void *context, uint64_t done, uint64_t all)
{
    kr_run *run = context;
    if (all > run->options->prefill_chunk)
        show(run, "prompt tokens", done, all);
}

/* ---- memory ---- */

uint64_t kr_run_resident(void)
{
    char line[128];
    unsigned long long kib = 0;
    FILE *status = fopen("/proc/self/status", "r");
    if (status == NULL)
        return 0;
    while (kib == 0 && fgets(line, sizeof line, status) != NULL)
        if (strncmp(line, "RssAnon:", 8) == 0)
            kib = strtoull(line + 8, NULL, 10);
    fclose(status);
    return kib << 10;
}

/* ---- where the time went ---- */

static double share(uint64_t part, uint64_t whole) { return whole == 0 ? 0 : (double)part / (double)whole; }
static double rate(uint64_t tokens, uint64_t ns) { return ns == 0 ? 0 : (double)tokens * 1e9 / (double)ns; }

/* Runs of layers with one method: "quest 2-29, dense 0-1". */
static void describe_methods(const kr_run *run, char *out, size_t bytes)
{
    const kr_program *p = kr_engine_program(run->engine);
    const uint32_t layers = kr_engine_model(run->engine)->layers;
    size_t n = 0;
    out[0] = '\0';
    for (uint32_t first = 0, l = 1; l <= layers; l++) {
        const bool same = l < layers && strcmp(p->config[l].name, p->config[first].name) == 0 &&
                          p->plan[l].dense == p->plan[first].dense;
        if (same)
            continue;
        const char *name = p->plan[first].dense ? "dense" : p->config[first].name;
        const int wrote = snprintf(out + n, bytes - n, "%s%s %u-%u", n == 0 ? "" : ", ", name, first, l - 1);
        n = wrote < 0 || (size_t)wrote >= bytes - n ? bytes - 1 : n + (size_t)wrote;
        first = l;
    }
}

static void print_times(const kr_engine_stats *s)
{
    fprintf(stderr, "compute side:");
    for (uint32_t kind = 0; kind < KR_OP_KINDS; kind++)
        if (s->op_ns[kind] != 0)
            fprintf(stderr, " %s %.1f%%", kr_op_name((kr_op_kind)kind),
                    100 * share(s->op_ns[kind], s->step_ns));
    fprintf(stderr, ", waiting %.1f%% of %.2f s in steps\n", 100 * share(s->wait_ns, s->step_ns),
            (double)s->step_ns / 1e9);
    fprintf(stderr, "memory devices:");
    for (uint32_t stage = 0; stage < KR_STAGES; stage++)
        if (s->stage_ns[stage] != 0)
            fprintf(stderr, " %s %.1f%%", kr_stage_name((kr_stage_kind)stage),
                    100 * share(s->stage_ns[stage], s->step_ns));
    fprintf(stderr, "; busiest %.1f%%, both sides at work >= %.1f%%\n",
            100 * share(s->device_busy_ns, s->step_ns), 100 * share(kr_engine_both_ns(s), s->step_ns));
    fprintf(stderr, "KV and index: %.1f MB on memory nodes (%.0f%%), %.1f MB beside the weights\n",
            (double)s->node_kv_bytes / 1e6,
            100 * share(s->node_kv_bytes, s->node_kv_bytes + s->gather_kv_bytes),
            (double)s->gather_kv_bytes / 1e6);
    fprintf(stderr, "link: %.1f MB out, %.1f MB back, %" PRIu64 " messages\n", (double)s->bytes_sent / 1e6,
            (double)s->bytes_received / 1e6, s->messages_sent);
}

/* Of peer i when it runs inside this process; NULL for a remote one, which keeps them to itself. */
static const char *node_kernels(const kr_run *run, uint32_t i)
{
    const kr_embedded *embedded = i < run->config.node_count ? &run->embedded : &run->gather;
    return embedded->node != NULL ? kr_node_path(embedded->node) : NULL;
}

void kr_run_print_summary(kr_run *run)
{
    const kr_engine_stats stats = kr_engine_get_stats(run->engine);
    const kr_generate_times *t = &run->generation.times;
    char methods[512];
    describe_methods(run, methods, sizeof methods);
    fprintf(stderr, "prompt: %" PRIu64 " tokens, %.1f tokens/s; decode: %" PRIu64 " tokens, %.1f tokens/s\n",
            t->prompt_tokens, rate(t->prompt_tokens, t->prefill_ns), t->decode_tokens,
            rate(t->decode_tokens, t->decode_ns));
    fprintf(stderr, "attention: %s; placement %s; KV %s\n", methods, kr_placement_name(run->config.placement),
            kr_dtype_name(run->config.kv_dtype));
    fprintf(stderr, "weights: %s\n", kr_engine_path(run->engine));
    fprintf(stderr, "memory: %.1f MB planned, %.1f MB taken over a baseline of %.1f MB\n",
            (double)run->planned_bytes / 1e6, (double)(kr_run_resident() - run->resident_before) / 1e6,
            (double)run->resident_before / 1e6);
    for (uint32_t i = 0; i < kr_engine_peers(run->engine); i++) {
        const kr_peer *peer = kr_engine_peer(run->engine, i);
        const char *kernels = node_kernels(run, i);
        fprintf(stderr, "memory node: %s, %u device%s%s%s\n", kr_peer_name(peer), peer->node.welcome.devices,
                peer->node.welcome.devices == 1 ? "" : "s", kernels != NULL ? "; " : "",
                kernels != NULL ? kernels : "");
    }
    print_times(&stats);
}

/* ---- JSON ---- */

static json_t *ids_json(const uint32_t *token, uint64_t count)
{
    json_t *ids = json_array();
    for (uint64_t i = 0; i < count; i++)
        json_array_append_new(ids, json_integer(token[i]));
    return ids;
}

/* Tokens may be parts of characters; JSON takes UTF-8 only, so bytes outside of any become U+FFFD. */
static json_t *text_json(const char *text, size_t bytes)
{
    static const char replacement[] = "\xef\xbf\xbd";
    char *valid = kr_alloc(bytes * (sizeof replacement - 1) + 1);
    size_t n = 0;
    for (size_t at = 0; at < bytes && valid != NULL; at++) {
        const size_t good = kr_utf8_invalid(text + at, bytes - at);
        memcpy(valid + n, text + at, good);
        n += good;
        at += good;
        if (at < bytes) {
            memcpy(valid + n, replacement, sizeof replacement - 1);
            n += sizeof replacement - 1;
        }
    }
    json_t *whole = valid != NULL ? json_stringn(valid, n) : NULL;
    kr_free(valid);
    return whole != NULL ? whole : json_null();
}

static json_t *sessions_json(const kr_run *run)
{
    json_t *sessions = json_array();
    for (uint32_t i = 0; i < run->config.sessions_max; i++) {
        const kr_session *session = run->session[i];
        const uint64_t first = first_new(&run->request[i]);
        uint64_t count;
        size_t bytes;
        const uint32_t *token = kr_session_tokens(session, &count);
        char *text = kr_run_text(run, session, first, &bytes);
        json_array_append_new(sessions,
                              json_pack("{s:I,s:I,s:s,s:o,s:o}", "prompt_tokens", (json_int_t)first,
                                        "reused_tokens", (json_int_t)kr_session_reused_tokens(session),
                                        "finish", kr_finish_name(run->request[i].finish), "tokens",
                                        ids_json(token + first, count - first), "text",
                                        text == NULL ? json_null() : text_json(text, bytes)));
        kr_free(text);
    }
    return sessions;
}

static json_t *path_json(const kr_run *run)
{
    const kr_program *p = kr_engine_program(run->engine);
    json_t *methods = json_array(), *nodes = json_array();
    for (uint32_t l = 0; l < p->model->layers; l++)
        json_array_append_new(methods, json_string(p->plan[l].dense ? "dense" : p->config[l].name));
    for (uint32_t i = 0; i < kr_engine_peers(run->engine); i++)
        json_array_append_new(nodes,
                              json_pack("{s:s,s:s*}", "link", kr_peer_name(kr_engine_peer(run->engine, i)),
                                        "kernels", node_kernels(run, i)));
    return json_pack("{s:o,s:s,s:s,s:s,s:o,s:i,s:i}", "attention", methods, "placement",
                     kr_placement_name(run->config.placement), "kv_dtype",
                     kr_dtype_name(run->config.kv_dtype), "weights", kr_engine_path(run->engine), "nodes",
                     nodes, "threads", (int)run->config.threads, "micro_batches",
                     (int)run->config.micro_batches);
}

static json_t *stages_json(const kr_engine_stats *s)
{
    json_t *compute = json_object(), *device = json_object();
    for (uint32_t kind = 0; kind < KR_OP_KINDS; kind++)
        if (s->op_ns[kind] != 0)
            json_object_set_new(compute, kr_op_name((kr_op_kind)kind),
                                json_real((double)s->op_ns[kind] / 1e9));
    for (uint32_t stage = 0; stage < KR_STAGES; stage++)
        if (s->stage_ns[stage] != 0)
            json_object_set_new(device, kr_stage_name((kr_stage_kind)stage),
                                json_real((double)s->stage_ns[stage] / 1e9));
    return json_pack("{s:f,s:f,s:o,s:o,s:f,s:f}", "steps_s", (double)s->step_ns / 1e9, "waiting_s",
                     (double)s->wait_ns / 1e9, "compute_s", compute, "device_s", device, "busiest_device_s",
                     (double)s->device_busy_ns / 1e9, "both_at_work_share",
                     share(kr_engine_both_ns(s), s->step_ns));
}

int kr_run_print_json(kr_run *run)
{
    const kr_engine_stats stats = kr_engine_get_stats(run->engine);
    const kr_generate_times *t = &run->generation.times;
    json_t *timings = json_pack(
        "{s:I,s:f,s:f,s:I,s:I,s:f,s:f}", "prompt_tokens", (json_int_t)t->prompt_tokens, "prompt_s",
        (double)t->prefill_ns / 1e9, "prompt_tokens_per_s", rate(t->prompt_tokens, t->prefill_ns),
        "decode_tokens", (json_int_t)t->decode_tokens, "decode_steps", (json_int_t)t->decode_steps,
        "decode_s", (double)t->decode_ns / 1e9, "decode_tokens_per_s", rate(t->decode_tokens, t->decode_ns));
    json_t *bytes = json_pack(
        "{s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I}", "kv_on_nodes", (json_int_t)stats.node_kv_bytes,
        "kv_beside_weights", (json_int_t)stats.gather_kv_bytes, "link_sent", (json_int_t)stats.bytes_sent,
        "link_received", (json_int_t)stats.bytes_received, "link_messages", (json_int_t)stats.messages_sent,
        "planned", (json_int_t)run->planned_bytes, "resident", (json_int_t)kr_run_resident(),
        "resident_before", (json_int_t)run->resident_before);
    return kr_cli_print_json(json_pack("{s:s,s:o,s:o,s:o,s:o,s:o}", "model",
                                       kr_engine_model(run->engine)->name, "sessions", sessions_json(run),
                                       "timings", timings, "path", path_json(run), "bytes", bytes, "stages",
                                       stages_json(&stats)));
}
