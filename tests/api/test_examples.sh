#!/bin/bash
# karat as others use it: installed into a folder, examples built there with pkg-config against the shared
# and the static library, and run; headers compiled as C++; the Python example when cffi and numpy are there.
set -euo pipefail
cd "$(dirname "$0")/../.."

build=$(dirname "${KARAT_LIB:-build/libkarat.a}")
tree=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cc=${CC:-cc}
flags="-std=c11 -O2 -Wall -Wextra -Werror ${KARAT_SAN:+-fsanitize=$KARAT_SAN}"
die() { echo "FAIL: $*" >&2; exit 1; }

make --no-print-directory B="$build" SAN="${KARAT_SAN:-}" DESTDIR="$work/root" PREFIX=/opt/karat install > "$work/log" 2>&1 ||
    die "make install: $(tail -5 "$work/log")"
prefix=$work/root/opt/karat
export PKG_CONFIG_PATH=$prefix/lib/pkgconfig
karat() { pkg-config --define-variable=prefix="$prefix" "$@" karat; }
[ "$(pkg-config --modversion karat)" = "$("$prefix/bin/karat" --version | cut -d' ' -f2)" ] || die "version of karat.pc"
[ "$(pkg-config --variable=prefix karat)" = /opt/karat ] || die "prefix of karat.pc"

cp examples/* "$work"
cd "$work"
$cc $flags select.c $(karat --cflags --libs) -lm -Wl,-rpath,"$prefix/lib" -o select
$cc $flags select.c $(karat --cflags) "$prefix/lib/libkarat.a" $(karat --static --libs | sed 's/-lkarat//') -o static
$cc -std=c11 -O2 -Wall -Wextra -Werror -shared -fPIC $(karat --cflags) my_method.c -o my_method.so
objdump -p select | grep -q 'NEEDED *libkarat.so.0$' || die "select is not linked with libkarat.so.0"
! objdump -p static | grep -q 'NEEDED *libkarat' || die "static needs the shared object"

./select > shared.txt
./static > static.txt
cmp <(tail -n +2 shared.txt) <(tail -n +2 static.txt) || die "static and shared library differ"
# Each method keeps nearly the budget of 512 tokens; the four that look at keys find most of the mass.
awk '$2 < 500 || $2 > 520 { print "budget:", $0; bad = 1 }
     /^(quest|lserve|sparq|starc)/ { n++; if ($6 < 90) { print "mass:", $0; bad = 1 } }
     END { exit bad || n != 4 }' <(tail -n +2 shared.txt) || die "select: $(cat shared.txt)"
./select ./my_method.so | grep -q '^meankey  *512 of 4096' || die "select with ./my_method.so"
status=0
./select nothing > out 2>&1 || status=$?
[ $status = 1 ] && grep -q '^select: no method "nothing"' out || die "a wrong name: $(cat out)"

for header in "$prefix"/include/karat/*.h; do
    $cc -std=c99 -pedantic -Wall -Wextra -Werror -fsyntax-only -I"$prefix/include" -x c "$header"
    ! command -v g++ > /dev/null ||
        g++ -std=c++11 -pedantic -Wall -Wextra -Werror -fsyntax-only -I"$prefix/include" -x c++ "$header"
done
command -v g++ > /dev/null || echo "SKIP: headers as C++: no g++"

if [ -n "${KARAT_SAN:-}" ]; then
    echo "SKIP: Python does not load a library with sanitizers"
elif ! /usr/bin/python3 -c 'import cffi, numpy' 2> /dev/null; then
    echo "SKIP: Python example: no python3-cffi or python3-numpy"
else
    for method in quest sparq starc; do
        KARAT_LIBRARY=$prefix/lib/libkarat.so.0 /usr/bin/python3 numpy_select.py $method || die "numpy_select.py $method"
    done
fi
cat shared.txt
cd "$tree"
