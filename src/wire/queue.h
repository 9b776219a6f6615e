/* The in-process link: a pair of ends joined by bounded queues. Same messages, same checks as UCX;
 * a payload is copied once into a pooled buffer and handed over. Either end may be used by one
 * thread at a time. */
#ifndef KR_WIRE_QUEUE_H
#define KR_WIRE_QUEUE_H

#include "wire/link.h"

/* depth messages each way; buffers grow to the largest message seen and are reused. */
kr_status kr_queue_pair(kr_link **client, kr_link **server, uint32_t depth, const kr_clock *clock,
                        kr_err *err);

#endif
