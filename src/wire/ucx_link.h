/* Makes a link of a connection whose handshake is done and whose data path is proved. */
#ifndef KR_WIRE_UCX_LINK_H
#define KR_WIRE_UCX_LINK_H

#include "wire/control.h"
#include "wire/data.h"
#include "wire/link.h"

typedef struct {
    const kr_control *control;
    kr_data *data;
    uint32_t transport;            /* KR_PATH_* of data */
    const char *peer;              /* "node" or "client", for messages */
    const kr_msg_welcome *welcome; /* epoch, beats, payload_max */
    uint64_t payload_max;          /* this end's own limit */
} kr_ucx_link_config;

/* Takes over the control socket and data; after a failure they are still the caller's. */
kr_status kr_ucx_link_create(kr_link **link, const kr_ucx_link_config *config, kr_err *err);

#endif
