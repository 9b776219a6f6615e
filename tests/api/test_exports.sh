#!/bin/bash
# The shared object exports the public API and nothing else: what `nm -D` lists is exports.txt, whose
# names are exactly the KARAT_API functions of the installed headers.
set -euo pipefail
cd "$(dirname "$0")/../.."
library=$(dirname "${KARAT_LIB:-build/libkarat.a}")/libkarat.so

[ -z "${KARAT_SAN:-}" ] || { echo "SKIP: sanitizers export symbols of their own"; exit 77; }
diff <(nm -D --defined-only "$library" | awk '{ print $3 }' | LC_ALL=C sort) tests/api/exports.txt ||
    { echo "libkarat.so (<) differs from tests/api/exports.txt (>)"; exit 1; }
diff <(cat include/karat/*.h | tr '\n' ' ' | grep -o 'KARAT_API [^;(]*(' | grep -o 'karat_[a-z0-9_]*($' | tr -d '(' |
       LC_ALL=C sort) tests/api/exports.txt ||
    { echo "the headers declare (<) other functions than exports.txt lists (>)"; exit 1; }
objdump -p "$library" | grep -q "SONAME *libkarat.so.$(sed -n 's/^#define KARAT_ABI //p' include/karat/karat.h)$" ||
    { echo "the soname does not end in KARAT_ABI"; exit 1; }
echo "$(wc -l < tests/api/exports.txt) functions exported"
