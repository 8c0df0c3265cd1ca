"""The tables of docs/commands.md are made of what the binaries' --list-flags says, as --help is, so that they can't
drift.

    flag_tables.py --bin-dir build/release/bin --check    fails if the page differs
    flag_tables.py --bin-dir build/release/bin --write    brings it up to date
"""

import argparse
import difflib
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = "docs/commands.md"
# Marker in the page → command whose flags it holds.
TABLES = {
    "serve": ["flotilla", "serve"],
    "engine": ["flotilla", "engine"],
    "join": ["flotilla", "join"],
    "router": ["flotilla-router"],
    "ask": ["flotilla", "ask"],
    "chat": ["flotilla", "chat"],
    "top": ["flotilla", "top"],
    "flight": ["flotilla", "flight"],
    "replay": ["flotilla-flight", "replay"],
    "trace": ["flotilla-flight", "trace"],
    "inspect": ["flotilla-worker-bench", "inspect"],
    "size": ["flotilla-worker-bench", "size"],
    "bench serve": ["flotilla-served"],
    "bench offline": ["flotilla-offline"],
    "bench roofline": ["flotilla-worker-bench"],
    "bench quality": ["flotilla-quality"],
    "bench fit": ["flotilla-simulate", "fit"],
    "simulate": ["flotilla-simulate", "simulate"],
    "simulate fleet": ["flotilla-fleet"],
}


def rows(flag_lines):
    """Of what --list-flags prints, a line a flag: name, short name, what it takes, choices, default, whether it is
    required, whether it is a list, help."""
    for line in flag_lines.splitlines():
        name, _, _, choices, default, _, _, description = line.split("\t")
        if name in ("--version", "command"):
            continue
        if choices:
            description += " (" + choices.replace(",", ", ") + ")"
        yield name, default, description


def table(command, bin_dir):
    run = subprocess.run([bin_dir / command[0], *command[1:], "--list-flags"], capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{run.stderr}")
    lines = ["| flag | default | |", "|---|---|---|"]
    for name, default, description in rows(run.stdout):
        text = description.replace("|", "\\|")
        lines.append(f"| `{name}` | {f'`{default}`' if default else ''} | {text} |")
    if len(lines) == 2:
        sys.exit(f"{' '.join(command)} shows no flags")
    return "\n".join(lines) + "\n"


def render(page, bin_dir):
    for name, command in TABLES.items():
        begin, end = f"<!-- flags {name} -->\n", "<!-- end -->\n"
        if begin not in page:
            sys.exit(f"{PAGE} has no marker '{begin.strip()}'")
        head, rest = page.split(begin, 1)
        page = head + begin + table(command, bin_dir) + end + rest.split(end, 1)[1]
    return page


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin-dir", type=pathlib.Path, required=True)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    path = ROOT / PAGE
    old = path.read_text(encoding="utf-8")
    new = render(old, args.bin_dir)
    if args.write:
        path.write_text(new, encoding="utf-8")
    elif new != old:
        diff = difflib.unified_diff(old.splitlines(), new.splitlines(), PAGE, "--list-flags", lineterm="")
        sys.exit("\n".join(diff) + "\nrun tests/house/flag_tables.py --write")


if __name__ == "__main__":
    main()
