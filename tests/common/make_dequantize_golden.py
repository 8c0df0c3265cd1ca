"""Makes dequantize_golden.bin: random blocks of every block type and what the gguf package makes of
them, which dequantize_test.cc compares bit for bit.

  python make_dequantize_golden.py            writes it
  python make_dequantize_golden.py --check    fails if the committed one differs

For each type: its number in GGUF, the number of blocks (both uint32, little-endian), the blocks, and
their values as fp32. Needs gguf and numpy as tests/requirements.txt pins them.
"""

import argparse
import hashlib
import struct
import sys
from pathlib import Path

import gguf
import numpy as np

GOLDEN = Path(__file__).resolve().parent / "dequantize_golden.bin"
VALUES = 768  # of each type: 24 blocks, 3 super-blocks

# Where a block has its fp16 scales and mins.
HALVES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0],
          "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}


def random_bytes(seed, count):
    """SHA-256 in counter mode: the same everywhere."""
    out = b""
    while len(out) < count:
        out += hashlib.sha256(f"{seed} {len(out)}".encode()).digest()
    return np.frombuffer(out[:count], dtype=np.uint8)


def golden():
    out = b""
    for name, halves in HALVES.items():
        dtype = gguf.GGMLQuantizationType[name]
        values, size = gguf.GGML_QUANT_SIZES[dtype]
        blocks = random_bytes(name, VALUES // values * size).reshape(-1, size).copy()
        for at in halves:
            blocks[:, at + 1] &= 0xbf  # below 2: finite, of either sign, some of them subnormal
        floats = gguf.quants.dequantize(blocks, dtype)
        assert floats.dtype == np.float32 and np.isfinite(floats).all(), name
        out += struct.pack("<II", dtype, len(blocks)) + blocks.tobytes()
        out += floats.astype("<f4").tobytes()
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    if parser.parse_args().check:
        return 0 if GOLDEN.read_bytes() == golden() else f"{GOLDEN.name} differs"
    GOLDEN.write_bytes(golden())
    print(f"wrote {GOLDEN}: {GOLDEN.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
