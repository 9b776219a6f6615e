#!/bin/bash
# Installs the Debian packages that a task needs, and only when one is missing.
#
#   tools/deps.sh build    compiler, libraries, test framework, and pip for the test model
#   tools/deps.sh lint     clang with its formatter, linter and fuzzer
#   tools/deps.sh oracle   Python with venv, and what builds llama.cpp, for comparisons with other software
#
# Needs root (or sudo) only to install. On another system install their equivalents and set
# KARAT_DEPS=skip.
set -euo pipefail

build="gcc libc6-dev make pkg-config libjansson-dev libxxhash-dev libzstd-dev zlib1g-dev libpcre2-dev libhwloc-dev
       libnuma-dev libucx-dev libgnutls28-dev libdnnl-dev libsqlite3-dev libcmocka-dev binutils
       python3 python3-pip python3-cffi python3-numpy unzip ca-certificates iproute2"
lint="clang clang-format clang-tidy"
oracle="python3 python3-venv cmake g++ git"

case "${1:-}" in
build) packages=$build ;;
lint) packages="$build $lint" ;;
oracle) packages="$build $oracle" ;;
*) echo "usage: tools/deps.sh build|lint|oracle" >&2; exit 2 ;;
esac
[ "${KARAT_DEPS:-}" != skip ] || exit 0

if ! command -v dpkg-query > /dev/null; then
    echo "tools/deps.sh: not a Debian system; install the equivalents of:" $packages >&2
    echo "tools/deps.sh: then set KARAT_DEPS=skip" >&2
    exit 1
fi

missing=
for package in $packages; do
    state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2> /dev/null || true)
    # Multi-arch packages may answer once per architecture.
    case "$state" in installed*) ;; *) missing+=" $package" ;; esac
done
[ -n "$missing" ] || exit 0

as_root=
if [ "$(id -u)" != 0 ]; then
    command -v sudo > /dev/null || {
        echo "tools/deps.sh: packages are missing; as root: apt-get install$missing" >&2
        exit 1
    }
    as_root=sudo
fi
echo "installing$missing" >&2
export DEBIAN_FRONTEND=noninteractive
$as_root apt-get update -q >&2
$as_root apt-get install -q -y --no-install-recommends $missing >&2
