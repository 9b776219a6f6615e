#!/bin/bash
# karat-sweep gives the bytes of karat plan at any number of ranks, and one line when it fails.
set -euo pipefail
sweep=$(dirname "$KARAT")/karat-sweep
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if [ ! -x "$sweep" ] || ! command -v mpirun > /dev/null; then
    echo "SKIP: no karat-sweep (Open MPI is not installed)"
    exit 0
fi
if [ -n "${KARAT_SAN:-}" ]; then
    echo "SKIP: Open MPI does not give back all it takes, which a sanitizer would report"
    exit 0
fi
plan=(plan --model minimax-m3 --trace swe-pro --trace-sessions 40 --steps 4 --power-kw 22.4 --gpu-only-too --all)
ranks() { timeout 100 mpirun --allow-run-as-root --oversubscribe --mca btl self,vader,tcp -n "$1" "$sweep" "${@:2}"; }

"$KARAT" "${plan[@]}" > "$work/alone"
for n in 1 2 3; do
    ranks $n "${plan[@]}" > "$work/$n"
    cmp "$work/alone" "$work/$n" || { echo "FAIL: $n ranks give other bytes"; exit 1; }
done

# A wrong option, on all ranks: the text of karat, once. mpirun adds lines of its own.
if ranks 3 plan --no-such-option > "$work/out" 2> "$work/err"; then
    echo "FAIL: a wrong option ended well"; exit 1
fi
[ "$(grep -c 'unknown option' "$work/err")" = 1 ] || { echo "FAIL: not one line"; cat "$work/err"; exit 1; }

# A rank that alone cannot read its trace: one line with its number, and no result.
cat > "$work/one" << END
#!/bin/bash
trace=$work/sessions
[ "\$OMPI_COMM_WORLD_RANK" != 2 ] || trace=$work/missing
exec "$sweep" plan --model minimax-m3 --trace "\$trace" --steps 4 --power-kw 22.4
END
chmod +x "$work/one"
ids=$(seq -s, 1 391) # of 200,000 tokens: few such sessions fit, so that a point is quick
printf '{"timestamp": 0, "input_length": 200000, "output_length": 50, "hash_ids": [%s]}\n' "$ids" > "$work/sessions"
status=0
timeout 60 mpirun --allow-run-as-root --oversubscribe -n 3 "$work/one" > "$work/out" 2> "$work/err" || status=$?
[ $status != 0 ] || { echo "FAIL: a failed rank ended well"; exit 1; }
[ $status != 124 ] || { echo "FAIL: the other ranks wait for the one that failed"; exit 1; }
[ "$(grep -c '^rank 2: ' "$work/err")" = 1 ] || { echo "FAIL: rank 2 is not named once"; cat "$work/err"; exit 1; }
[ ! -s "$work/out" ] || { echo "FAIL: a result in spite of a failure"; cat "$work/out"; exit 1; }
echo "1, 2 and 3 ranks agree; a failure is one line"
