#!/bin/bash
# The structs of the public headers lie in memory as layout.txt says, so that programs built earlier go on
# working: a struct may grow at its end (lines are added), nothing may move. UPDATE=1 writes the file anew.
set -euo pipefail
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

python3 - include/karat/*.h > "$work/layout.c" << 'END'
import re, sys

print("#include <stdio.h>\n#include <stddef.h>")
for path in sys.argv[1:]:
    print(f'#include "{path}"')
print("int main(void)\n{")
for path in sys.argv[1:]:
    text = re.sub(r"/\*.*?\*/", "", open(path).read(), flags=re.S)
    for name, body in re.findall(r"struct (karat_\w+) \{(.*?)\n\}", text, flags=re.S):
        print(f'printf("{name} %zu\\n", sizeof(struct {name}));')
        for line in body.split(";"):
            pointers = re.findall(r"\(\*(\w+)\)", line)
            plain = [re.sub(r"\[.*", "", part).split()[-1].lstrip("*") for part in line.split(",") if part.strip()]
            for field in pointers or plain:
                print(f'printf("{name}.{field} %zu %zu\\n", offsetof(struct {name}, {field}), '
                      f"sizeof(((struct {name} *)0)->{field}));")
print("return 0;\n}")
END
${CC:-cc} -std=c11 -Iinclude -I. "$work/layout.c" -o "$work/layout"
"$work/layout" > "$work/layout.txt"
[ -z "${UPDATE:-}" ] || cp "$work/layout.txt" tests/api/layout.txt
diff tests/api/layout.txt "$work/layout.txt" ||
    { echo "the layout (>) is not that of tests/api/layout.txt (<)"; exit 1; }
echo "$(grep -c '\.' tests/api/layout.txt) fields of $(grep -vc '\.' tests/api/layout.txt) structs"
