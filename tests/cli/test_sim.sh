#!/bin/bash
# karat sim from the command line: what it prints as JSON, measured tables, shares of experts and think
# times, and the contradictions that are refused. karat reproduce --anchors takes the same tables.
set -euo pipefail

karat=${KARAT:-build/karat}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
say() { echo "FAIL: $*" >&2; failed=1; }
sim() { "$karat" sim --trace-sessions 20 --steps 20 -n 40 --gpus 16 --devices 32 "$@"; }
# Runs and expects an error that says the words.
refuses() {
    local words=$1
    shift
    if sim "$@" > /dev/null 2> "$work/error"; then
        say "$* is taken"
    fi
    grep -q -- "$words" "$work/error" || say "$*: \"$(cat "$work/error")\" does not say \"$words\""
}

cat > "$work/tables.json" << 'END'
{"karat_tables": 1, "device": "H200", "source": "made up", "tables": [
 {"op": "experts", "kernel": "made up", "math": "e4m3",
  "axes": [{"of": "expert_rows", "at": [1, 1000000]}], "us": [5000, 5000]}]}
END
sed 's/H200/H100/' "$work/tables.json" > "$work/other.json"
sim --json > "$work/fits.json"
sim --json --tables "$work/tables.json" > "$work/tables.out"
sim --json --think-mean 1 > "$work/think.json"
sim --json --think-mean 1 > "$work/again.json"
python3 -c 'print(",".join(["64"] + ["1"] * 255))' > "$work/shares.csv"
sim --json --expert-shares "$work/shares.csv" > "$work/shares.json"
sim --json --expert-shares "$work/shares.csv" --eplb > "$work/eplb.json"
python3 - "$work" << 'END' || say "the figures are not what they should be"
import json, sys

def load(name):
    run = json.load(open(f"{sys.argv[1]}/{name}"))
    return run, {r["quantity"]: r["value"] for r in run["quantities"]}

fits, f = load("fits.json")
measured, m = load("tables.out")
think, again = load("think.json")[0], load("again.json")[0]
shares, balanced = load("shares.json")[0], load("eplb.json")[0]
assert fits["joules_per_token"] > 0 and f["power drawn"] > 0, fits
parts = sum(v for k, v in f.items() if k.startswith("power: "))
assert abs(parts / f["power drawn"] - 1) < 1e-9, (parts, f)
assert abs(sum(v for k, v in f.items() if k.startswith("op time that is ")) - 100) < 1e-6, f
# 58 layers of experts at 5 ms each, in two micro-batches.
assert measured["p99_ms"] > 580 > fits["p99_ms"], (measured["p99_ms"], fits["p99_ms"])
# One of 256 experts at 5 ms whatever the rows: between the two points of the table.
assert m["op time that is interpolated"] > 90, m
assert think["run_digest"] == again["run_digest"] != fits["run_digest"]
# Which way is tests/plan/test_load's; so few rows meet more experts with a redundant one.
assert len({r["p99_ms"] for r in (fits, shares, balanced)}) == 3, (fits, shares, balanced)
END
refuses "not measured on H200" --tables "$work/other.json"
refuses "needs --expert-shares" --eplb
refuses "both say" --expert-skew 1 --expert-shares "$work/shares.csv"
refuses "the trace's or drawn" --think --think-mean 1
refuses "numbers" --expert-shares <(echo 1,2,3)
! "$karat" sim --help | grep -n '(0: ' || say "a default is told twice"
"$karat" reproduce --anchors --tables "$work/tables.json" > "$work/anchors" || say "anchors do not run"
[ "$(grep -c h200 "$work/anchors")" = 3 ] || say "anchors: $(cat "$work/anchors")"
exit $failed
