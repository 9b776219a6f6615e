/* The data path of one connection: a byte stream over UCX, by shared memory or TCP.
 *
 * Each path has its own UCX context and worker, so that its transport and network device are its
 * own: a shared-memory path opens no socket, a TCP path listens on the one interface it is given.
 * Both ends open, exchange addresses over the control socket, then connect.
 *
 * Threads: one receives, any may send at the same time; interrupt may come from any thread. */
#ifndef KR_WIRE_DATA_H
#define KR_WIRE_DATA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/clock.h"
#include "base/status.h"

typedef struct kr_data kr_data;

typedef struct {
    uint32_t transport;    /* KR_PATH_SHM or KR_PATH_TCP */
    const char *interface; /* network interface of a TCP path ("lo") */
    uint64_t spin_ns;      /* look this long before sleeping */
    const kr_clock *clock;
} kr_data_config;

/* KR_E_IO when UCX refuses; the text holds UCX's reason and the limits that may be behind it. */
kr_status kr_data_open(kr_data **data, const kr_data_config *config, kr_err *err);
/* This end's address; lives as long as data. */
const uint8_t *kr_data_address(const kr_data *data, size_t *bytes);
/* address is the peer's, who has proved the key: UCX parses it. */
kr_status kr_data_connect(kr_data *data, const uint8_t *address, kr_err *err);

/* Appends bytes to the stream. *released = false after a failure that leaves UCX with a claim on the
 * memory: it must stay until kr_data_close has returned, and the path is of no more use.
 * KR_E_DEADLINE, KR_E_LOST. */
kr_status kr_data_send(kr_data *data, const void *memory, size_t bytes, uint64_t deadline_ns, bool *released,
                       kr_err *err);
/* Fills memory with the next bytes of the stream, all of them. After KR_E_DEADLINE the receive goes
 * on: the next call must name the same memory. KR_E_LOST after an interrupt, when what had arrived
 * is used up. */
kr_status kr_data_receive(kr_data *data, void *memory, size_t bytes, uint64_t deadline_ns, kr_err *err);
/* Makes every present and later wait end with KR_E_LOST. */
void kr_data_interrupt(kr_data *data);
/* Gives what was sent until deadline to leave this process. */
void kr_data_flush(kr_data *data, uint64_t deadline_ns);
/* No other call may be under way, nor come later. */
void kr_data_close(kr_data *data);

#endif
