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
kill $node
wait $node
node=
status=0
"$work/client" 127.0.0.1 "$port" 2> "$work/lost" || status=$?
[ $status = 1 ] && grep -q '^client: KARAT_E_LOST: ' "$work/lost" || { cat "$work/lost"; exit 1; }
