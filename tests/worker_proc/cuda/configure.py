#!/usr/bin/env python3
"""A new build folder with CUDA, configured as `./flotilla serve --device cuda` does it: each kernel is compiled for
the GPUs that docs/cuda.md promises, and once as PTX for those that come later.

Exit status 77: there is no nvcc.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

from budget import KERNELS, ROOT, find_nvcc

# What a GPU finds: code of its own, and PTX of an architecture whose kernels may begin early (platform_gpu.cuh).
WANTED = {"sm_80", "sm_90a", "sm_100a", "compute_90"}


def main():
    nvcc = find_nvcc()
    if nvcc is None:
        print("skipped: there is no nvcc")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "PATH": f"{os.environ['PATH']}:{pathlib.Path(nvcc).parent}"}
        ran = subprocess.run(["cmake", "--preset", "cuda", "-B", folder, "-DFLOTILLA_TESTS=OFF"], cwd=ROOT, env=env,
                             capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        commands = json.loads(pathlib.Path(folder, "compile_commands.json").read_text())
    kernels = [entry for entry in commands if pathlib.Path(entry["file"]).resolve().parent == KERNELS
               and "nvcc" in entry["command"]]
    assert len(kernels) == len(list(KERNELS.glob("*.cu"))), sorted(entry["file"] for entry in kernels)
    for entry in kernels:
        codes = re.findall(r"--generate-code=arch=\w+,code=(\S+)", entry["command"])
        found = set(re.findall(r"\w+", " ".join(codes)))
        assert found == WANTED, (entry["file"], found)
    print(f"{len(kernels)} kernels are compiled for {', '.join(sorted(WANTED))}")


if __name__ == "__main__":
    main()
