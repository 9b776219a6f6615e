/* Spans as a Chrome trace (JSON), which Perfetto and chrome://tracing open: one track a worker,
 * arrows where a micro-batch moves from one track to another. */
#ifndef KR_REPORT_CHROME_H
#define KR_REPORT_CHROME_H

#include <stdint.h>
#include <stdio.h>

#include "base/span.h"
#include "base/status.h"

typedef struct {
    const char *process; /* group of tracks: "compute", "memory node 0" */
    const char *name;    /* "rank 0", "device 1", "link" */
    const kr_spans *spans;
} kr_chrome_track;

typedef struct {
    const kr_chrome_track *tracks;
    uint32_t track_count;
    const char *const *kinds; /* [kind_count] names by kr_span.kind; others print as numbers */
    uint32_t kind_count;
} kr_chrome_trace;

/* Times are relative to the earliest span. Overwritten spans of a ring are absent. KR_E_MEMORY,
 * KR_E_IO. */
kr_status kr_chrome_write(const kr_chrome_trace *trace, FILE *out, kr_err *err);

#endif
