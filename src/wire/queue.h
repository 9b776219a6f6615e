/* The in-process link: a pair of ends joined by bounded queues. Same messages, same checks as UCX;
 * a payload is copied once into a pooled buffer and handed over. Closing either end gives KR_E_LOST
 * on the other. The epoch is not checked here: the node checks it against its own. */
#ifndef KR_WIRE_QUEUE_H
#define KR_WIRE_QUEUE_H

#include "wire/link.h"

/* depth messages wait each way, 1 to 4096; a sender waits when they do. KR_E_LIMIT, KR_E_MEMORY. */
kr_status kr_queue_pair(kr_link **client, kr_link **server, uint32_t depth, const kr_clock *clock,
                        kr_err *err);

#endif
