#!/bin/bash
# Writes tests/fixtures/smollm2/{q4_1,f32}.top: llama.cpp's logits for text.txt, from the Q4_1 file
# and from the same weights expanded to F32 by llama-quantize.
#   tools/llama_fixtures.sh LLAMA_CPP MODEL     a built llama.cpp tree; SmolLM2-135M-Instruct.Q4_1.gguf
# The committed ones: llama.cpp 0c1e570 (llama-cpp-python 0.3.36), a native build on Zen 4, 2 threads.
set -e
llama=$1 model=$2 here=$(cd "$(dirname "$0")/.." && pwd) work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cc -O2 -I"$llama/include" -I"$llama/ggml/include" -o "$work/llama_logits" "$here/tools/llama_logits.c" \
    -L"$llama/build/bin" -Wl,-rpath,"$llama/build/bin" -lllama -lggml -lggml-base -lm
"$llama/build/bin/llama-quantize" --allow-requantize "$model" "$work/f32.gguf" F32 > /dev/null 2>&1
out=$here/tests/fixtures/smollm2
"$work/llama_logits" "$model" "$out/text.txt" 192 48 "$out/q4_1.top"
"$work/llama_logits" "$work/f32.gguf" "$out/text.txt" 192 48 "$out/f32.top"
