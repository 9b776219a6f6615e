#!/bin/sh
# Compiles and runs ggml_indexer.c: bench/peers/ggml_indexer.sh GGML_HEADERS GGML_LIBRARIES, after make.
# The first folder holds ggml.h, the second libggml.so, libggml-base.so and libggml-cpu.so.
set -e
out=${B:-build}/bench/ggml_indexer
mkdir -p "$(dirname "$out")"
cc -std=c17 -O2 -Isrc -I"$1" -D_GNU_SOURCE -o "$out" bench/peers/ggml_indexer.c "${B:-build}/libkarat.a" \
    -L"$2" -Wl,-rpath,"$2" -lggml -lggml-cpu -lggml-base -lm -lpthread
exec "$out"
