#!/bin/bash
# Runs test programs one after another and counts their cases.
#
#   tools/run_tests.sh OUTPUT_FOLDER PROGRAM...
#
# A program is a cmocka binary, a test_*.sh script (exit 0 passed, 77 skipped) or a fuzz smoke run
# (a case each). Its output goes to OUTPUT_FOLDER and is shown when it fails. A program that dies
# or outlives TEST_SECONDS counts as one failed case. The last line is the sum; the exit status is
# non-zero when anything failed or nothing ran.
set -uo pipefail

output=$1
shift
seconds=${TEST_SECONDS:-900}
passed=0 failed=0 skipped=0
mkdir -p "$output"

# count WORD FILE: the sum of cmocka's "[  WORD  ] N test(s)" lines.
count() { sed -n "s/^\[ *$1 *\] *\([0-9]*\) test(s).*/\1/p" "$2" | awk '{ n += $1 } END { print n + 0 }'; }

for program in "$@"; do
    log=$output/$(echo "${program##*tests/}" | tr / -).log
    arguments=()
    case "$program" in
    */fuzz/smoke_*) arguments=("tests/fuzz/corpus/${program##*/smoke_}") ;;
    esac
    begin=$(date +%s%N)
    timeout --kill-after=10 "$seconds" "$program" "${arguments[@]}" > "$log" 2>&1 < /dev/null
    status=$?
    elapsed=$(($(date +%s%N) - begin))

    p=$(count PASSED "$log") f=$(count FAILED "$log") s=$(count SKIPPED "$log")
    if [ $((p + f + s)) = 0 ]; then
        case $status in 0) p=1 ;; 77) s=1 ;; *) f=1 ;; esac
    elif [ $status != 0 ] && [ "$f" = 0 ]; then
        f=1
    fi
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))

    verdict=ok
    [ "$s" = 0 ] || verdict=skip
    [ "$f" = 0 ] || verdict=FAIL
    printf '%-4s %-44s %3d passed %3d failed %3d skipped %7.1f s\n' "$verdict" "${program#*tests/}" "$p" "$f" "$s" \
        "$(awk "BEGIN { print $elapsed / 1e9 }")"
    grep '^SKIP' "$log" | sort | uniq -c | sed 's/^ *\([0-9]*\) SKIP/     skipped \1x/'
    if [ "$f" != 0 ]; then
        [ $status != 124 ] || echo "     stopped after $seconds s"
        echo "     exit status $status; the end of $log:"
        tail -n 60 "$log" | sed 's/^/     | /'
    fi
done
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ] && [ $passed != 0 ]
