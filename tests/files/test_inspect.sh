#!/bin/bash
# karat inspect: facts as text and as JSON; a bad file is one line and status 1, a bad call status 2.
set -uo pipefail
karat=${KARAT:-build/karat}
out=$(mktemp)
trap 'rm -f "$out" "$out.err"' EXIT

fail() {
    echo "FAILED: $1"
    cat "$out" "$out.err"
    exit 1
}

"$karat" inspect tests/fixtures/tiny/gemma3 > "$out" 2> "$out.err" || fail "a sound folder"
grep -q '^window      2 of 3 layers see 16 tokens$' "$out" || fail "the window line"
grep -q '^chat        gemma$' "$out" || fail "the chat line"
"$karat" inspect tests/fixtures/learned/glm > "$out" 2> "$out.err" || fail "a model with an indexer"
grep -q '^indexer     dsa: 48 tokens by 4 heads of 16, in 4 of 8 layers$' "$out" || fail "the indexer line"
grep -q '^experts     2 of 4 and 1 shared, width 8, in 7 of 8 layers$' "$out" || fail "the experts line"
"$karat" inspect --json tests/fixtures/learned/seer > "$out" 2> "$out.err" || fail "a model with gates"
grep -q '"method": "seer"' "$out" || fail "the gates"
"$karat" inspect --json tests/fixtures/tiny/llama3.gguf > "$out" 2> "$out.err" || fail "JSON of a sound file"
grep -q '"architecture": "llama"' "$out" || fail "the architecture"

# refused STATUS TEXT ARGUMENT...: nothing on standard output, one line on standard error.
refused() {
    local status=$1 text=$2
    shift 2
    "$karat" inspect "$@" > "$out" 2> "$out.err"
    [ $? = "$status" ] || fail "status of inspect $*"
    [ ! -s "$out" ] || fail "output of inspect $*"
    grep -q "$text" "$out.err" || fail "line of inspect $*"
    [ "$status" = 2 ] || [ "$(wc -l < "$out.err")" = 1 ] || fail "lines of inspect $*"
}

refused 1 'No such file' /nonexistent/model.gguf
refused 1 'not a GGUF file' tests/fixtures/tiny/llama/model.safetensors
refused 1 'config.json' tests/fixtures
refused 2 '' --no-such-option tests/fixtures/tiny/llama
refused 2 ''
head -c 5000 tests/fixtures/tiny/llama.gguf > "$out.gguf"
refused 1 'truncated at byte' "$out.gguf"
rm "$out.gguf"
echo passed
