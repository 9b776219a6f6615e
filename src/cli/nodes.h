/* Memory nodes that a command reaches over UCX. */
#ifndef KR_CLI_NODES_H
#define KR_CLI_NODES_H

#include "engine/peer.h"
#include "wire/ucx.h"

/* Names of kr_ucx_transport, NULL-terminated. */
extern const char *const kr_cli_transports[];

/* Fills link and welcome; the caller closes the link. address: HOST:PORT or [HOST]:PORT.
 * key_file: file with the pre-shared key, or NULL. */
kr_status kr_cli_connect(const char *address, kr_ucx_transport transport, const char *key_file,
                         uint64_t timeout_ns, kr_engine_node *node, kr_err *err);

#endif
