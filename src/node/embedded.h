/* A memory node inside the process of its client: the default of `karat run`, of evaluations and of
 * tests.
 *
 * Driven, the client's own thread runs the node's work whenever it waits: with one stream both sides
 * use all cores in turn. Otherwise a thread of its own serves the node, and both sides work at once. */
#ifndef KR_NODE_EMBEDDED_H
#define KR_NODE_EMBEDDED_H

#include <pthread.h>
#include <stdbool.h>

#include "node/node.h"

/* Stays where it is while it runs. */
typedef struct {
    kr_node *node;
    kr_link *client; /* for the engine */
    kr_link *server;
    kr_msg_welcome welcome; /* what a remote node would have said */
    bool driven;
    pthread_t thread; /* unless driven */
    bool served;
} kr_embedded;

kr_status kr_embedded_start(kr_embedded *embedded, const kr_node_config *config, bool driven, kr_err *err);
/* Driven: handles the next message on the calling thread. context is the kr_embedded. */
kr_status kr_embedded_drive(void *context, uint64_t deadline_ns, kr_err *err);
/* After the client is gone; one that never started (all zero) is fine. */
void kr_embedded_stop(kr_embedded *embedded);

#endif
