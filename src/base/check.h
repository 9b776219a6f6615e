/* Checks for a caller's bug; they stay on in every build and end the process with file and line.
 * A failure of the world (bad file, full pool, lost peer) is a kr_status, never a check. */
#ifndef KR_BASE_CHECK_H
#define KR_BASE_CHECK_H

/* Prints file, line and text to standard error and aborts. */
_Noreturn void kr_check_failed(const char *file, int line, const char *text);

#define KR_CHECK(condition) ((condition) ? (void)0 : kr_check_failed(__FILE__, __LINE__, #condition))

#endif
