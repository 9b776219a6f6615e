/* A key that anybody on the machine may read, or of a few letters, protects nothing: both are
 * refused, with what to do. */
#include "cli/address.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

kr_status kr_cli_address_parse(const char *text, uint16_t port_min, kr_cli_address *address, kr_err *err)
{
    const char *colon = strrchr(text, ':'), *host = text;
    size_t length = colon != NULL ? (size_t)(colon - text) : 0;
    char *end = NULL;

    if (length >= 2 && host[0] == '[' && host[length - 1] == ']') {
        host++;
        length -= 2;
    } else if (length != 0 && memchr(host, ':', length) != NULL) {
        length = 0; /* an IPv6 address whose last group would pass for a port */
    }
    const unsigned long port = colon != NULL && isdigit((unsigned char)colon[1])
                                   ? strtoul(colon + 1, &end, 10)
                                   : 0;
    if (length == 0 || length >= sizeof address->host || end == NULL || *end != '\0' || port > UINT16_MAX ||
        port < port_min)
        return kr_fail(err, KR_E_ARG,
                       "\"%s\" is not HOST:PORT (IPv6: [HOST]:PORT) with a port from %u to 65535", text,
                       port_min);
    memcpy(address->host, host, length);
    address->host[length] = '\0';
    address->port = (uint16_t)port;
    return KR_OK;
}

bool kr_cli_is_loopback(const kr_cli_address *address)
{
    struct in_addr v4;
    struct in6_addr v6;

    if (inet_pton(AF_INET, address->host, &v4) == 1)
        return ntohl(v4.s_addr) >> 24 == 127;
    if (inet_pton(AF_INET6, address->host, &v6) == 1)
        return memcmp(&v6, &in6addr_loopback, sizeof v6) == 0;
    return strcmp(address->host, "localhost") == 0;
}

kr_status kr_cli_key_read(const char *path, kr_cli_key *out, kr_err *err)
{
    kr_cli_key key = {0};
    struct stat about;
    FILE *file = fopen(path, "rb");

    if (file == NULL || fstat(fileno(file), &about) != 0) {
        kr_status status = kr_fail(err, KR_E_IO, "key file %s: %s", path, strerror(errno));
        if (file != NULL)
            fclose(file);
        return status;
    }
    key.count = fread(key.bytes, 1, sizeof key.bytes, file);
    const bool longer = key.count == sizeof key.bytes && fgetc(file) != EOF;
    fclose(file);
    if ((about.st_mode & 077) != 0)
        return kr_fail(err, KR_E_AUTH, "key file %s is open to other users (mode %o): chmod 600", path,
                       (unsigned)about.st_mode & 07777u);
    if (key.count != 0 && key.bytes[key.count - 1] == '\n')
        key.count--;
    if (longer || key.count < KR_CLI_KEY_MIN)
        return kr_fail(err, KR_E_LIMIT,
                       "key file %s: a key has %d to %d bytes (head -c 32 /dev/urandom makes one)", path,
                       KR_CLI_KEY_MIN, KR_CLI_KEY_MAX);
    *out = key;
    explicit_bzero(&key, sizeof key);
    return KR_OK;
}
