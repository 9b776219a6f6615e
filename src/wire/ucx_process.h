/* Takes back what UCX does to a process just by being loaded: it catches SIGHUP (to raise its log
 * level, so a closed terminal would no longer end the process) and the signals of a crash (to print
 * a trace), and it logs to standard output.
 *
 * Its messages go through base/log.h at debug level: it reports as errors what is ordinary for us,
 * as a peer that closes, and the link that fails tells its own story. */
#ifndef KR_WIRE_UCX_PROCESS_H
#define KR_WIRE_UCX_PROCESS_H

/* Once a process, however often it is called; links call it, and a command may before. */
void kr_ucx_tame(void);

#endif
