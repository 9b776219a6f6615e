#!/usr/bin/env python3
"""Writes src/files/nfc_table.c: canonical decompositions, the order in which they compose, and
combining classes, from the Unicode data of the Python that runs this (3.11: Unicode 14.0).

    python3 tools/make_nfc_table.py > src/files/nfc_table.c
"""

import unicodedata as u

HANGUL = range(0xAC00, 0xD7A4)  # composed by arithmetic in nfc.c
pairs, classes = [], []
for c in range(0x110000):
    k = u.combining(chr(c))
    if k:
        if classes and classes[-1][1] == c - 1 and classes[-1][2] == k:
            classes[-1][1] = c
        else:
            classes.append([c, c, k])
    d = u.decomposition(chr(c))
    if d and not d.startswith("<") and c not in HANGUL:
        parts = [int(x, 16) for x in d.split()]
        pairs.append((c, parts[0], parts[1] if len(parts) > 1 else 0))
# A pair composes when normalising it gives the character back (composition exclusions do not).
compose = [i for i, (c, a, b) in enumerate(pairs) if b and u.normalize("NFC", chr(a) + chr(b)) == chr(c)]
compose.sort(key=lambda i: pairs[i][1:])


def rows(items):
    line = "   "
    for s in items:
        if len(line) + len(s) + 2 > 108:
            print(line)
            line = "   "
        line += " " + s + ","
    print(line)


print("/* Written by tools/make_nfc_table.py from Unicode %s; do not edit. */" % u.unidata_version)
print('#include "files/nfc_table.h"\n\n/* clang-format off */')
print("const kr_nfc_pair kr_nfc_pairs[KR_NFC_PAIRS] = {")
rows("{0x%x, 0x%x, 0x%x}" % p for p in pairs)
print("};\n\nconst uint16_t kr_nfc_compose[KR_NFC_COMPOSE] = {")
rows(str(i) for i in compose)
print("};\n\nconst kr_nfc_class kr_nfc_classes[KR_NFC_CLASSES] = {")
rows("{0x%x, 0x%x, %d}" % tuple(c) for c in classes)
print("};")
import sys

print("pairs %d compose %d classes %d" % (len(pairs), len(compose), len(classes)), file=sys.stderr)
