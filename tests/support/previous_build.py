"""The programs of an earlier version, for tests of what two versions do together: built once, as its users built it."""

import fcntl
import pathlib
import shutil
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]


def previous_programs(commit):
    """The folder of that commit's programs. The first call takes as long as a build."""
    folder = ROOT / ".cache/previous" / commit
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.with_suffix(".lock"), "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "flotilla").exists():
            known = subprocess.run(["git", "-C", ROOT, "cat-file", "-e", commit + "^{commit}"], check=False)
            assert known.returncode == 0, f"{commit} is not in this clone: git fetch --unshallow"
            partial = folder.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)
            subprocess.run(["git", "clone", "--quiet", "--shared", "--no-checkout", ROOT, partial], check=True)
            subprocess.run(["git", "-C", partial, "checkout", "--quiet", commit], check=True)
            partial.rename(folder)
        subprocess.run([folder / "flotilla", "serve", "--help"], stdout=subprocess.DEVNULL, check=True)
    return str(folder / "build/release/bin")
