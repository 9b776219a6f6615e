#!/bin/bash
# Makes the committed fixtures again, with the software they were made with, and compares.
#
#   tools/oracle.sh [PART...]      parts: rope quant nfc corpus tiny learned tokens methods client llama;
#                                  default all
#
# Prints a line for each file: `same`, `within` the tolerance given below, or `DIFFERS`; the exit status
# is 1 when something differs. Nothing that is committed is changed. Environment:
#
#   VENV=DIR      a Python environment that has the packages below, instead of the cached one
#   LLAMA=DIR     a built llama.cpp tree (build/bin), instead of the cached one
#   AUTHORS=DIR   the authors' repositories that tools/oracle_methods.py lists; without it the part
#                 `methods` is left out
#   KARAT_ORACLE_DIR   the cache, by default ~/.cache/karat/oracle
#
# Long: the first use (PyTorch, building llama.cpp) and the part llama (hours on a busy machine).
set -euo pipefail
cd "$(dirname "$0")/.."

packages="torch==2.15.0 transformers==5.24.0 tokenizers==0.23.3 gguf==0.19.0 numpy==2.4.6 safetensors==0.8.0
          sentencepiece==0.2.1 accelerate==1.15.0 cffi==2.1.1"
llama_package=llama-cpp-python llama_version=0.3.36
cache=${KARAT_ORACLE_DIR:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/karat/oracle}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

tools/deps.sh oracle
# Programs of the fixtures that no NumPy or PyTorch touches run with Debian's own Python (3.11).
python=${VENV:-$cache/venv}/bin/python

need_python() {
    [ -n "${VENV:-}" ] || [ "$(cat "$cache/venv/complete" 2> /dev/null)" = "$packages" ] || {
        echo "making $cache/venv" >&2
        mkdir -p "$cache"
        python3 -m venv "$cache/venv"
        # shellcheck disable=SC2086
        "$python" -m pip install --quiet --disable-pip-version-check $packages >&2
        echo "$packages" > "$cache/venv/complete"
    }
}

# The source that the Python package carries, built for this machine.
need_llama() {
    [ -z "${LLAMA:-}" ] || return 0
    LLAMA=$cache/llama_cpp_python-$llama_version/vendor/llama.cpp
    [ -e "$LLAMA/build/complete" ] || {
        echo "building $LLAMA" >&2
        mkdir -p "$cache"
        python3 -m pip download --quiet --disable-pip-version-check --no-deps --no-binary :all: \
            --dest "$work/sdist" "$llama_package==$llama_version" >&2
        tar -xf "$work/sdist/llama_cpp_python-$llama_version.tar.gz" -C "$cache"
        cmake -S "$LLAMA" -B "$LLAMA/build" -DCMAKE_BUILD_TYPE=Release -DLLAMA_CURL=OFF > "$work/cmake.log"
        cmake --build "$LLAMA/build" --parallel "$(nproc)" --target llama llama-quantize >> "$work/cmake.log"
        touch "$LLAMA/build/complete"
    }
}

# compare COMMITTED REMADE [TOLERANCE [IGNORED_KEY...]]
compare() {
    local committed=$1 remade=$2 tolerance=${3:-0}
    shift $(($# > 3 ? 3 : $#))
    python3 tools/oracle/compare.py "$committed" "$remade" "$tolerance" "$@" || failed=1
}

# compare_folder COMMITTED REMADE [TOLERANCE [IGNORED_KEY...]]: every committed file in it.
compare_folder() {
    local committed=$1 remade=$2 file
    shift 2
    while read -r file; do
        compare "$committed/$file" "$remade/$file" "$@"
    done < <(git ls-files "$committed" | sed "s|^$committed/||")
}

# Frequencies are F32; another machine's pow may round the last bit otherwise.
rope() {
    need_python
    "$python" tests/fixtures/make_rope.py > "$work/rope.txt"
    compare tests/fixtures/rope.txt "$work/rope.txt" 1e-6
}

quant() {
    need_python
    "$python" tools/quant_fixtures.py "$work/quant" 2> /dev/null
    compare_folder tests/fixtures/quant "$work/quant"
}

nfc() {
    python3 tools/make_nfc_fixture.py > "$work/nfc.txt"
    compare tests/fixtures/nfc.txt "$work/nfc.txt"
    python3 tools/make_nfc_table.py > "$work/nfc_table.c"
    compare src/files/nfc_table.c "$work/nfc_table.c"
}

# What fuzzing found is committed beside these.
corpus() {
    local file
    python3 tools/make_fuzz_corpus.py "$work/corpus"
    python3 tools/make_wire_corpus.py "$work/corpus/wire"
    for file in "$work"/corpus/*/*; do
        compare "tests/fuzz/corpus/${file#"$work/corpus/"}" "$file"
    done
}

# Weights come from seeds and are the same; logits are sums of F32 whose order is PyTorch's choice.
tiny() {
    need_python
    need_llama
    "$python" tools/make_tiny_models.py "$work/tiny" "$LLAMA" > "$work/tiny.log" 2>&1 || tail -3 "$work/tiny.log"
    compare_folder tests/fixtures/tiny "$work/tiny" 1e-4
}

# As tiny.
learned() {
    need_python
    "$python" tools/make_learned_models.py "$work/learned" > "$work/learned.log" 2>&1 || tail -3 "$work/learned.log"
    compare_folder tests/fixtures/learned "$work/learned" 1e-4
}

tokens() {
    local smollm2 gemma
    need_python
    need_llama
    smollm2=$(tools/fetch_model.sh)
    gemma=$(tools/fetch_gemma.sh)
    cc -O2 tools/llama_tokenize.c -I "$LLAMA/include" -I "$LLAMA/ggml/include" -L "$LLAMA/build/bin" \
        -Wl,-rpath,"$LLAMA/build/bin" -lllama -lggml -lggml-base -o "$work/llama_tokenize"
    "$python" tools/make_token_fixtures.py tests/fixtures/tiny "$work/tokens" "$work/llama_tokenize" \
        "$smollm2" "$gemma" > "$work/tokens.log" 2>&1 || tail -3 "$work/tokens.log"
    compare_folder tests/fixtures/tokens "$work/tokens"
}

# As tiny: sums of F32. The first line names versions, with the build of PyTorch.
methods() {
    [ -n "${AUTHORS:-}" ] || {
        echo "tests/fixtures/oracle_methods.txt            not compared: AUTHORS is not set"
        return 0
    }
    need_python
    "$python" tools/oracle_methods.py "$AUTHORS" > "$work/oracle_methods.txt"
    compare tests/fixtures/oracle_methods.txt "$work/oracle_methods.txt" 1e-4
}

# transformers with its attention on a node, beside transformers alone; the differences are of one run.
client() {
    need_python
    make --no-print-directory -j"$(nproc)" all > "$work/make.log"
    OMP_NUM_THREADS=1 "$python" tools/oracle/hf_client.py --karat build/karat --model "$(tools/fetch_model.sh)" \
        --prompt tests/fixtures/llama/mpl_2k.json --out "$work/client.json" 2> "$work/client.log" ||
        { failed=1; tail -3 "$work/client.log"; }
    compare tests/fixtures/hf/client.json "$work/client.json" 1e-3 torch logit_difference_max
}

# Logits: what tests/e2e/test_llama.c allows karat itself. One thread: llama.cpp's others would spin.
llama() {
    need_python
    need_llama
    "$python" tools/oracle/make_llama_fixture.py --llama "$LLAMA" --model "$(tools/fetch_model.sh)" \
        --work "$work/llama" --out "$work/llama-out" --threads 1 > "$work/llama.log"
    compare_folder tests/fixtures/llama "$work/llama-out" 0.008 llama.cpp system
}

[ $# -gt 0 ] || set -- rope quant nfc corpus tiny learned tokens methods client llama
for part in "$@"; do
    case "$part" in
    rope | quant | nfc | corpus | tiny | learned | tokens | methods | client | llama) $part ;;
    *) echo "tools/oracle.sh: no part $part" >&2; exit 2 ;;
    esac
done
exit $failed
