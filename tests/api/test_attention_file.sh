#!/bin/bash
# --attention ./my_method.so from outside: embedded, against a node that loaded it, against one that did
# not, in karat eval; and what is refused, with one line.
set -euo pipefail
cd "$(dirname "$0")/../.."

karat=$PWD/${KARAT:-build/karat}
[ -x "$karat" ] || karat=$KARAT
model=$PWD/tests/fixtures/tiny/llama.gguf
work=$(mktemp -d)
node=
cleanup() {
    [ -z "$node" ] || kill -KILL "$node" 2> /dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT

failed=0
say() { echo "FAIL: $*" >&2; failed=1; }
refuses() { # refuses PATTERN COMMAND...
    local pattern=$1
    shift
    ! timeout 60 "$@" > "$work/out" 2> "$work/err" < /dev/null || say "$*: did not fail"
    [ "$(wc -l < "$work/err")" = 1 ] || say "$*: not one line: $(cat "$work/err")"
    grep -q -- "$pattern" "$work/err" || say "$*: \"$(cat "$work/err")\" does not say \"$pattern\""
}
start_node() {
    "$karat" node --listen 127.0.0.1:0 --json --memory 16M "$@" > "$work/node.json" 2> "$work/node.log" &
    node=$!
    port=
    for _ in $(seq 100); do
        port=$(sed -n 's/.*"port": *\([0-9]*\).*/\1/p' "$work/node.json")
        [ -z "$port" ] || return 0
        sleep 0.1
    done
    say "the node did not start: $(cat "$work/node.log")"
    exit 1
}
stop_node() { kill "$node"; wait "$node" || true; node=; }

${CC:-cc} -shared -fPIC -O2 -Iinclude examples/my_method.c -o "$work/my_method.so"
cp "$work/my_method.so" "$work/again.so"
cd "$work"
prompt=$(seq -s ' ' 1 90)
run() { "$karat" run "$model" -n 24 -p "$prompt" "$@"; }

# A budget that covers the context gives dense attention's text; a small one selects.
run --attention dense > dense.txt 2> /dev/null
run --attention ./my_method.so > covered.txt 2> /dev/null
cmp dense.txt covered.txt || say "a covering budget is not dense"
run --attention my_method.so --budget 128 --dump-selection selection.jsonl > small.txt 2> /dev/null
python3 - selection.jsonl << 'END' || say "the selection is not what the method's rule gives"
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
assert rows
for r in rows:  # 8 blocks of 16: the first, the four newest, and three that were chosen
    newest = r["position"] // 16
    assert len(r["units"]) == 8 and r["units"][0] == 0, r
    assert r["units"][4:] == list(range(newest - 3, newest + 1)), r
END
run --attention-layers 0=./my_method.so --budget 96 > /dev/null 2>&1 || say "--attention-layers refuses a file"

# Saved with its index, restored only under the same method.
mkdir saves
go_on() { "$karat" run "$model" -n 6 --ignore-end --budget 128 --save-folder saves "$@"; }
go_on -p "$prompt" --attention ./my_method.so --save turn > /dev/null 2>&1 || say "a session is not saved"
go_on -p ' and more' --attention ./my_method.so --restore turn > /dev/null 2> err || say "restoring: $(tail -1 err)"
! go_on -p ' and more' --attention quest --restore turn > /dev/null 2> err || say "restored under another method"
grep -q 'another shape, KV type or method' err || say "another method: $(tail -1 err)"

# The same bits from a node that was told the file; a client cannot make a node load one.
start_node --method ./my_method.so
grep -q 'method meankey' node.log || say "the node does not say what it loaded: $(cat node.log)"
run --attention ./my_method.so --budget 128 --memory-node "127.0.0.1:$port" > remote.txt 2> /dev/null ||
    say "the run against a node failed"
cmp small.txt remote.txt || say "a remote node gives another text"
stop_node
start_node
refuses 'no method "meankey"' "$karat" run "$model" -p x -n 2 --attention ./my_method.so \
    --memory-node "127.0.0.1:$port"
stop_node

"$karat" eval "$model" --methods ./my_method.so --budgets 128 --contexts 256 --passages 1 --tokens 8 --samples 4 \
    --needles 0 --json > eval.json 2> eval.err || say "eval: $(tail -1 eval.err)"
grep -q '"meankey"' eval.json || say "eval has no row of the method"

refuses 'No such file' "$karat" run "$model" -p x --attention ./nothing.so
refuses 'cannot load a method' "$karat" run "$model" -p x --attention "$model"
refuses 'budget 64, must be 80' "$karat" run "$model" -p x --attention ./my_method.so --budget 64
refuses 'No such file' "$karat" node --listen 127.0.0.1:0 --method ./nothing.so
! "$karat" node --listen 127.0.0.1:0 --method ./my_method.so,./again.so 2> err || say "a node takes two of a name"
grep -q 'again.so: there is a method "meankey" already' err || say "two of a name: $(cat err)"
exit $failed
