/* Addresses and keys of memory nodes as they are written on a command line. */
#ifndef KR_CLI_ADDRESS_H
#define KR_CLI_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum { KR_CLI_HOST_BYTES = 256, KR_CLI_KEY_MIN = 16, KR_CLI_KEY_MAX = 4096 };

typedef struct {
    char host[KR_CLI_HOST_BYTES]; /* without brackets */
    uint16_t port;
} kr_cli_address;

typedef struct {
    uint8_t bytes[KR_CLI_KEY_MAX];
    size_t count; /* 0: no key */
} kr_cli_key;

/* HOST:PORT, an IPv6 host in brackets; port >= port_min. KR_E_ARG. */
kr_status kr_cli_address_parse(const char *text, uint16_t port_min, kr_cli_address *address, kr_err *err);
/* "localhost", 127.0.0.0/8 or ::1. */
bool kr_cli_is_loopback(const kr_cli_address *address);
/* A file's bytes without one newline at the end, KR_CLI_KEY_MIN to KR_CLI_KEY_MAX of them; the file
 * must not be open to others. KR_E_IO, KR_E_AUTH (mode), KR_E_LIMIT. */
kr_status kr_cli_key_read(const char *path, kr_cli_key *key, kr_err *err);

#endif
