#!/bin/bash
# karat inspect on saved sessions: what it says is what was run; a file cut or damaged anywhere, or
# that goes on after its end, gets one line and no description.
set -euo pipefail

karat=${KARAT:-build/karat}
model=tests/fixtures/tiny/llama.gguf
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
say() { echo "FAIL: $*" >&2; failed=1; }

# 150 words or so: more than one page of 128 tokens.
prompt=$(for i in $(seq 40); do printf 'the memory node '; done)
for method in dense quest; do
    budget=()
    [ $method = dense ] || budget=(--budget 64)
    "$karat" run "$model" -p "$prompt" -n 4 --ignore-end --json --save "$method" --save-folder "$work" \
        --attention $method "${budget[@]}" --dense-layers 0 > "$work/run.json"
    "$karat" inspect "$work/$method" --json > "$work/saved.json" || say "$method is not described"
    python3 - "$work" $method "$model" << 'END' || say "$method: wrong description"
import json, os, sys
work, method, model = sys.argv[1:]
run = json.load(open(work + "/run.json"))["sessions"][0]
saved = json.load(open(work + "/saved.json"))
config = json.load(open(model.removesuffix(".gguf") + "/config.json"))
bytes_ = open(f"{work}/{method}", "rb").read()
tokens = saved["tokens"]
kv_heads = config["num_key_value_heads"]
dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
assert saved["format"] == "saved session" and saved["checksums"] == "verified", saved
assert saved["client_bytes"] == 4 * saved["client_tokens"] and tokens <= saved["client_tokens"], saved
assert saved["client_tokens"] >= run["prompt_tokens"] + len(run["tokens"]) > 128, (saved, run)
assert len(saved["layers"]) == config["num_hidden_layers"]
for layer in saved["layers"]:
    assert (layer["method"], layer["kv_type"], layer["tokens"]) == (method, "bf16", tokens), layer
    assert (layer["heads"], layer["kv_heads"]) == (config["num_attention_heads"], kv_heads), layer
    assert layer["key_dim"] == layer["value_dim"] == dim and layer["window_tokens"] == 0, layer
    assert layer["record"]["tokens_covered"] <= tokens, layer
(group,) = saved["groups"]
assert group["first_page"] == 0 and group["pages"] == -(-tokens // 128), group
assert group["page_bytes"] >= 128 * len(saved["layers"]) * kv_heads * dim * 2 * 2, group
assert saved["boundaries"][0] == {"kind": "prefill", "first_token": 0}, saved
assert saved["file_bytes"] == len(bytes_) and saved["unpacked_bytes"] > group["pages"] * group["page_bytes"]
assert saved["frames"] == 4 + group["pages"]  # layers, boundaries, records, client data, pages
END
    "$karat" inspect "$work/$method" > "$work/text"
    for line in 'saved session, version 1' "$method version" 'KV bf16' 'checksums   verified' 'prefill from 0'; do
        grep -q "$line" "$work/text" || say "$method: no \"$line\" in $(cat "$work/text")"
    done
done

# refuses WHAT: $work/bad gets status 1, one line, nothing on standard output.
refuses() {
    local status=0
    "$karat" inspect "$work/bad" > "$work/out" 2> "$work/err" || status=$?
    [ $status = 1 ] && [ "$(wc -l < "$work/err")" = 1 ] && [ ! -s "$work/out" ] ||
        say "$1: status $status, $(cat "$work/err" "$work/out")"
}
size=$(stat -c %s "$work/quest")
for cut in 0 7 8 100 $((size / 4)) $((size / 2)) $((size - 33)) $((size - 1)); do
    head -c "$cut" "$work/quest" > "$work/bad"
    refuses "cut to $cut bytes"
done
for i in $(seq 0 24); do
    at=$((i * (size - 1) / 24))
    python3 -c "import sys; d=bytearray(open(sys.argv[1],'rb').read()); d[int(sys.argv[3])]^=0x10
open(sys.argv[2],'wb').write(d)" "$work/quest" "$work/bad" $at
    refuses "byte $at changed"
done
{ cat "$work/quest"; printf x; } > "$work/bad"
refuses 'one byte more'
grep -q 'goes on after its end' "$work/err" || say "one byte more: $(cat "$work/err")"
exit $failed
