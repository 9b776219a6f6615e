#!/bin/bash
# `make demo`: a memory node as a process of its own, and a real model that keeps every byte of its
# KV cache and index on it. KARAT names the binary (build/karat by default).
#
# First a question; then a long text, with the quest method, which reads 1,024 tokens of it a step.
set -euo pipefail

karat=${KARAT:-build/karat}
text=/usr/share/common-licenses/GPL-3 # on every Debian system
[ -r "$text" ] || { echo "demo.sh: $text is missing (Debian's base-files has it)" >&2; exit 1; }

model=$(tools/fetch_model.sh)
[ -n "$model" ] || { echo "demo.sh: no model; put one at KARAT_MODEL_DIR" >&2; exit 1; }

work=$(mktemp -d)
node=
stop() {
    if [ -n "$node" ]; then
        kill "$node" 2> /dev/null || true
        wait "$node" 2> /dev/null || true
    fi
    rm -rf "$work"
}
trap stop EXIT

# The node takes a free port of the loopback interface and says which.
"$karat" node --listen 127.0.0.1:0 --memory 512M --json > "$work/node.json" 2> "$work/node.log" &
node=$!
port=
for _ in $(seq 100); do
    port=$(sed -n 's/.*"port": *\([0-9]*\).*/\1/p' "$work/node.json")
    [ -n "$port" ] && break
    kill -0 "$node" 2> /dev/null || { echo "demo.sh: the memory node did not start:" >&2; cat "$work/node.log" >&2; exit 1; }
    sleep 0.1
done
[ -n "$port" ] || { echo "demo.sh: the memory node did not say its port within 10 s" >&2; exit 1; }
echo "memory node: process $node at 127.0.0.1:$port"

echo
echo "== a question, dense attention"
"$karat" run "$model" --memory-node "127.0.0.1:$port" --instruct --tokens 64 \
    --prompt "What is the capital of France, and what is it known for?"

echo
echo "== 4,500 words of a licence and a question, quest attention with a budget of 1,024 tokens"
{
    head -c 28000 "$text"
    printf '\n\nIn one sentence: what is this text, and who published it?\n'
} > "$work/long.txt"
"$karat" run "$model" --memory-node "127.0.0.1:$port" --instruct --tokens 64 --attention quest --budget 1024 \
    --prompt-file "$work/long.txt"
