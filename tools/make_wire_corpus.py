#!/usr/bin/env python3
"""Seeds of the fuzz target of wire messages: one well-formed message of each payload kind.

    tools/make_wire_corpus.py tests/fuzz/corpus/wire
"""
import struct
import sys
from pathlib import Path


def header(kind, rows=0, payload=0, flags=0, step=64, sequence=1000, device=2):
    return struct.pack("<IHHIHHIIQQQQII", 0x5241524B, 1, kind, 7, 0, 0, device, rows, sequence, step, payload, 0,
                       flags, 0)


def row(session, position, tokens, is_prefill=0):
    return struct.pack("<QQIIQ", session, position, tokens, is_prefill, 0)


def lists(*selections):
    counts = b"".join(struct.pack("<I", len(s)) for s in selections)
    return counts + b"".join(struct.pack("<I", i) for s in selections for i in s)


NAME = b"chat-1.kv".ljust(64, b"\0")
LAYER = struct.pack("<IIII", 0, 0, 0, 0) + b"quest".ljust(80, b"\0")
HASHES = struct.pack("<QQQQ", 1, 2, 3, 4)

PAYLOADS = {
    "hello": (1, struct.pack("<HHI", 1, 1, 0) + bytes(64) + b"0.1.0".ljust(64, b"\0")),
    "proof": (3, bytes(range(32))),
    "welcome": (4, struct.pack("<IIIIQQ", 7, 2, 500, 2000, 1 << 28, 1)),
    "stats": (6, struct.pack("<II5Q", 1, 3, 1, 2, 3, 4, 5) + bytes(160)),
    "configure": (7, struct.pack("<7IfQIIQ", 2, 9, 3, 64, 64, 0, 2, 0.125, 8192, 512, 1, 99) + LAYER * 2),
    "open": (8, struct.pack("<QQII", 4096, 1, 2, 0) + HASHES),
    "opened": (8, struct.pack("<QQII", (1 << 32) | 1, 128, 0, 4) + b"blob"),
    "end_prefill": (10, struct.pack("<QQII", (1 << 32) | 1, 256, 2, 0) + HASHES),
    "attend": (13, row((1 << 32) | 1, 5, 3, 1) + row((1 << 32) | 2, 0, 1) + lists([1, 5, 9], [0])),
    "save": (16, struct.pack("<QII", (1 << 32) | 1, 4, 0) + NAME + b"blob"),
    "error": (19, struct.pack("<iI", -21, 9) + b"pool full"),
    "path": (21, struct.pack("<IIQ", 1, 8, 42) + b"address!"),
}


def main():
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, (kind, payload) in PAYLOADS.items():
        rows = 2 if name == "attend" else 0
        (folder / name).write_bytes(header(kind, rows, len(payload)) + payload)


main()
