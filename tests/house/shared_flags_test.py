"""A flag that the launcher hands on has one spelling and one range: else the launcher takes what a
process then refuses.

    shared_flags_test.py --bin-dir build/release/bin
"""

import argparse
import pathlib
import subprocess
import sys

COMMANDS = [["flotilla", "serve"], ["flotilla", "engine"], ["flotilla", "join"], ["flotilla-router"],
            ["flotilla-scheduler"], ["flotilla-worker"], ["flotilla-rank-proxy"],
            ["flotilla-detokenizer"]]
# Alike in name only, or checked elsewhere.
DIFFERENT = {
    "--tp": "the launcher also takes auto, the processes only what came of it",
    "--isa": "the worker's table of kernels decides what there is",
}


def flags_of(command, bin_dir):
    """name → how its value is checked: "UINT in [1 - 4096]", or its choices."""
    run = subprocess.run([bin_dir / command[0], *command[1:], "--list-flags"], capture_output=True,
                         text=True, check=True)
    lines = [line.split("\t") for line in run.stdout.splitlines()]
    found = {name: choices or (takes if " in [" in takes else "") for name, _, takes, choices, *_ in lines}
    assert len(found) > 5, f"{command}: --list-flags shows only {found}"
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin-dir", type=pathlib.Path, required=True)
    bin_dir = parser.parse_args().bin_dir.resolve()
    seen = {}
    for command in COMMANDS:
        for name, takes in flags_of(command, bin_dir).items():
            seen.setdefault(name, {})[" ".join(command)] = takes
    shared = {name: users for name, users in seen.items() if len(users) > 1}
    assert {"--max-running-requests", "--max-queued-requests", "--page-size", "--policy",
            "--drain-grace-ms"} <= set(shared), sorted(shared)
    wrong = [f"{name}: " + "; ".join(f"{user} takes {takes or 'anything'}" for user, takes in users.items())
             for name, users in sorted(shared.items())
             if name not in DIFFERENT and len(set(users.values())) > 1]
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
