#!/bin/bash
# Prediction against measurement on this machine: bench/profile_check.sh [MODEL...]
#
# Runs karat profile --check on the models given, by default the two small ones that tools/fetch_model.sh
# and tools/fetch_gemma.sh bring, and puts its output into docs/planner.md, between the marks there. Takes
# about four minutes a model on two cores; on a machine that runs other programs it says how many steps it
# had to discard. The table stays in KARAT_MACHINE, by default build/machine.json.
set -euo pipefail
cd "$(dirname "$0")/.."

karat=${KARAT:-build/karat}
table=${KARAT_MACHINE:-build/machine.json}
models=("$@")
if [ ${#models[@]} = 0 ]; then
    models=("$(tools/fetch_model.sh)" "$(tools/fetch_gemma.sh)")
fi

out=$(mktemp)
trap 'rm -f "$out"' EXIT
"$karat" profile "${models[@]}" --check -o "$table" > "$out"
cat "$out"
python3 - "$out" <<'PY'
import re, sys
page = open("docs/planner.md", encoding="utf-8").read()
text = open(sys.argv[1], encoding="utf-8").read().rstrip()
begin, end = "<!-- bench/profile_check.sh begin -->", "<!-- bench/profile_check.sh end -->"
head, rest = page.split(begin)
tail = rest.split(end)[1]
open("docs/planner.md", "w", encoding="utf-8").write(f"{head}{begin}\n```\n{text}\n```\n{end}{tail}")
PY
