/* A memory node: sessions' pages and index records, and the stages that read them.
 *
 * A state machine: message in, device work, message out; it knows no sockets and no weights. Each
 * device has its own pool, worker team and queue; a device computes on its own memory. Messages of
 * one connection for one device are handled in order; different devices run at the same time. */
#ifndef KR_NODE_NODE_H
#define KR_NODE_NODE_H

#include <stdint.h>

#include "base/clock.h"
#include "base/status.h"
#include "wire/link.h"

typedef struct kr_node kr_node;

enum { KR_NODE_DEVICES_MAX = 64 };

typedef struct {
    uint32_t devices;            /* >= 1 */
    uint32_t threads_per_device; /* >= 1; device threads are bound to the device's memory */
    bool bind;                   /* bind threads and memory by hwloc; false in tests */
    uint64_t pool_bytes;         /* per device; reserved and touched at CONFIGURE */
    uint32_t sessions_max;
    const char *save_folder; /* NULL: SAVE and RESTORE are refused */
    const kr_clock *clock;
    uint32_t epoch; /* 0: drawn from the clock */
} kr_node_config;

kr_status kr_node_create(kr_node **node, const kr_node_config *config, kr_err *err);
void kr_node_destroy(kr_node *node);
uint32_t kr_node_epoch(const kr_node *node);

/* Serves one authenticated connection on the calling thread until BYE, loss or kr_node_stop.
 * Device work runs on the devices' own threads; replies leave in completion order per device. */
kr_status kr_node_serve(kr_node *node, kr_link *link, kr_err *err);

/* Embedded, one stream: receives one message (waiting until deadline) and runs it to its reply on
 * the calling thread with the device's team, without handing it to another thread. */
kr_status kr_node_step(kr_node *node, kr_link *link, uint64_t deadline_ns, kr_err *err);

/* Makes every kr_node_serve return soon; safe from any thread. */
void kr_node_stop(kr_node *node);

/* One line on the kernels in use ("attend bf16 avx512, page_score avx512"). */
const char *kr_node_path(const kr_node *node);

#endif
