/* Connecting to remote memory nodes. */
#include "cli/nodes.h"

#include <string.h>

#include "cli/address.h"

enum { SPIN_US = 50 };

const char *const kr_cli_transports[] = {"auto", "shm", "tcp", NULL};

kr_status kr_cli_connect(const char *address, kr_ucx_transport transport, const char *key_file,
                         uint64_t timeout_ns, kr_engine_node *node, kr_err *err)
{
    kr_cli_address at = {.port = 0};
    kr_cli_key key = {.count = 0};
    kr_status status = kr_cli_address_parse(address, 1, &at, err);
    if (status == KR_OK && key_file != NULL)
        status = kr_cli_key_read(key_file, &key, err);
    const kr_ucx_config config = {.host = at.host,
                                  .port = at.port,
                                  .transport = transport,
                                  .key = key.count != 0 ? key.bytes : NULL,
                                  .key_bytes = key.count,
                                  .payload_max = KR_MSG_PAYLOAD_MAX,
                                  .timeout_ns = timeout_ns,
                                  .spin_us = SPIN_US,
                                  .clock = &kr_clock_system};
    *node = (kr_engine_node){0};
    if (status == KR_OK)
        status = kr_ucx_connect(&config, &node->welcome, &node->link, err);
    explicit_bzero(&key, sizeof key);
    return status;
}
