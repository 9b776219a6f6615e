#!/bin/bash
# karat run from outside: answers, what it refuses, chats, remote nodes, and nodes that die.
#
# With the committed tiny model; nothing it says makes sense, so runs are compared with runs.
set -euo pipefail

karat=${KARAT:-build/karat}
model=tests/fixtures/tiny/llama.gguf
work=$(mktemp -d)
node=
cleanup() {
    if [ -n "$node" ]; then
        kill -CONT "$node" 2> /dev/null || true
        kill -KILL "$node" 2> /dev/null || true
    fi
    rm -rf "$work"
}
trap cleanup EXIT

failed=0
say() { echo "FAIL: $*" >&2; failed=1; }

# field PYTHON-EXPRESSION: of the JSON object r on standard input.
field() { python3 -c "import json,sys; r=json.load(sys.stdin); print($1)"; }

# refuses PATTERN STATUS ARGUMENT...: no output, one line that matches, that exit status.
refuses() {
    local pattern=$1 want=$2 status=0
    shift 2
    timeout 20 "$karat" run "$@" > "$work/out" 2> "$work/err" < /dev/null || status=$?
    [ "$status" = "$want" ] || say "run $*: status $status, not $want"
    [ "$(wc -l < "$work/err")" = 1 ] || say "run $*: not one line: $(cat "$work/err")"
    grep -q -- "$pattern" "$work/err" || say "run $*: \"$(cat "$work/err")\" does not say \"$pattern\""
    [ ! -s "$work/out" ] || say "run $*: wrote to standard output"
}

start_node() { # start_node OPTION...
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

stop_node() {
    kill "$node"
    wait "$node" || true
    node=
}

# ---- refusals, before anything runs
refuses 'no prompt' 1 "$model"
refuses 'prompt 1 is empty' 1 "$model" -p ''
refuses 'not valid UTF-8' 1 "$model" -p $'ab\xff'
refuses 'over the 512 tokens' 1 "$model" -p x -c 513
refuses '600 to generate' 1 "$model" -p x -n 600
refuses 'the context holds 3' 1 "$model" -p 'abcdefghijkl' -c 3 -n 1
refuses 'did you mean "quest"' 1 "$model" -p x --attention qwest
refuses 'none of bf16' 1 "$model" -p x --kv-dtype q8_0
refuses 'nothing to select' 1 "$model" -p x --placement indices-only
refuses 'layers 0 to 1' 1 "$model" -p x --attention-layers 0-2=quest
refuses 'needs as many prompts' 1 "$model" -p x --sessions 2
refuses 'top-p' 1 "$model" -p x --top-p 0 --temperature 1
refuses 'has no effect: all layers attend densely' 1 "$model" -p x --budget 64
refuses 'nearest: --budget' 2 "$model" -p x --budgett 1
refuses 'is missing' 2
refuses 'no-such-model.gguf' 1 no-such-model.gguf -p x
refuses 'not a GGUF file' 1 "$0" -p x
refuses 'Connection refused' 1 "$model" -p x --memory-node 127.0.0.1:1
refuses 'HOST:PORT' 1 "$model" -p x --memory-node somewhere
refuses 'choose another size' 1 "$model" -p x --memory 100
# What would have no effect is said, and files that cannot be made before anything runs.
refuses 'belong to --chat and --instruct' 2 "$model" -p x --system y
refuses 'belong to --chat and --instruct' 2 "$model" -p x --chat-template chatml
refuses 'none is given' 2 "$model" -p x --key-file "$0"
refuses 'none is given' 2 "$model" -p x --transport tcp
refuses 'is one session' 2 "$model" --chat --sessions 2
refuses 'has its own' 2 "$model" -p x --memory-node 127.0.0.1:1 --device-threads 2
refuses 'mode 77 of dense, which has none' 1 "$model" -p x --attention dense --attention-mode 77
refuses 'mode 77 of native, which has none' 1 "$model" -p x --attention-mode 77
refuses 'mode 3 of quest' 1 "$model" -p x --attention quest --attention-mode 3
refuses 'no leading dot' 1 "$model" -p x --save a/b
for option in record trace dump-selection; do
    refuses 'No such file or directory' 1 "$model" -p x -n 500 --ignore-end "--$option" "$work/no/file"
done
KARAT_THREAD=3 KARAT_TOP_P=0.5 KARAT_TEST_OTHER=1 "$karat" run "$model" -p x -n 1 --json > /dev/null 2> "$work/err"
[ "$(cat "$work/err")" = 'karat run: warning: KARAT_THREAD is no option (nearest: KARAT_THREADS)' ] ||
    say "a mistyped variable: $(cat "$work/err")"
mkfifo "$work/fifo"
refuses 'not a regular file' 1 "$work/fifo" -p x
head -c 131072 /dev/zero | tr '\0' a > "$work/a.txt"
refuses 'context over the limit' 1 "$model" -f "$work/a.txt" -n 1

# ---- one prompt, by every way to give it and every kind of output
args=(-n 12 --ignore-end)
"$karat" run "$model" -p 'The memory node' "${args[@]}" > "$work/text" 2> "$work/log"
grep -q 'prompt: ' "$work/log" || say "no summary"
printf 'The memory node' | "$karat" run "$model" -f - "${args[@]}" 2> /dev/null | cmp -s - "$work/text" || say "standard input differs"
"$karat" run "$model" -p 'The memory node' "${args[@]}" --json 2> "$work/log" > "$work/json"
[ ! -s "$work/log" ] || say "--json writes to standard error: $(cat "$work/log")"
[ "$(field 'len(r["sessions"][0]["tokens"])' < "$work/json")" = 12 ] || say "--json: not 12 tokens"
[ "$(field 'r["sessions"][0]["finish"]' < "$work/json")" = length ] || say "--json: finish"
[ "$(field 'r["path"]["attention"]' < "$work/json")" = "['dense', 'dense']" ] || say "--json: path"
tokens=$(field 'r["sessions"][0]["tokens"]' < "$work/json")

# ---- a model's own method is the default; learned methods on a model without their tensors
for name in deepseek:dsa glm:dsa minimax:msa; do
    "$karat" run "tests/fixtures/learned/${name%:*}" -p 'The memory node' "${args[@]}" --json > "$work/json"
    [ "$(field 'r["path"]["attention"][-1]' < "$work/json")" = "${name#*:}" ] || say "$name: not its own method"
    [ "$(field 'len(r["sessions"][0]["tokens"])' < "$work/json")" = 12 ] || say "$name: not 12 tokens"
done
"$karat" run tests/fixtures/learned/seer -p 'The memory node' "${args[@]}" --attention seer --budget 16 --json > "$work/json"
[ "$(field 'r["path"]["attention"]' < "$work/json")" = "['seer', 'seer']" ] || say "seer: path"
refuses 'method seer is learned: .*no tensor model.layers.0.self_attn.attn_gate.attngate_linear_q.weight' 1 \
    tests/fixtures/tiny/qwen3 -p x --attention seer
refuses 'method dsa is learned: .*no tensor model.layers.0.self_attn.indexer.wq_b.weight' 1 \
    tests/fixtures/tiny/qwen3 -p x --attention dsa
refuses 'index queries of its own' 1 tests/fixtures/learned/glm -p x --placement indices-only

# ---- several sessions at once: each answers as it does alone
printf 'The memory node\n---\nA page holds\n---\nfor (i = 0; i < 16; i++)\n' > "$work/prompts"
"$karat" run "$model" -f "$work/prompts" "${args[@]}" --json > "$work/many"
[ "$(field 'len(r["sessions"])' < "$work/many")" = 3 ] || say "not 3 sessions"
[ "$(field 'r["sessions"][0]["tokens"]' < "$work/many")" = "$tokens" ] || say "a session differs in company"
[ "$("$karat" run "$model" 'x' 'A page holds' "${args[@]}" --sessions 2 --json | field 'r["sessions"][1]["tokens"]')" = \
  "$(field 'r["sessions"][1]["tokens"]' < "$work/many")" ] || say "prompts as arguments differ"

# ---- the pool holds what the node promises: sliding windows with whole messages, and the gathering
# ---- node every session although it has one device
"$karat" run tests/fixtures/tiny/gemma3 -p "$(head -c 320 /dev/zero | tr '\0' a)" -n 2 > "$work/out" 2>&1 || say "gemma: $(cat "$work/out")"
"$karat" run tests/fixtures/tiny/gemma3 -p "$(head -c 470 /dev/zero | tr '\0' a)" -n 2 --prefill-chunk 100 --micro-batches 2 \
    > "$work/out" 2>&1 || say "gemma in two micro-batches: $(cat "$work/out")"
spread() { "$karat" run "$model" -f "$work/prompts" "${args[@]}" --attention quest --budget 16 --dense-layers 0 \
    --placement indices-only --json "$@" | field '[s["tokens"] for s in r["sessions"]]'; }
[ "$(spread)" = "$(spread --devices 3)" ] || say "indices-only on 3 devices differs"
[ "$(spread)" = "$(spread --devices 3 --memory 48K)" ] || say "indices-only on 3 small devices differs"

# ---- sampling: a seed repeats, another one does not
sample() { "$karat" run "$model" -p 'abc' -n 40 --ignore-end --temperature 1.5 --top-p 0.95 --seed "$1" --json | field 'r["sessions"][0]["tokens"]'; }
[ "$(sample 1)" = "$(sample 1)" ] || say "the same seed gives other tokens"
[ "$(sample 1)" != "$(sample 2)" ] || say "another seed gives the same tokens"

# ---- the plan allocates nothing and prices every op
"$karat" run "$model" -p x --dry-run --json > "$work/plan"
[ "$(field '[x["bytes"] for x in r["bytes"] if x["class"]=="weights"][0] > 100000' < "$work/plan")" = True ] || say "plan: weights"
[ "$(field 'len(r["work_per_decode_token"]) >= 10' < "$work/plan")" = True ] || say "plan: ops"

# ---- what a run takes is what the plan said, on a model large enough to tell
if [ -n "${KARAT_TEST_MODEL:-}" ] && [ -z "${KARAT_TEST_SANITIZED:-}" ]; then
    "$karat" run "$KARAT_TEST_MODEL" -p hi -n 4 -c 8192 --json | field '(lambda b: abs(1 - (b["resident"] - b["resident_before"]) / b["planned"]))(r["bytes"])' > "$work/share"
    [ "$(awk '{ print ($1 <= 0.02) }' "$work/share")" = 1 ] || say "memory is off the plan by $(cat "$work/share")"
else
    echo "SKIP: KARAT_TEST_MODEL names no model, or the build is sanitized"
fi

"$karat" run "$model" -p x --dry-run --json --attention quest --dense-layers 0 --placement indices-only > "$work/plan"
[ "$(field 'any("beside the weights" in x["class"] and x["bytes"] > 0 for x in r["bytes"])' < "$work/plan")" = True ] || say "plan: gathering node"

# ---- bytes that are no UTF-8 and a disk that is full
[ "$("$karat" run "$model" -p x -n 40 --ignore-end --temp 50 --json | field 'r["sessions"][0]["text"].count("\ufffd") > 1')" = True ] ||
    say "text of broken characters"
for plan in --json '--json --dry-run' --dry-run; do
    status=0
    # shellcheck disable=SC2086 # several options
    "$karat" run "$model" -p x -n 2 $plan > /dev/full 2> "$work/err" || status=$?
    [ "$status $(wc -l < "$work/err")" = '1 1' ] || say "full disk, $plan: status $status, $(cat "$work/err")"
done
"$karat" run "$model" -p x -n 2 --attention streamingllm --budget 4000000000 > "$work/out" 2>&1 || say "a budget over the context: $(cat "$work/out")"

# ---- files beside the answer
long=$(printf 'memory node %.0s' $(seq 40))
"$karat" run "$model" -p "$long" -n 4 --ignore-end --attention quest --budget 64 --dense-layers 1 \
    --dump-selection "$work/selection" --record "$work/record" --trace "$work/trace" 2> /dev/null > /dev/null
python3 - "$work/selection" "$work/trace" "$work/record" <<'PY' || say "files"
import json, sys
lines = [json.loads(x) for x in open(sys.argv[1])]
assert lines and all(x["layer"] == 1 and len(x["units"]) == 4 and sorted(x["units"]) == x["units"] for x in lines), lines[:2]
assert len(lines) == 3 * 4, len(lines)  # 3 decode steps, 4 heads
assert json.load(open(sys.argv[2]))["traceEvents"]
head, *events = [json.loads(x) for x in open(sys.argv[3])]
assert head["karat_run"] == 1 and events
PY

# ---- a chat keeps its session: the second turn runs only its own tokens
printf 'hello\nand now\n' | "$karat" run "$model" --chat -n 5 -c 400 2> "$work/log" > "$work/chat" || say "chat: $(cat "$work/log")"
[ "$(wc -l < "$work/chat")" -ge 2 ] || say "chat: two replies expected"

# ---- a saved session goes on where it stopped
mkdir "$work/saves"
half() { "$karat" run "$model" -n 6 --ignore-end --json --save-folder "$work/saves" "$@" | field 'r["sessions"][0]["tokens"]'; }
one=$(half -p 'The memory node' --save turn)
two=$(half --restore turn)
[ "${one%]}, ${two#[}" = "$tokens" ] || say "restored: $one $two, not $tokens"
[ "$("$karat" run "$model" -n 4 --ignore-end --json --save-folder "$work/saves" --restore turn -p ' and more' |
    field 'r["sessions"][0]["reused_tokens"] > 0 and len(r["sessions"][0]["tokens"]) == 4')" = True ] || say "restore with a prompt"
on_gemma() { "$karat" run tests/fixtures/tiny/gemma3 -n 1 --ignore-end --json --save-folder "$work/saves" "$@" | field 'r["sessions"][0]["prompt_tokens"]'; }
[ "$(on_gemma -p a --save bos)" = 2 ] || say "gemma: not a BOS and a token"
[ "$(on_gemma --restore bos -p a)" = 4 ] || say "a second BOS came before the prompt of a restored session"
refuses '506 are to be generated' 1 "$model" -n 506 --ignore-end --save-folder "$work/saves" --restore turn
refuses '2 prompts are given' 1 "$model" x y --save two --save-folder "$work/saves"
mkfifo "$work/saves/fifo"
refuses 'not a saved session\|ends after 0' 1 "$model" --restore fifo --save-folder "$work/saves"
refuses 'restoring nothing' 1 "$model" --restore nothing --save-folder "$work/saves"

# ---- a remote node gives the same, over both transports; and it serves one client after another
start_node --devices 2
for transport in shm tcp auto; do
    got=$("$karat" run "$model" -p 'The memory node' "${args[@]}" --memory-node "127.0.0.1:$port" --transport $transport --json)
    [ "$(field 'r["sessions"][0]["tokens"]' <<< "$got")" = "$tokens" ] || say "$transport: other tokens"
    [ "$(field 'r["bytes"]["kv_on_nodes"] > 0 and r["bytes"]["kv_beside_weights"] == 0' <<< "$got")" = True ] || say "$transport: KV"
done
got=$("$karat" run "$model" -f "$work/prompts" "${args[@]}" --memory-node "127.0.0.1:$port" --json)
[ "$(field '[s["tokens"] for s in r["sessions"]]' <<< "$got")" = "$(field '[s["tokens"] for s in r["sessions"]]' < "$work/many")" ] ||
    say "remote: other tokens for several sessions"

# ---- clients with other lengths share its prefixes, so they share its configuration
again() { "$karat" run "$model" -p "$long" -n "$1" --ignore-end --memory-node "127.0.0.1:$port" --json | field 'r["sessions"][0]["reused_tokens"]'; }
again 4 > /dev/null
[ "$(again 5)" -ge 128 ] || say "a client with another length does not find the prefix"

# ---- a node that is killed or stopped in the middle: one line, no text after it, within the deadline
# 48 sessions of 500 tokens keep it busy for longer than the signal takes to come.
for signal in KILL STOP; do
    { while sleep 0.05; do kill -$signal "$node" && break; done; } &
    killer=$!
    status=0
    begin=$(date +%s)
    timeout 60 "$karat" run "$model" $(seq 48) -n 500 --ignore-end --memory-node "127.0.0.1:$port" --timeout 3 \
        --json > "$work/out" 2> "$work/err" || status=$?
    wait $killer || true
    [ "$status" = 1 ] || say "node got SIG$signal: status $status: $(cat "$work/err")"
    [ "$(grep -vc '^karat: warning' "$work/err")" = 1 ] || say "node got SIG$signal: not one line: $(cat "$work/err")"
    [ ! -s "$work/out" ] || say "node got SIG$signal: text came out"
    [ $(($(date +%s) - begin)) -le 15 ] || say "node got SIG$signal: took longer than its deadline"
    kill -CONT "$node" 2> /dev/null || true
    kill -KILL "$node" 2> /dev/null || true
    wait "$node" 2> /dev/null || true
    [ $signal = STOP ] || start_node
done
node=

# ---- keys
head -c 32 /dev/urandom > "$work/key"
head -c 32 /dev/urandom > "$work/other"
chmod 600 "$work/key" "$work/other"
start_node --key-file "$work/key"
got=$("$karat" run "$model" -p 'The memory node' "${args[@]}" --memory-node "127.0.0.1:$port" --key-file "$work/key" --json)
[ "$(field 'r["sessions"][0]["tokens"]' <<< "$got")" = "$tokens" ] || say "with a key: other tokens"
refuses 'key' 1 "$model" -p x --memory-node "127.0.0.1:$port" --key-file "$work/other"
refuses 'key' 1 "$model" -p x --memory-node "127.0.0.1:$port"
stop_node

exit $failed
