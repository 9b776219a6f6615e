/* Chrome trace events: "M" names a track, "X" is a span, "s" and "f" are the two ends of an arrow.
 *
 * Arrows join consecutive spans of one (step, micro-batch) that lie on different tracks: that is
 * where the micro-batch's data moved. Times are microseconds with three decimals. */
#include "report/chrome.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "report/stages.h"

/* A span and the track it lies on. */
typedef struct {
    const kr_span *span;
    uint32_t track;
} placed;

typedef struct {
    const kr_chrome_trace *trace;
    FILE *out;
    uint64_t origin_ns;
    bool first;
} writer;

/* Names come from karat itself, but may hold what a user typed. */
static void write_string(FILE *out, const char *text)
{
    fputc('"', out);
    for (; *text != '\0'; text++) {
        const unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\')
            fprintf(out, "\\%c", c);
        else if (c < 0x20 || c == 0x7f)
            fprintf(out, "\\u%04x", c);
        else
            fputc(c, out);
    }
    fputc('"', out);
}

static void next_event(writer *w)
{
    fputs(w->first ? "\n" : ",\n", w->out);
    w->first = false;
}

static void write_time(const writer *w, const char *key, uint64_t ns)
{
    fprintf(w->out, "\"%s\":%" PRIu64 ".%03u", key, ns / 1000, (unsigned)(ns % 1000));
}

/* Tracks of one process share a process number: the index of its first track. */
static uint32_t process_of(const kr_chrome_trace *trace, uint32_t track)
{
    for (uint32_t t = 0; t < track; t++)
        if (strcmp(trace->tracks[t].process, trace->tracks[track].process) == 0)
            return t;
    return track;
}

static void write_names(writer *w)
{
    for (uint32_t t = 0; t < w->trace->track_count; t++) {
        const uint32_t process = process_of(w->trace, t);
        if (process == t) {
            next_event(w);
            fprintf(w->out,
                    "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%u,\"tid\":%u,\"args\":{\"name\":",
                    process, t);
            write_string(w->out, w->trace->tracks[t].process);
            fputs("}}", w->out);
        }
        next_event(w);
        fprintf(w->out,
                "{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%u,\"tid\":%u,\"args\":{\"name\":", process,
                t);
        write_string(w->out, w->trace->tracks[t].name);
        fputs("}}", w->out);
    }
}

static void write_span(writer *w, const placed *p)
{
    const kr_span *s = p->span;

    next_event(w);
    fprintf(w->out, "{\"ph\":\"X\",\"pid\":%u,\"tid\":%u,", process_of(w->trace, p->track), p->track);
    write_time(w, "ts", s->begin_ns - w->origin_ns);
    fputc(',', w->out);
    write_time(w, "dur", s->end_ns - s->begin_ns);
    fputs(",\"name\":", w->out);
    if (s->kind < w->trace->kind_count)
        write_string(w->out, w->trace->kinds[s->kind]);
    else
        fprintf(w->out, "\"kind %u\"", s->kind);
    fprintf(w->out, ",\"args\":{\"step\":%" PRIu32 ",\"layer\":%u,\"micro-batch\":%u", s->step, s->layer,
            s->micro_batch);
    if (s->op != UINT32_MAX)
        fprintf(w->out, ",\"op\":%" PRIu32, s->op);
    fputs("}}", w->out);
}

/* One end of an arrow, bound to the span that encloses its time. */
static void write_arrow_end(writer *w, const placed *p, uint64_t id, bool start)
{
    next_event(w);
    fprintf(w->out, "{\"ph\":\"%s\",\"id\":%" PRIu64 ",\"pid\":%u,\"tid\":%u,", start ? "s" : "f", id,
            process_of(w->trace, p->track), p->track);
    write_time(w, "ts", p->span->begin_ns - w->origin_ns);
    fprintf(w->out, ",\"name\":\"micro-batch\",\"cat\":\"flow\"%s}", start ? "" : ",\"bp\":\"e\"");
}

/* By (step, micro-batch, begin, end, track, op): total, so that the same spans give the same file. */
static int by_micro_batch(const void *left, const void *right)
{
    const placed *a = left, *b = right;
    const uint64_t x[6] = {a->span->step, a->span->micro_batch, a->span->begin_ns, a->span->end_ns,
                           a->track,      a->span->op};
    const uint64_t y[6] = {b->span->step, b->span->micro_batch, b->span->begin_ns, b->span->end_ns,
                           b->track,      b->span->op};

    for (int i = 0; i < 6; i++)
        if (x[i] != y[i])
            return x[i] < y[i] ? -1 : 1;
    return 0;
}

static uint64_t count_spans(const kr_chrome_trace *trace)
{
    uint64_t count = 0;

    for (uint32_t t = 0; t < trace->track_count; t++)
        count += kr_spans_count(trace->tracks[t].spans);
    return count;
}

/* Fills all and returns the earliest begin. */
static uint64_t collect(const kr_chrome_trace *trace, placed *all)
{
    uint64_t n = 0, origin = UINT64_MAX;

    for (uint32_t t = 0; t < trace->track_count; t++) {
        const kr_spans *spans = trace->tracks[t].spans;
        for (uint64_t i = 0; i < kr_spans_count(spans); i++) {
            all[n] = (placed){.span = kr_spans_at(spans, i), .track = t};
            if (all[n].span->begin_ns < origin)
                origin = all[n].span->begin_ns;
            n++;
        }
    }
    return n != 0 ? origin : 0;
}

kr_status kr_chrome_write(const kr_chrome_trace *trace, FILE *out, kr_err *err)
{
    const uint64_t count = count_spans(trace);
    placed *all = kr_alloc(count * sizeof *all);

    if (all == NULL)
        return kr_fail(err, KR_E_MEMORY, "no memory for a trace of %" PRIu64 " spans", count);
    writer w = {.trace = trace, .out = out, .origin_ns = collect(trace, all), .first = true};
    qsort(all, count, sizeof *all, by_micro_batch);

    fputs("{\"displayTimeUnit\":\"ns\",\"traceEvents\":[", out);
    write_names(&w);
    for (uint64_t i = 0; i < count; i++) {
        write_span(&w, &all[i]);
        const bool same = i > 0 && all[i].span->step == all[i - 1].span->step &&
                          all[i].span->micro_batch == all[i - 1].span->micro_batch;
        if (same && all[i].track != all[i - 1].track) {
            write_arrow_end(&w, &all[i - 1], i, true);
            write_arrow_end(&w, &all[i], i, false);
        }
    }
    fputs("\n]}\n", out);
    kr_free(all);
    return fflush(out) != 0 || ferror(out) ? kr_fail(err, KR_E_IO, "cannot write the trace") : KR_OK;
}
