"""tests/bench/gpu.py on the CPU: its model loads, its commands run, and what they tell becomes a table.

Run from the repository's root: python3 tests/bench/gpu_test.py --bin-dir build/release/bin
"""

import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin-dir", required=True)
    bin_dir = parser.parse_args().bin_dir
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "figures.md"
        run = subprocess.run([sys.executable, "tests/bench/gpu.py", "--device", "cpu", "--quick", "--bin-dir", bin_dir, "--out",
                              str(out)], capture_output=True, text=True, timeout=300,
                             env=os.environ | {"XDG_CACHE_HOME": folder})
        assert run.returncode == 0, run.stderr
        rows = [line.split(" | ")[1] for line in out.read_text().splitlines() if re.match(r"\| (\d|one)", line)]
        assert len(rows) == 6 and all(re.search(r"[1-9]", row) for row in rows), rows
        wrong = subprocess.run([sys.executable, "tests/bench/gpu.py", "--device", "cpu", "--quick", "--bin-dir", "/nowhere",
                                "--out", str(out)], capture_output=True, text=True, timeout=60,
                               env=os.environ | {"XDG_CACHE_HOME": folder})
        assert wrong.returncode != 0, "a program that is not there is no figure"
    print("6 rows")


if __name__ == "__main__":
    main()
