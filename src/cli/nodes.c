/* Connecting to remote memory nodes: addresses and keys as people write them. */
#include "cli/nodes.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

kr_status kr_cli_read_key(const char *path, uint8_t key[KR_CLI_KEY_BYTES_MAX], size_t *bytes, kr_err *err)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        return kr_fail(err, KR_E_IO, "key file %s: %s", path, strerror(errno));
    size_t n = fread(key, 1, KR_CLI_KEY_BYTES_MAX, file);
    const bool longer = n == KR_CLI_KEY_BYTES_MAX && fgetc(file) != EOF;
    fclose(file);
    if (n != 0 && key[n - 1] == '\n')
        n--;
    if (longer || n == 0)
        return kr_fail(err, KR_E_LIMIT, "key file %s: a key has 1 to %d bytes", path, KR_CLI_KEY_BYTES_MAX);
    *bytes = n;
    return KR_OK;
}

/* HOST:PORT; brackets around an IPv6 host. */
static kr_status split_address(const char *address, char *host, size_t host_bytes, uint16_t *port,
                               kr_err *err)
{
    const char *colon = strrchr(address, ':');
    size_t length = colon == NULL ? 0 : (size_t)(colon - address);
    const char *first = address;
    if (length >= 2 && first[0] == '[' && first[length - 1] == ']') {
        first++;
        length -= 2;
    }
    char *end = NULL;
    const unsigned long number = colon == NULL ? 0 : strtoul(colon + 1, &end, 10);
    if (length == 0 || length >= host_bytes || number == 0 || number > UINT16_MAX || *end != '\0' ||
        colon[1] == '-')
        return kr_fail(err, KR_E_ARG, "memory node \"%s\" is not HOST:PORT", address);
    memcpy(host, first, length);
    host[length] = '\0';
    *port = (uint16_t)number;
    return KR_OK;
}

kr_status kr_cli_connect(const char *address, kr_ucx_transport transport, const char *key_file,
                         uint64_t timeout_ns, kr_engine_node *node, kr_err *err)
{
    char host[256];
    uint8_t key[KR_CLI_KEY_BYTES_MAX];
    kr_ucx_config config = {.host = host,
                            .transport = transport,
                            .payload_max = KR_MSG_PAYLOAD_MAX,
                            .timeout_ns = timeout_ns,
                            .spin_us = 50,
                            .clock = &kr_clock_system};
    kr_status status = split_address(address, host, sizeof host, &config.port, err);
    if (status == KR_OK && key_file != NULL) {
        status = kr_cli_read_key(key_file, key, &config.key_bytes, err);
        config.key = key;
    }
    *node = (kr_engine_node){0};
    if (status == KR_OK)
        status = kr_ucx_connect(&config, &node->welcome, &node->link, err);
    explicit_bzero(key, sizeof key);
    return status;
}
