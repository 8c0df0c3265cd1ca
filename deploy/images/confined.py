"""confined.py PID [FOLDER=SIZE]...: is the pod that try.sh imitates as confined as it says? Looks at PID and every process
of its PID namespace as the kernel has them, and at the file systems that PID sees.

Prints a line for each thing that is not so, and exits with 1 if there is any: another user than 65532, a capability in
any of the five sets, privileges that may be gained, a root that can be written to, a FOLDER that has another size.
"""

import os
import pathlib
import sys

PROC = pathlib.Path("/proc")
USER = "65532"
CAPABILITIES = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def status_of(pid):
    """What /proc/PID/status says, name → value; None if the process has ended."""
    try:
        lines = (PROC / str(pid) / "status").read_text(encoding="utf-8", errors="replace").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


def of_the_same_namespace(pid):
    """PID and all processes that are in its PID namespace."""
    def namespace(each):
        try:
            return os.readlink(PROC / each / "ns" / "pid")
        except OSError:  # it has ended
            return None

    mine = namespace(str(pid))
    return sorted(int(each.name) for each in PROC.iterdir() if each.name.isdigit() and namespace(each.name) == mine)


def wrong_privileges(status):
    who = f'{status["Name"]} ({status["Pid"]})'
    for key in ("Uid", "Gid"):
        if set(status[key].split()) != {USER}:
            yield f"{who}: {key} is {status[key]}"
    if set(status["Groups"].split()) - {USER}:
        yield f'{who}: Groups are {status["Groups"]}'
    for key in CAPABILITIES:
        if int(status[key], 16) != 0:
            yield f"{who}: {key} is {status[key]}"
    if status["NoNewPrivs"] != "1":
        yield f'{who}: NoNewPrivs is {status["NoNewPrivs"]}'


def wrong_file_systems(root, sizes):
    """Of the process whose root is `root`."""
    if not os.statvfs(root).f_flag & os.ST_RDONLY:
        yield "the root can be written to"
    for folder, size in sizes.items():
        there = os.statvfs(root / folder)
        if there.f_blocks * there.f_frsize != size:
            yield f"{folder} has {there.f_blocks * there.f_frsize} bytes, not {size}"


def main(pid, *volumes):
    sizes = {folder: int(size[:-1]) * UNITS[size[-1]] for folder, size in (each.split("=") for each in volumes)}
    seen = [status for status in map(status_of, of_the_same_namespace(pid)) if status]
    wrong = [line for status in seen for line in wrong_privileges(status)]
    wrong += wrong_file_systems(PROC / pid / "root", sizes)
    print(*wrong, sep="\n", end="\n" if wrong else "")
    return 1 if wrong or not seen else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
