"""docs/metrics.md's tables are made from the processes' own metrics, so that they can't drift.

    metric_tables.py --metric-list build/release/tests/metric_list --check   fails if they differ, or if no
                                                                          test looks at a metric
    metric_tables.py --metric-list build/release/tests/metric_list --write   brings them up to date
"""

import argparse
import difflib
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs" / "metrics.md"
# Marker in the page → beginning of the names in its table.
TABLES = {
    "router": ("flotilla_router_",),
    "scheduler": ("flotilla_scheduler_",),
    "worker": ("flotilla_worker_", "flotilla_shm_"),
    "detokenizer": ("flotilla_detokenizer_",),
    "all": ("flotilla_launcher_", "flotilla_build_info", "flotilla_log_", "process_"),
}
SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? \S+$")


def families(page):
    """name → (type, labels, help) of a page of /metrics."""
    found = {}
    for line in page.splitlines():
        if line.startswith("# HELP "):
            name, text = line.removeprefix("# HELP ").split(" ", 1)
            found[name] = ["", set(), text]
        elif line.startswith("# TYPE "):
            name, kind = line.removeprefix("# TYPE ").split(" ")
            found.setdefault(name, ["", set(), ""])[0] = kind
        elif match := SAMPLE.match(line):
            name = match.group(1)
            if name not in found:
                name = re.sub(r"_(bucket|sum|count)$", "", name)
            found[name][1].update(set(re.findall(r'(\w+)="', match.group(2) or "")) - {"le"})
        else:
            sys.exit(f"not a line of /metrics: {line}")
    return found


def tables(found):
    """Marker → the lines between it and its end."""
    rows = {}
    for name, (kind, labels, text) in sorted(found.items()):
        table = [marker for marker, heads in TABLES.items() if name.startswith(heads)]
        if len(table) != 1 or not text or not kind:
            sys.exit(f"{name}: tables {table}, type {kind!r}, help {text!r}")
        shown = ", ".join(sorted(labels))
        rows.setdefault(table[0], ["| metric | type | labels | |", "|---|---|---|---|"])
        rows[table[0]].append(f"| `{name}` | {kind} | {shown} | {text} |")
    source = (ROOT / "deploy/launcher/metrics_vllm.cc").read_text(encoding="utf-8")
    pairs = re.findall(r'^    \{"(\w+)", "(\w+)"\},', source, re.M)
    rows["vllm"] = ["| vLLM's | ours |", "|---|---|"]
    for ours, vllm in pairs:
        if f"flotilla_scheduler_{ours}" not in found:
            sys.exit(f"metrics_vllm.cc: there is no flotilla_scheduler_{ours}")
        rows["vllm"].append(f"| `vllm:{vllm}` | `flotilla_scheduler_{ours}` |")
    return rows


def render(docs, found):
    rows = tables(found)
    for marker in [*TABLES, "vllm"]:
        begin, end = f"<!-- metrics {marker} -->\n", "<!-- end -->\n"
        if begin not in docs:
            sys.exit(f"docs/metrics.md has no marker '{begin.strip()}'")
        head, rest = docs.split(begin, 1)
        docs = head + begin + "\n".join(rows[marker]) + "\n" + end + rest.split(end, 1)[1]
    return docs


def check_tested(found):
    """Some test looks at each: by its name, by what stands behind its process's (as a string), or by its field's value."""
    words, fields = set(), set()
    for path in sorted((ROOT / "tests").rglob("*")):
        if path.suffix in (".py", ".cc", ".h") and path.parent.name not in ("house", "bench"):
            text = path.read_text(encoding="utf-8")
            words |= set(re.findall(r"\b(?:flotilla|process)_\w+", text)) | set(re.findall(r'"(\w+)"', text))
            fields |= set(re.findall(r"(\w+)\.(?:Value|Collect)\(\)", text))

    def tested(name):
        short = re.sub(r"^(flotilla_[a-z]+|process)_", "", name)
        return (any(f"{form}{end}" in words for form in (name, short) for end in ("", "_count", "_sum", "_bucket"))
                or short.removesuffix("_total") in fields)

    missing = [name for name in found if not tested(name)]
    if missing or tested("flotilla_router_nobody_looks_at_this_total"):
        sys.exit(f"no test looks at {', '.join(missing)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--metric-list", type=pathlib.Path, required=True)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    found = families(subprocess.run([args.metric_list.resolve()], check=True, capture_output=True,
                                    text=True).stdout)
    old = DOCS.read_text(encoding="utf-8")
    check_tested(found)
    new = render(old, found)
    if args.write:
        DOCS.write_text(new, encoding="utf-8")
    elif new != old:
        diff = difflib.unified_diff(old.splitlines(), new.splitlines(), "docs/metrics.md", "the code",
                                    lineterm="")
        sys.exit("\n".join(diff) + "\nrun tests/house/metric_tables.py --write")


if __name__ == "__main__":
    main()
