"""The checkout that a benchmark runs in: its folder, where it keeps models, and which commit its figures are of."""

import os
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "flotilla"
DEFAULT_MODEL = str(CACHE / "SmolLM2-135M-Instruct.Q4_1.gguf")


def commit():
    """FLOTILLA_COMMIT says it where the checkout was copied without its history."""
    if told := os.environ.get("FLOTILLA_COMMIT"):
        return told
    ran = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return ran.stdout.strip() or "unknown"
