/* Choosing and proving the data path of a connection, after the handshake:
 *
 *   client                                      node
 *   PATH   what it allows, its host          ->
 *                                           <-  PATH   the transport chosen, the node's address
 *   PATH   its own address                   ->
 *   over the data path, both ways: PROOF (client data, node data)
 *   DONE                                     ->
 *                                           <-  DONE   (or ERROR)
 *
 * The proofs show that the path works and that it leads to the peer who holds the key. When the
 * path fails at either end, the client offers again without that transport, as long as one is left;
 * so shared memory gives way to TCP where both are allowed. */
#ifndef KR_WIRE_PATH_H
#define KR_WIRE_PATH_H

#include "wire/data.h"
#include "wire/handshake.h"

typedef struct {
    const kr_control *control;
    const kr_handshake *handshake;
    uint32_t epoch;
    uint32_t transports; /* allowed here: set of KR_PATH_* */
    uint64_t spin_ns;
    uint64_t deadline_ns; /* for all of it */
} kr_path_config;

/* *transport: the one in use. KR_E_UNSUPPORTED when the ends allow no common transport; else what
 * made the last one fail. */
kr_status kr_path_client(const kr_path_config *config, kr_data **data, uint32_t *transport, kr_err *err);
kr_status kr_path_node(const kr_path_config *config, kr_data **data, uint32_t *transport, kr_err *err);

#endif
