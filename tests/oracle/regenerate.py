"""Regenerates the golden data and compares it with the committed one (`./flotilla test --full`).

  python3 regenerate.py MODEL.gguf [--write]     --write: replaces the committed data instead

Makes the venv that make_golden.py needs (.cache/oracle-venv, see requirements.txt) where it is
missing; Debian's packages must be there already. Takes half a minute on one core with OpenBLAS.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
VENV = ROOT / ".cache" / "oracle-venv"
DEBIAN_PACKAGES = "python3 python3-venv python3-torch python3-numpy libopenblas0-pthread"
DEBIAN_PYTHON = "/usr/bin/python3"


def make_venv(venv=VENV, requirements=HERE / "requirements.txt", debian_packages=True):
    """Its python. A copy of the requirements marks a venv that is complete. debian_packages: it has
    Debian's PyTorch and NumPy."""
    stamp, python = venv / "requirements.ok", venv / "bin" / "python"
    if stamp.exists() and stamp.read_bytes() == requirements.read_bytes():
        return python
    if debian_packages and subprocess.run([DEBIAN_PYTHON, "-c", "import torch, venv"],
                                          capture_output=True).returncode:
        sys.exit(f"the oracle needs Debian's PyTorch: apt-get install {DEBIAN_PACKAGES}")
    shutil.rmtree(venv, ignore_errors=True)
    flags = ["--system-site-packages"] if debian_packages else []
    subprocess.run([DEBIAN_PYTHON, "-m", "venv", *flags, venv], check=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
                    "-r", requirements], check=True)
    shutil.copy(requirements, stamp)
    return python


def main():
    arguments = [a for a in sys.argv[1:] if a != "--write"]
    model = arguments[0] if arguments else os.environ.get("FLOTILLA_TEST_MODEL", "")
    if not model:
        sys.exit("give the path of SmolLM2-135M-Instruct.Q4_1.gguf, or set FLOTILLA_TEST_MODEL "
                 "to it; `./flotilla test` does so")
    check = [] if "--write" in sys.argv else ["--check"]
    environment = dict(os.environ, PYTHONDONTWRITEBYTECODE="1", HF_HUB_OFFLINE="1")
    command = [make_venv(), HERE / "make_golden.py", model, *check]
    return subprocess.run(command, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
