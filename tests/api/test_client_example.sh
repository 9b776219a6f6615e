#!/bin/bash
# examples/client.c, built against the shared library alone, with a node beside it.
set -euo pipefail
cd "$(dirname "$0")/../.."

build=$(cd "$(dirname "${KARAT_LIB:-build/libkarat.a}")" && pwd)
work=$(mktemp -d)
node=
trap '[ -z "$node" ] || kill $node; rm -rf "$work"' EXIT

${CC:-cc} -std=c11 -O2 -Wall -Wextra -Werror ${KARAT_SAN:+-fsanitize=$KARAT_SAN} -Iinclude examples/client.c \
    -L"$build" -lkarat -lm -Wl,-rpath,"$build" -o "$work/client"
mkfifo "$work/ready"
"$build/karat" node --json --listen 127.0.0.1:0 --memory 16M > "$work/ready" 2> "$work/err" &
node=$!
read -r line < "$work/ready"
port=$(sed 's/.*"port":\([0-9]*\).*/\1/' <<< "$line")
"$work/client" 127.0.0.1 "$port"
"$work/client" 127.0.0.1 "$port" | tail -1

# A program may end, and drop the library, with a client connected: its threads still find their code.
cat > "$work/drop.c" <<'END'
#include <dlfcn.h>
#include <karat/client.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    void *library = dlopen(argv[1], RTLD_NOW);
    karat_client *client;
    karat_status (*connect)(const char *, uint16_t, const karat_client_options *, karat_client **, karat_error *);

    if (argc != 3 || library == NULL)
        return 2;
    *(void **)&connect = dlsym(library, "karat_client_connect");
    if (connect("127.0.0.1", (uint16_t)atoi(argv[2]), NULL, &client, NULL) != KARAT_OK)
        return 3;
    dlclose(library);
    usleep(700000); /* longer than the time between two heartbeats */
    return 0;
}
END
${CC:-cc} -std=gnu11 -Iinclude "$work/drop.c" -ldl -o "$work/drop"
[ -n "${KARAT_SAN:-}" ] || "$work/drop" "$build/libkarat.so" "$port"
kill $node
wait $node
node=
status=0
"$work/client" 127.0.0.1 "$port" 2> "$work/lost" || status=$?
[ $status = 1 ] && grep -q '^client: KARAT_E_LOST: ' "$work/lost" || { cat "$work/lost"; exit 1; }
