#!/usr/bin/env python3
"""Writes tests/fixtures/nfc.txt: text and its canonical composition, as code points in hex, by
Python's unicodedata (3.11: Unicode 14.0).

    python3 tools/make_nfc_fixture.py > tests/fixtures/nfc.txt

Every character that composition changes, every decomposition put together again, and random
sequences of starters, marks and Hangul.
"""

import random
import unicodedata as u


def line(s):
    print(" ".join("%x" % ord(c) for c in s) + " = " + " ".join("%x" % ord(c) for c in u.normalize("NFC", s)))


rng = random.Random(20261130)
every = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
hangul = range(0xAC00, 0xD7A4)
for c in every:
    if u.normalize("NFC", c) != c:
        line(c)
for c in every:
    d = u.normalize("NFD", c)
    if d != c and ord(c) not in hangul:
        line(d)
marks = [c for c in every if u.combining(c)]
starters = [c for c in every if u.decomposition(c) and not u.decomposition(c).startswith("<")] + list(
    "aeiouq日"
)
syllables = [chr(c) for c in (0x1100, 0x1112, 0x1161, 0x1175, 0x11A7, 0x11A8, 0x11C2, 0xAC00, 0xAC01, 0xD7A3)]
for _ in range(800):
    line(
        "".join(
            rng.choice(rng.choice([starters, marks, marks, marks[:60], syllables]))
            for _ in range(rng.randrange(1, 12))
        )
    )
