#!/bin/bash
# karat profile from outside: the table it writes is one that karat sim runs on, its check compares
# what it says it does, and predictions are of the right order. Closer than a factor of 2 is not
# asserted: other programs may run beside the test.
set -euo pipefail

karat=${KARAT:-build/karat}
model=tests/fixtures/tiny/llama.gguf
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

failed=0
say() { echo "FAIL: $*" >&2; failed=1; }

refuses() { # refuses PATTERN STATUS ARGUMENT...
    local pattern=$1 want=$2 status=0
    shift 2
    "$karat" profile "$@" > "$work/out" 2> "$work/err" < /dev/null || status=$?
    [ "$status" = "$want" ] || say "profile $*: status $status, not $want"
    [ "$(wc -l < "$work/err")" = 1 ] || say "profile $*: not one line: $(cat "$work/err")"
    grep -q -- "$pattern" "$work/err" || say "profile $*: \"$(cat "$work/err")\" does not say \"$pattern\""
}

refuses 'nothing to do' 2 "$model"
refuses 'did you mean "quest"' 1 "$model" --check --methods qwest
refuses 'made for 512' 1 "$model" --check --contexts 64,512
refuses 'must ascend' 1 "$model" --check --check-contexts 32,96 --contexts 128,64
refuses 'a short and a long' 1 "$model" --check --check-contexts 64
refuses 'No such file or directory' 1 "$model" -o "$work/no/table.json"
refuses '1 is out of range; 2 to 32' 2 "$model" -o "$work/table.json" --rows 1

TMPDIR=$work "$karat" profile "$model" -o "$work/table.json" --check --json --contexts 64,128,256 --budgets 64,128 --dense-layers 1 \
    --check-contexts 96,200 --check-budget 96 --rows 4 --steps 6 --rounds 1 > "$work/check.json" 2> "$work/log" ||
    say "profile: $(cat "$work/log")"
[ -z "$(find "$work" -name 'karat-profile-*')" ] || say "saved sessions are left behind"
python3 - "$work/check.json" "$work/table.json" <<'PY' || say "the table or its check"
import json, os, sys
check, table = (json.load(open(p)) for p in sys.argv[1:3])
rows = check["check"]
assert len(rows) == 7 and {r["mode"] for r in rows} == {"in-turn", "at-once", "remote"}, rows
for r in rows:
    assert r["predicted_ms"] > 0 and r["measured_ms"] > 0
    assert abs(r["error_percent"] - 100 * (r["predicted_ms"] / r["measured_ms"] - 1)) < 1e-6, r
errors = sorted(abs(r["error_percent"]) for r in rows)
assert abs(check["median_error_percent"] - errors[3]) < 1e-9 and check["p95_error_percent"] == errors[6]
assert errors[3] < 100, errors  # a factor of 2
assert table["karat_machine"] == 1 and [m["mode"] for m in table["modes"]] == ["in-turn", "at-once", "remote"]
for m in table["modes"]:
    ops = {(c["op"], c.get("method")) for c in m["compute"]["curves"] + m["memory"]["curves"]}
    assert {("qkv", None), ("ffn", None), ("head", None), ("attend", "dense"), ("attend", "quest"), ("score", "quest")} <= ops
    assert m["compute_threads"] >= 1 and m["device_threads"] >= 1
    assert all(c["provenance"] in ("measured", "interpolated") for c in m["compute"]["curves"])
PY

# ---- the table as a system
sim() { "$karat" sim --machine "$work/table.json" --model "$model" --json "$@" 2> "$work/err"; }
value() { python3 -c 'import json,sys; print([r["value"] for r in json.load(sys.stdin)["quantities"] if r["quantity"]==sys.argv[1]][0])' "$1"; }
one=$(sim --context 200 | value 'decode step')
four=$(sim --context 200 -n 4 --method quest --budget 96 | value 'decode step')
[ "$(python3 -c "print(0 < $one < $four)")" = True ] || say "a step of 4 sessions ($four ms) is not longer than of 1 ($one ms)"
remote=$(sim --context 200 -n 4 --node-process | value 'decode step')
[ "$(python3 -c "print(0 < $remote)")" = True ] || say "no times with a node in another process"
[ ! -s "$work/err" ] || say "this machine is not taken for itself: $(cat "$work/err")"
[ "$(sim --context 200 | value 'op time that is modelled')" = 0.0 ] || say "an op has no measured time"
sed 's/"cores": *[0-9]*/"cores": 4095/' "$work/table.json" > "$work/other.json"
"$karat" sim --machine "$work/other.json" --model "$model" --context 200 > /dev/null 2> "$work/err" || say "another machine: $(cat "$work/err")"
grep -q 'with 4095 cores; this is' "$work/err" || say "no warning about another machine"
"$karat" sim --machine "$work/table.json" --model tests/fixtures/tiny/qwen3 > /dev/null 2> "$work/err" && say "another model's times are used"
grep -q 'karat profile measures them' "$work/err" || say "another model: $(cat "$work/err")"

exit $failed
