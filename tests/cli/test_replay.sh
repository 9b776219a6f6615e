#!/bin/bash
# karat run --record and karat sim --replay: the recorded run, asked again, decides the same, for every
# placement and number of micro-batches; a record of another model or with a changed line is refused.
set -euo pipefail

karat=${KARAT:-build/karat}
model=tests/fixtures/tiny/llama.gguf
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

failed=0
say() { echo "FAIL: $*" >&2; failed=1; }
field() { python3 -c 'import json,sys; print([r["value"] for r in json.load(sys.stdin)["quantities"] if r["quantity"]==sys.argv[1]][0])' "$1"; }

long=$(printf 'memory node %.0s' $(seq 20))
for how in '--micro-batches 1' '--micro-batches 2' '--attention quest --budget 64 --dense-layers 1' \
    '--attention-layers 1-1=quest --budget 64 --dense-layers 0' \
    '--attention quest --budget 64 --dense-layers 0 --placement indices-only'; do
    # shellcheck disable=SC2086 # several options
    "$karat" run "$model" -p "$long" -n 8 --ignore-end --prefill-chunk 64 $how --record "$work/run" > /dev/null 2>&1
    "$karat" sim --replay "$work/run" --model "$model" --json > "$work/out" 2> "$work/err" || say "$how: $(cat "$work/err")"
    starts=$(grep -c '"what":2' "$work/run")
    [ "$(field 'decisions that agree' < "$work/out")" = "$starts.0" ] || say "$how: not $starts decisions"
    steps=$(tail -1 "$work/run" | sed 's/.*"step":\([0-9]*\),.*/\1/')
    [ "$(field 'whole steps' < "$work/out")" = "$((steps + 1)).0" ] || say "$how: not $((steps + 1)) steps"
    # Simulated with the record's own times; a busy machine stretches what lies between ops.
    [ "$(python3 -c "print(0 <= $(field 'error of a step, median' < "$work/out") < 50)")" = True ] || say "$how: simulated steps are far off: $(cat "$work/out")"
done

refuses() { # refuses PATTERN FILE MODEL
    "$karat" sim --replay "$2" --model "$3" > "$work/out" 2> "$work/err" && say "$1: not refused"
    [ "$(wc -l < "$work/err")" = 1 ] && grep -q -- "$1" "$work/err" || say "\"$(cat "$work/err")\" does not say \"$1\""
    [ ! -s "$work/out" ] || say "$1: wrote to standard output"
}
refuses 'was recorded with Llama' "$work/run" tests/fixtures/tiny/qwen3
sed '1s/"program_digest":"./"program_digest":"x/' "$work/run" > "$work/digest"
refuses 'hexadecimal' "$work/digest" "$model"
# The second op is said to have started before the first.
python3 - "$work/run" "$work/swapped" <<'PY'
import sys
lines = open(sys.argv[1]).readlines()
i, j = [k for k, l in enumerate(lines) if '"what":2' in l][:2]
lines[i] = lines[i].replace('"op":0,', '"op":1,')
open(sys.argv[2], "w").writelines(lines)
PY
refuses 'the policy chooses' "$work/swapped" "$model"
head -n 40 "$work/run" > "$work/cut"
"$karat" sim --replay "$work/cut" --model "$model" > /dev/null || say "a record that was cut between lines is refused"
refuses 'is none of\|cannot be opened' "$work/no-such" "$model"

exit $failed
