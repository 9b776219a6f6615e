/* Heartbeats of one connection: a thread of its own beats on the control socket and listens for the
 * peer's beats, so that a peer that computes for minutes is alive and one that is stopped, killed
 * or cut off is lost, whatever the data path says.
 *
 * The peer is lost when it closes the control socket, sends anything but beats there, or is silent
 * for dead_after_ms. That is reported once, by a call of on_lost from the heart's thread. */
#ifndef KR_WIRE_HEART_H
#define KR_WIRE_HEART_H

#include "wire/control.h"

typedef struct kr_heart kr_heart;

typedef struct {
    uint32_t beat_interval_ms, dead_after_ms, epoch;
    void (*on_lost)(void *context);
    void *context;
} kr_heart_config;

/* The control socket is the heart's from here on, and closed with it. KR_E_IO, KR_E_MEMORY. */
kr_status kr_heart_start(kr_heart **heart, const kr_control *control, const kr_heart_config *config,
                         kr_err *err);
/* Why the peer is lost: NULL while it is not; else text that lives as long as the heart. */
const char *kr_heart_loss(const kr_heart *heart);
/* Says BYE to the peer (its heart reports the loss at once) and ends the thread. */
void kr_heart_stop(kr_heart *heart);

#endif
