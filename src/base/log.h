/* Progress and diagnostics to standard error, one line a call, for programs that ask for them: the
 * library itself is silent. Errors that end a command are printed by cli alone. */
#ifndef KR_BASE_LOG_H
#define KR_BASE_LOG_H

typedef enum { KR_LOG_ERROR, KR_LOG_WARN, KR_LOG_INFO, KR_LOG_DEBUG } kr_log_level;

void kr_log_set(kr_log_level highest_printed); /* before the first call nothing is printed */
void kr_log(kr_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
