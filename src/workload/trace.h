/* A trace in memory: sessions of turns, and the prefix blocks of every turn as runs of ids.
 *
 * Rules for all formats. Times are whole microseconds from the start of the session (a session's own
 * start: from the start of its trace, or of its parent for a sub-agent). A session's turns must not go
 * back in time. Ids are 64 bits. A turn's ids must be distinct and as many as its input has blocks.
 * Numbers over their limit, wrong types and a file that ends early are errors with file and line; no
 * file takes more memory than the limits below allow (about 1.7 GB), whatever its size. */
#ifndef KR_WORKLOAD_TRACE_H
#define KR_WORKLOAD_TRACE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/status.h"

enum {
    KR_TRACE_SESSIONS_MAX = 1 << 22,
    KR_TRACE_TURNS_MAX = 1 << 23,
    KR_TRACE_RUNS_MAX = 1 << 25,
    KR_TRACE_BLOCKS_MAX = 1 << 22, /* of one turn */
    KR_TRACE_TOKENS_MAX = 1 << 28, /* of one turn */
    KR_TRACE_ID_BYTES = 64
};

#define KR_TRACE_NONE UINT64_MAX /* a time that the trace does not state */
#define KR_TRACE_NO_PARENT UINT32_MAX

/* Ids first, first + 1, ..., first + count - 1. */
typedef struct {
    uint64_t first, count;
} kr_block_run;

typedef struct {
    uint64_t arrival_us, think_us, api_us; /* think: since the previous turn's end */
    uint64_t input_tokens, output_tokens;
    /* Of the input, those that the session's previous turn left in the cache: longest common prefix of
     * blocks where there are ids, what the trace says where it says it, else the smaller of the two
     * inputs. 0 for the first turn of a session, unless the trace says otherwise. */
    uint64_t cached_tokens;
    /* The turn's ids: the first kept_blocks of the previous turn's, then its own runs. */
    uint64_t kept_blocks;
    uint32_t first_run, runs;
} kr_trace_turn;

typedef struct {
    char id[KR_TRACE_ID_BYTES];
    uint32_t block_tokens; /* 0: the trace has no ids */
    uint32_t parent;       /* session that spawned this sub-agent, or KR_TRACE_NO_PARENT */
    uint32_t first_turn, turns;
    uint64_t start_us;
    uint64_t prefix_tokens; /* tools and system prompt: what a deployment would hold warm */
} kr_trace_session;

typedef enum {
    KR_TRACE_AUTO,
    KR_TRACE_KVCT,     /* callanjfox/kv-cache-tester, one session a file */
    KR_TRACE_RUNS,     /* karat's own run-length form */
    KR_TRACE_MOONCAKE, /* JSON lines: timestamp ms, input_length, output_length, hash_ids */
    KR_TRACE_LSS,      /* LLMServingSim JSON lines, flat and agentic */
    KR_TRACE_COPILOT,  /* GitHub Copilot coding agent JSON lines, unpacked */
    KR_TRACE_AZURE,    /* CSV: TIMESTAMP, ContextTokens, GeneratedTokens */
    KR_TRACE_BURSTGPT, /* CSV: Timestamp, [Session ID,] Model, Request tokens, Response tokens */
    KR_TRACE_SYNTHETIC /* a generator's, never a file's */
} kr_trace_format;

enum { KR_TRACE_FORMATS = 9 };
const char *kr_trace_format_name(kr_trace_format format);

typedef struct {
    kr_trace_format format;
    kr_trace_session *session;
    kr_trace_turn *turn;
    kr_block_run *run;
    uint32_t sessions, turns, runs;
    uint32_t session_capacity, turn_capacity, run_capacity;
    uint64_t failed_requests; /* BurstGPT: rows without response tokens, left out */
    uint64_t digest;          /* of all sessions and turns, in order */
} kr_trace;

/* Reads a file, or every *.json, *.jsonl (both also with .gz) and *.csv of a folder in the order of their
 * names, all of one format. block_tokens: of Mooncake traces, which do not say (0 = 512). Two sessions of
 * one id are an error. KR_E_NOT_FOUND, KR_E_FORMAT, KR_E_LIMIT, KR_E_UNSUPPORTED (a packed CSV), KR_E_IO,
 * KR_E_MEMORY. On failure *trace is empty. */
kr_status kr_trace_read(kr_trace *trace, const char *path, uint32_t block_tokens, kr_err *err);
void kr_trace_free(kr_trace *trace);

/* The run-length form, JSON lines. First line {"karat_trace":1}. Then a session a line: {"id", "block"
 * (or "block_up" where a turn's last, partly filled block has an id too), "prefix", "start", "parent"
 * (number of the parent session from 0, or null), "turns": [[arrival, input, output, think, api, cached,
 * kept blocks, [first, count, ...]], ...]}; times in microseconds, null for those not stated. Loss-free
 * for all that kr_trace holds but format. KR_E_IO. */
kr_status kr_trace_write_runs(const kr_trace *trace, FILE *out, kr_err *err);

/* ---- building, for readers and generators ----
 * begin, then per turn any number of kr_trace_block and one kr_trace_add_turn, ..., then end. */
typedef struct {
    kr_trace *trace;
    const char *path;
    kr_trace_session session;         /* being built */
    bool blocks_up;                   /* input blocks are rounded up (Mooncake), not down (KVCT) */
    kr_block_run *previous, *current; /* ids of the previous turn and of this one */
    uint32_t previous_runs, current_runs, previous_capacity, current_capacity;
    uint64_t current_blocks;
} kr_trace_builder;

void kr_trace_builder_init(kr_trace_builder *builder, kr_trace *trace, const char *path);
void kr_trace_builder_free(kr_trace_builder *builder);
/* id is cut never: longer than KR_TRACE_ID_BYTES - 1 is KR_E_FORMAT. */
kr_status kr_trace_begin(kr_trace_builder *builder, const char *id, uint64_t line, kr_err *err);
/* count ids from first on, behind the ids that the turn has already. */
kr_status kr_trace_block(kr_trace_builder *builder, uint64_t first, uint64_t count, uint64_t line,
                         kr_err *err);
/* turn: arrival, think, api, input, output and, with stated_cache, cached_tokens. The rest is derived.
 * The first kept blocks of the previous turn come before those given with kr_trace_block. */
kr_status kr_trace_add_turn(kr_trace_builder *builder, const kr_trace_turn *turn, bool stated_cache,
                            uint64_t kept, uint64_t line, kr_err *err);
/* Appends the session, which must have a turn. */
kr_status kr_trace_end(kr_trace_builder *builder, uint64_t line, kr_err *err);
/* Checks ids and computes the digest. */
kr_status kr_trace_seal(kr_trace *trace, const char *path, kr_err *err);

#endif
