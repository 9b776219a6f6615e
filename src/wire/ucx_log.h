/* UCX's own messages go through base/log.h at debug level: UCX writes to standard output otherwise,
 * and reports as errors what is ordinary for us (a peer that closes). The link that fails tells its
 * own story. */
#ifndef KR_WIRE_UCX_LOG_H
#define KR_WIRE_UCX_LOG_H

/* Once a process, however often it is called. */
void kr_ucx_log_install(void);

#endif
