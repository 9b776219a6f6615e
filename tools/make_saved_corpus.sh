#!/bin/bash
# Writes the starting inputs of the saved-session fuzz target: sessions of a tiny model.
#
#   tools/make_saved_corpus.sh tests/fuzz/corpus/saved      KARAT: the program, by default build/karat
set -euo pipefail
karat=${KARAT:-build/karat}
for method in dense starc; do
    "$karat" run tests/fixtures/tiny/llama.gguf -p 'The memory node' -n 4 --ignore-end --attention $method --dense-layers 0 \
        --save $method --save-folder "$1" > /dev/null 2>&1
done
