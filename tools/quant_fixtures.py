#!/usr/bin/env python3
"""Writes tests/fixtures/quant/TYPE.bin: random and adversarial blocks of each quantised type and
their values as gguf-py expands them. Needs gguf (0.19.0 made the committed ones) and numpy.

    python3 tools/quant_fixtures.py tests/fixtures/quant

File: uint32 weights, uint32 bytes, the blocks, float32 values [weights]; little-endian.
"""
import importlib.metadata
import pathlib
import struct
import sys

import numpy as np
from gguf import GGMLQuantizationType, dequantize
from gguf.constants import GGML_QUANT_SIZES

TYPES = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"]
# Where the F16 scale fields of a block lie.
HALVES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0],
          "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}
SPECIAL = [0x0000, 0x8000, 0x0001, 0x83FF, 0x7BFF, 0xFBFF, 0x7C00, 0x7E00, 0x3C00]
WEIGHTS = 2560


def blocks_of(name: str, rng: np.random.Generator) -> np.ndarray:
    elements, size = GGML_QUANT_SIZES[GGMLQuantizationType[name]]
    count = WEIGHTS // elements
    blocks = rng.integers(0, 256, (count, size), dtype=np.uint8)
    for b in range(count):
        for k, at in enumerate(HALVES[name]):
            # Half of the blocks have ordinary scales, the others the extremes of the format.
            special = SPECIAL[(b // 2 + k) % len(SPECIAL)]
            half = special if b % 2 else int(np.float16(rng.normal() * 0.01).view(np.uint16))
            blocks[b, at:at + 2] = [half & 255, half >> 8]
    blocks[2, 4:20] = 0xFF
    return blocks


def main() -> None:
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(20)
    for name in TYPES:
        blocks = blocks_of(name, rng)
        with np.errstate(all="ignore"):
            values = dequantize(blocks.reshape(-1), GGMLQuantizationType[name]).astype("<f4").reshape(-1)
        assert values.size == WEIGHTS
        with open(folder / f"{name}.bin", "wb") as out:
            out.write(struct.pack("<II", values.size, blocks.size) + blocks.tobytes() + values.tobytes())
    print("gguf", importlib.metadata.version("gguf"), "numpy", np.__version__, file=sys.stderr)


if __name__ == "__main__":
    main()
