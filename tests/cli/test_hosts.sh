#!/bin/bash
# A node and its client on two hosts: two network namespaces with a cable between them. The same tokens as
# inside one process, over TCP; the node listens on the cable alone; a cut cable is noticed and said.
set -euo pipefail

karat=${KARAT:-build/karat}
model=tests/fixtures/tiny/llama.gguf
work=$(mktemp -d)
a=karat-a-$$ b=karat-b-$$
node=
cleanup() {
    [ -z "$node" ] || kill -KILL "$node" 2> /dev/null || true
    ip netns del "$a" 2> /dev/null || true
    ip netns del "$b" 2> /dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT

failed=0
say() { echo "FAIL: $*" >&2; failed=1; }
field() { python3 -c "import json,sys; r=json.load(sys.stdin); print($1)"; }
on_a() { ip netns exec "$a" "$@"; }
on_b() { ip netns exec "$b" "$@"; }
# The kernel tells of a link a while after it is up, and UCX takes no device before.
cable_up() {
    on_a ip link set "ka$$" up
    on_b ip link set "kb$$" up
    for _ in $(seq 100); do
        [ "$(on_a cat "/sys/class/net/ka$$/operstate") $(on_b cat "/sys/class/net/kb$$/operstate")" != "up up" ] ||
            return 0
        sleep 0.1
    done
    say "the cable does not come up"
}

if ! { ip netns add "$a" && ip netns add "$b" &&
    ip link add "ka$$" netns "$a" type veth peer name "kb$$" netns "$b"; } 2> "$work/why"; then
    echo "SKIP: no network namespaces: $(head -1 "$work/why")"
    exit 77
fi
on_a ip addr add 10.77.0.1/24 dev "ka$$"
on_b ip addr add 10.77.0.2/24 dev "kb$$"
cable_up
on_a ip link set lo up
on_b ip link set lo up

head -c 32 /dev/urandom > "$work/key"
chmod 600 "$work/key"
ip netns exec "$a" "$karat" node --listen 10.77.0.1:7420 --key-file "$work/key" --devices 2 --memory 16M --json \
    > "$work/node.json" 2> "$work/node.log" &
node=$!
for _ in $(seq 100); do
    [ ! -s "$work/node.json" ] || break
    sleep 0.1
done
[ -s "$work/node.json" ] || { say "the node did not start: $(cat "$work/node.log")"; exit 1; }
grep -q 'belongs on a trusted network' "$work/node.log" || say "no warning beyond loopback"

run=("$karat" run "$model" -p 'The memory node' -n 12 --ignore-end --json)
remote=(--memory-node 10.77.0.1:7420 --key-file "$work/key")
want=$("${run[@]}" | field 'r["sessions"][0]["tokens"]')
for attention in dense "quest --budget 16"; do
    # shellcheck disable=SC2086
    here=$("${run[@]}" --attention $attention | field 'r["sessions"][0]["tokens"]')
    there=$(on_b "${run[@]}" --attention $attention "${remote[@]}" | field 'r["sessions"][0]["tokens"]')
    [ -n "$here" ] && [ "$here" = "$there" ] || say "$attention: $there over the cable, $here inside"
done
[ -n "$want" ] || say "no tokens"
grep -q 'client at ucx tcp 10.77.0.2' "$work/node.log" || say "not over TCP: $(cat "$work/node.log")"

# Both ends' own addresses and no other: nothing at loopback, nothing at all addresses.
mkfifo "$work/words"
on_b "$karat" run "$model" --chat -n 4 --ignore-end -c 400 --timeout 20 "${remote[@]}" \
    < "$work/words" > "$work/chat" 2> "$work/chat.err" &
chat=$!
exec 9> "$work/words"
echo hello >&9
for _ in $(seq 100); do
    [ ! -s "$work/chat" ] || break
    sleep 0.1
done
[ -s "$work/chat" ] || say "no reply: $(cat "$work/chat.err")"
for host in "$a" "$b"; do
    open=$(ip netns exec "$host" ss -Hltn | awk '{ print $4 }' | grep -v '^10\.77\.0\.[12]:' || true)
    [ -z "$open" ] || say "also listening at $open"
done

# The cable is cut between two turns of the chat: a message cannot come through, and the hearts notice.
on_a ip link set "ka$$" down
begin=$(date +%s%N)
echo again >&9
status=0
wait $chat || status=$?
exec 9>&-
took=$((($(date +%s%N) - begin) / 1000000))
[ $status = 1 ] || say "cut cable: status $status"
grep -q '10.77.0.1:7420' "$work/chat.err" || say "cut cable: $(cat "$work/chat.err")"
[ $took -lt 5000 ] || say "cut cable: noticed after $took ms"
sleep 2.5
grep -q 'client at .*silent' "$work/node.log" || say "the node did not notice: $(tail -2 "$work/node.log")"

# Mended, the same node serves again.
cable_up
there=$(on_b "${run[@]}" "${remote[@]}" | field 'r["sessions"][0]["tokens"]')
[ "$want" = "$there" ] || say "after the cut: $there, $want before"
kill "$node"
wait "$node" || say "the node ended with $?"
node=
exit $failed
