/* A memory node in a process of its own that a command starts for itself: karat's own program again, on
 * loopback, with a port that the system chooses. */
#ifndef KR_CLI_NODE_PROCESS_H
#define KR_CLI_NODE_PROCESS_H

#include <sys/types.h>

#include "cli/nodes.h"

typedef struct {
    pid_t pid; /* 0: none */
    const char *save_folder;
    uint64_t timeout_ns;
} kr_node_process;

/* Starts a node of one device and connects to it. KR_E_IO: it does not start, or says no port. */
kr_status kr_node_process_start(kr_node_process *process, uint64_t pool_bytes, uint32_t sessions,
                                uint32_t threads, kr_engine_node *node, kr_err *err);
/* Closes the link and ends the process. */
void kr_node_process_stop(kr_node_process *process, kr_engine_node *node);

#endif
