/* The files that `karat run` writes beside its answer: selections, the recorded run, the trace. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "cli/run.h"
#include "report/chrome.h"

void kr_run_write_selection(void *context, const kr_selection *s)
{
    const kr_run *run = context;
    fprintf(run->selection,
            "{\"step\":%" PRIu64 ",\"session\":%u,\"position\":%" PRIu64
            ",\"layer\":%u,\"list\":%u,\"units\":[",
            s->step, kr_session_number(s->session), s->position, s->layer, s->list);
    for (uint32_t i = 0; i < s->units; i++)
        fprintf(run->selection, "%s%u", i == 0 ? "" : ",", s->unit[i]);
    fputs("]}\n", run->selection);
}

static kr_status write_record(FILE *file, const kr_engine *engine, kr_err *err)
{
    kr_run_header header;
    const kr_run_event *events;
    uint64_t count;
    kr_engine_record(engine, &header, &events, &count);
    return kr_run_write(file, &header, events, count, err);
}

enum { TRACK_NAME_BYTES = 64 };

/* Compute ops, sends, then the devices of each peer. */
static void name_track(const kr_engine *engine, uint32_t track, char *name, const char **process)
{
    uint32_t device = track - 2, peer = 0;
    *process = "compute node";
    if (track < 2) {
        snprintf(name, TRACK_NAME_BYTES, "%s", track == 0 ? "ops" : "sends");
        return;
    }
    while (device >= kr_engine_peer(engine, peer)->node.welcome.devices)
        device -= kr_engine_peer(engine, peer++)->node.welcome.devices;
    *process = kr_peer_name(kr_engine_peer(engine, peer));
    snprintf(name, TRACK_NAME_BYTES, "device %u (asked to answered)", device);
}

static kr_status write_trace(FILE *file, const kr_engine *engine, kr_err *err)
{
    const char *kinds[KR_OP_KINDS];
    const uint32_t count = kr_engine_tracks(engine);
    kr_chrome_track *track = kr_alloc(count * sizeof *track);
    char(*name)[TRACK_NAME_BYTES] = kr_alloc(count * sizeof *name);
    kr_status status = KR_OK;
    for (uint32_t kind = 0; kind < KR_OP_KINDS; kind++)
        kinds[kind] = kr_op_name((kr_op_kind)kind);
    if (track == NULL || name == NULL)
        status = kr_fail(err, KR_E_MEMORY, "no memory for a trace of %u tracks", count);
    for (uint32_t i = 0; i < count && status == KR_OK; i++) {
        name_track(engine, i, name[i], &track[i].process);
        track[i].name = name[i];
        track[i].spans = kr_engine_spans(engine, i);
    }
    const kr_chrome_trace trace = {track, count, kinds, KR_OP_KINDS};
    if (status == KR_OK)
        status = kr_chrome_write(&trace, file, err);
    kr_free(track);
    kr_free(name);
    return status;
}

static kr_status open_file(const char *path, FILE **file, kr_err *err)
{
    if (path == NULL)
        return KR_OK;
    *file = fopen(path, "w");
    return *file != NULL ? KR_OK : kr_fail(err, KR_E_IO, "%s: %s", path, strerror(errno));
}

kr_status kr_run_open_files(kr_run *run, kr_err *err)
{
    const kr_run_options *o = run->options;
    kr_status status = open_file(o->dump_selection, &run->selection, err);
    if (status == KR_OK)
        status = open_file(o->record, &run->record, err);
    if (status == KR_OK)
        status = open_file(o->trace, &run->trace, err);
    return status;
}

static kr_status close_file(const char *path, FILE **file, kr_err *err)
{
    FILE *open = *file;
    *file = NULL;
    if (open == NULL || fclose(open) == 0)
        return KR_OK;
    return kr_fail(err, KR_E_IO, "%s: %s", path, strerror(errno));
}

kr_status kr_run_write_files(kr_run *run, kr_err *err)
{
    const kr_run_options *o = run->options;
    kr_status status = close_file(o->dump_selection, &run->selection, err);
    if (status == KR_OK && run->record != NULL)
        status = write_record(run->record, run->engine, err);
    if (status == KR_OK)
        status = close_file(o->record, &run->record, err);
    if (status == KR_OK && run->trace != NULL)
        status = write_trace(run->trace, run->engine, err);
    return status == KR_OK ? close_file(o->trace, &run->trace, err) : status;
}

void kr_run_close_files(kr_run *run)
{
    FILE *file[] = {run->selection, run->record, run->trace};
    for (size_t i = 0; i < sizeof file / sizeof file[0]; i++)
        if (file[i] != NULL)
            fclose(file[i]);
    run->selection = run->record = run->trace = NULL;
}
