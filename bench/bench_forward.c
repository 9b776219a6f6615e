/* The compute part of decode and prefill beside what this machine could do: tokens a second of the
 * ops alone (no attention, no node), the bytes of weights they read, and the bandwidth at which a
 * plain sum reads a buffer of that size with the same threads, in the same run.
 *
 *   make build/bench/bench_forward && build/bench/bench_forward MODEL [THREADS [f32]] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/clock.h"
#include "tests/engine/plain_model.h"

enum { ROWS_MAX = 512, REPEATS = 7 };

static double seconds(void) { return (double)kr_now_ns(&kr_clock_system) * 1e-9; }

typedef uint64_t line __attribute__((vector_size(64)));

typedef struct {
    const line *lines;
    uint64_t count; /* lines */
    uint32_t parts;
    line sum[KR_TEAM_THREADS_MAX];
} read_job;

static void read_part(void *context, uint32_t part, uint32_t worker)
{
    read_job *job = context;
    const uint64_t each = job->count / job->parts, from = each * part;
    line a = {0}, b = {0};

    for (uint64_t i = from; i + 2 <= from + each; i += 2) {
        a += job->lines[i];
        b += job->lines[i + 1];
    }
    job->sum[worker] += a + b;
}

/* Bytes a second of reading a buffer once through, best of some. */
static double read_bandwidth(kr_team *team, uint64_t bytes)
{
    static read_job job;
    kr_arena arena;
    kr_err err;
    double best = 0.0;

    if (kr_arena_init(&arena, bytes, &err) != KR_OK)
        return 0.0;
    void *buffer = kr_arena_take(&arena, bytes);
    memset(buffer, 1, bytes);
    job = (read_job){.lines = buffer, .count = bytes / sizeof(line), .parts = 4 * kr_team_threads(team)};
    for (int i = 0; i < 4 * REPEATS; i++) {
        const double from = seconds();
        kr_team_run(team, read_part, &job, job.parts);
        const double rate = (double)bytes / (seconds() - from);
        best = rate > best ? rate : best;
    }
    kr_arena_free(&arena);
    return best;
}

/* Best seconds of one call with this many rows; logits for the last row, or for all in decode. */
static double best_step(plain_model *p, uint32_t rows, bool decode, float *logits)
{
    uint32_t tokens[ROWS_MAX];
    double best = 1e9;

    for (uint32_t i = 0; i < rows; i++)
        tokens[i] = (i * 7919 + 11) % p->model->vocab;
    for (int i = 0; i < (rows > 64 ? 3 : 4 * REPEATS); i++) {
        p->used = 0;
        const double from = seconds();
        plain_read(p, tokens, rows, decode ? rows : 1, logits, false);
        const double s = seconds() - from;
        best = s < best ? s : best;
    }
    return best;
}

int main(int count, char **args)
{
    kr_err err = {.text = ""};
    kr_team *team;
    kr_forward *forward;
    kr_model_file *file;
    uint64_t weights, scratch;
    plain_model p;

    if (count < 2) {
        fprintf(stderr, "use: bench_forward MODEL [THREADS [f32]]\n");
        return 2;
    }
    const uint32_t threads = count > 2 ? (uint32_t)atoi(args[2]) : 1;
    if (kr_model_file_open(args[1], &file, &err) != KR_OK ||
        kr_team_create(&team, threads, NULL, &err) != KR_OK)
        goto failed;
    const kr_forward_config config = {
        .file = file, .team = team, .rows_max = ROWS_MAX, .kv_dtype = KR_F32, .weights_f32 = count > 3};
    if (kr_forward_bytes(&config, &weights, &scratch, &err) != KR_OK)
        goto failed;
    const double from = seconds();
    if (kr_forward_create(&forward, &config, NULL, NULL, &err) != KR_OK)
        goto failed;
    printf("%s, %u threads; packed in %.2f s; weights %.1f MB, scratch %.1f MB\n", kr_forward_path(forward),
           threads, seconds() - from, (double)weights / 1e6, (double)scratch / 1e6);

    const kr_model *m = kr_model_file_model(file);
    const double bandwidth = read_bandwidth(team, weights);
    float *logits = kr_alloc((size_t)64 * m->vocab * sizeof *logits);
    plain_init(&p, forward, m, ROWS_MAX, ROWS_MAX);
    printf("reading %.1f MB: %.1f GB/s, so at most %.0f decode steps/s\n", (double)weights / 1e6,
           bandwidth * 1e-9, bandwidth / (double)weights);
    for (uint32_t rows = 1; rows <= 64; rows *= 2) {
        const double s = best_step(&p, rows, true, logits);
        printf("decode  %3u rows: %8.1f tok/s, %7.3f ms a step, weights at %.1f GB/s (%.0f %% of reading)\n",
               rows, rows / s, s * 1e3, (double)weights / s * 1e-9, 100.0 * (double)weights / s / bandwidth);
    }
    const kr_parameters n = kr_model_parameters(m);
    for (uint32_t rows = 128; rows <= ROWS_MAX; rows *= 2) {
        const double s = best_step(&p, rows, false, logits);
        printf("prefill %3u rows: %8.1f tok/s, %.0f G multiply-adds/s\n", rows, rows / s,
               (double)(n.attention + n.dense_ffn) * rows / s * 1e-9);
    }
    plain_free(&p);
    kr_free(logits);
    kr_forward_destroy(forward);
    kr_team_destroy(team);
    kr_model_file_close(file);
    return 0;
failed:
    fprintf(stderr, "bench_forward: %s\n", err.text);
    return 1;
}
