/* Inside workload/: one reader a format. Each appends the sessions of one file to a trace. */
#ifndef KR_WORKLOAD_READ_H
#define KR_WORKLOAD_READ_H

#include "workload/scan.h"
#include "workload/trace.h"

kr_status kr_read_kvct(kr_scan *scan, kr_trace *trace, kr_err *err);
kr_status kr_read_runs(kr_scan *scan, kr_trace *trace, kr_err *err);
kr_status kr_read_mooncake(kr_scan *scan, kr_trace *trace, uint32_t block_tokens, kr_err *err);
kr_status kr_read_lss(kr_scan *scan, kr_trace *trace, kr_err *err);
kr_status kr_read_copilot(kr_scan *scan, kr_trace *trace, kr_err *err);
/* Azure or BurstGPT, told apart by the names of the columns. */
kr_status kr_read_csv(const char *path, kr_trace *trace, kr_err *err);

/* "2026-01-31 12:00:00.123456", a 'T' and a zone of Z or +hh:mm are fine, or plain seconds. Writes
 * microseconds since 1970, or since 0 for plain seconds; false when it is neither. */
bool kr_read_timestamp(const char *text, uint64_t *us);

#endif
