#!/bin/bash
# clang-tidy on one file: tools/tidy.sh FILE PREPROCESSOR_FLAGS... Prints findings only.
file=$1
shift
isa=
case "$file" in
*_avx2.c) isa="-mavx2 -mfma -mf16c" ;;
*_avx512*.c) isa="-mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vbmi -mavx512vnni -mavx512bf16 -mfma -mf16c" ;;
esac
output=$(clang-tidy --quiet "$file" -- -std=c17 "$@" $isa 2> /dev/null) && [ -z "$output" ] && exit 0
echo "$output"
exit 1
