#!/usr/bin/env python3
"""Compares a fixture with its remake: compare.py COMMITTED REMADE TOLERANCE [IGNORED_JSON_KEY...]

Prints `same` (every byte), `within TOLERANCE` or what differs, and exits with 0, 0 or 1. Numbers with
a fraction may differ by TOLERANCE, relative to the larger of 1 and the committed number; whole numbers
and all other text must be equal. A .f32 file is numbers alone; other binary files have no tolerance.
"""
import json
import re
import struct
import sys

NUMBER = re.compile(r"(-?0x[0-9a-f]\.[0-9a-f]+p[+-]?\d+|-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)")


def pieces(path, data, ignored):
    """The file as a list of strings and floats."""
    if path.endswith(".f32"):
        return list(struct.unpack("<%df" % (len(data) // 4), data[: len(data) // 4 * 4]))
    text = data.decode()
    if path.endswith(".json") and ignored:
        text = json.dumps({k: v for k, v in json.loads(text).items() if k not in ignored})
    out = []
    for i, part in enumerate(NUMBER.split(text)):
        if i % 2 == 0 or re.fullmatch(r"-?\d+", part):
            out.append(part)
        else:
            out.append(float.fromhex(part) if "x" in part else float(part))
    return out


def verdict(path, committed, remade, tolerance, ignored):
    if committed == remade:
        return True, "same"
    try:
        a, b = pieces(path, committed, ignored), pieces(path, remade, ignored)
    except (UnicodeDecodeError, ValueError):
        at = next((i for i, (x, y) in enumerate(zip(committed, remade)) if x != y), min(len(committed), len(remade)))
        return False, "DIFFERS from byte %d (%d and %d bytes)" % (at, len(committed), len(remade))
    if len(a) != len(b):
        return False, "DIFFERS: %d and %d numbers and words" % (len(a), len(b))
    largest = 0.0
    for i, (x, y) in enumerate(zip(a, b)):
        if isinstance(x, float) and isinstance(y, float):
            largest = max(largest, abs(x - y) / max(1.0, abs(x)))
        elif x != y:
            return False, "DIFFERS at piece %d: %.40r and %.40r" % (i, x, y)
    if largest <= tolerance:
        return True, "within %g (largest difference %.2g)" % (tolerance, largest)
    return False, "DIFFERS by %.2g; %g is allowed" % (largest, tolerance)


def main():
    committed, remade, tolerance = sys.argv[1:4]
    try:
        data = [open(path, "rb").read() for path in (committed, remade)]
    except OSError as e:
        print("%-44s DIFFERS: %s" % (committed, e))
        return 1
    good, words = verdict(committed, data[0], data[1], float(tolerance), sys.argv[4:])
    print("%-44s %s" % (committed, words))
    return 0 if good else 1


sys.exit(main())
