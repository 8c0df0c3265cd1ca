"""README's flag tables are made from the binaries' --help, so that they can't drift.

    flag_tables.py --bin-dir build/release/bin --check    fails if README differs
    flag_tables.py --bin-dir build/release/bin --write    brings README up to date
"""

import argparse
import difflib
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Marker in README → command whose --help it holds.
TABLES = {
    "serve": ["flotilla", "serve", "--help"],
    "engine": ["flotilla", "engine", "--help"],
    "join": ["flotilla", "join", "--help"],
    "ask": ["flotilla", "ask", "--help"],
    "router": ["flotilla-router", "--help"],
    "bench roofline": ["flotilla-worker-bench", "--help"],
    "bench quality": ["flotilla-quality", "--help"],
    "bench offline": ["flotilla-offline", "--help"],
}
FLAG = re.compile(r"^  (?:(-\w),)?(--[\w-]+|\w+)\s*(.*)$")


def rows(help_text):
    """CLI11's help: '  --name TYPE:CHECK=default  description'; the description may be on its own line."""
    entries = []
    for line in help_text.splitlines():
        match = FLAG.match(line)
        if match and not line.startswith("   "):
            entries.append([match.group(2), match.group(3)])
        elif entries and line.startswith("      "):
            entries[-1][1] += "  " + line.strip()
        elif not line.strip():
            continue
    for name, rest in entries:
        if name in ("--help", "--version", "command", "flotilla"):  # the last: examples
            continue
        # The syntax ends where two spaces begin the description: TYPE:CHECK=DEFAULT  description
        parts = re.split(r"\s{2,}", rest.strip(), maxsplit=1)
        if len(parts) == 1 and " REQUIRED " in parts[0]:  # too long for a gap of two spaces
            parts = parts[0].split(" REQUIRED ", 1)
        syntax, description = parts if len(parts) == 2 else ("", parts[0])
        choices = re.search(r"\{(.*)\}", syntax)
        if choices:
            description += " (" + choices.group(1).replace(",", ", ") + ")"
        yield name, syntax.rsplit("=", 1)[1] if "=" in syntax else "", description


def table(command, bin_dir):
    run = subprocess.run([str(bin_dir / command[0]), *command[1:]], capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{run.stderr}")
    lines = ["| flag | default | |", "|---|---|---|"]
    for name, default, description in rows(run.stdout):
        text = description.replace("|", "\\|")
        lines.append(f"| `{name}` | {f'`{default}`' if default else ''} | {text} |")
    if len(lines) == 2:
        sys.exit(f"{' '.join(command)} shows no flags")
    return "\n".join(lines) + "\n"


def render(readme, bin_dir):
    for name, command in TABLES.items():
        begin, end = f"<!-- flags {name} -->\n", "<!-- end -->\n"
        if begin not in readme:
            sys.exit(f"README.md has no marker '{begin.strip()}'")
        head, rest = readme.split(begin, 1)
        readme = head + begin + table(command, bin_dir) + end + rest.split(end, 1)[1]
    return readme


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin-dir", type=pathlib.Path, required=True)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    path = ROOT / "README.md"
    old = path.read_text(encoding="utf-8")
    new = render(old, args.bin_dir)
    if args.write:
        path.write_text(new, encoding="utf-8")
    elif new != old:
        diff = difflib.unified_diff(old.splitlines(), new.splitlines(), "README.md", "--help",
                                    lineterm="")
        sys.exit("\n".join(diff) + "\nrun tests/house/flag_tables.py --write")


if __name__ == "__main__":
    main()
