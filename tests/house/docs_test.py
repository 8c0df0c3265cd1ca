"""What README.md, ARCHITECTURE.md and docs/*.md name is there: pages and headings that links lead to, flags and, in
docs/limits.md, their defaults, metrics, files. Each check is also shown a page with mistakes, and must see them.

    docs_test.py --bin-dir build/release/bin --metric-list build/release/tests/metric_list

A flag is right if the command that it stands behind has it, as --help says; in prose, if some program or script of ours
has it. What a foreign program takes (FOREIGN) is its own affair.
"""

import argparse
import fnmatch
import functools
import pathlib
import re
import subprocess
import sys
import unittest

import flag_tables

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Command, as people write it → program and arguments whose --list-flags has its flags. The rest of `./flotilla` is a script.
COMMANDS = {
    "flotilla serve": ["flotilla", "serve"],
    "flotilla engine": ["flotilla", "engine"],
    "flotilla join": ["flotilla", "join"],
    "flotilla ask": ["flotilla", "ask"],
    "flotilla chat": ["flotilla", "chat"],
    "flotilla top": ["flotilla", "top"],
    "flotilla doctor": ["flotilla", "doctor"],
    "flotilla flight": ["flotilla", "flight"],
    "flotilla man": ["flotilla", "man"],
    "flotilla completion": ["flotilla", "completion"],
    "flotilla router": ["flotilla-router"],
    "flotilla inspect": ["flotilla-worker-bench", "inspect"],
    "flotilla size": ["flotilla-worker-bench", "size"],
    "flotilla replay": ["flotilla-flight", "replay"],
    "flotilla trace": ["flotilla-flight", "trace"],
    "flotilla simulate fleet": ["flotilla-fleet"],
    "flotilla simulate": ["flotilla-simulate", "simulate"],
    "flotilla bench roofline": ["flotilla-worker-bench"],
    "flotilla bench quality": ["flotilla-quality"],
    "flotilla bench offline": ["flotilla-offline"],
    "flotilla bench serve": ["flotilla-served"],
    "flotilla bench fit": ["flotilla-simulate", "fit"],
    "flotilla-router": ["flotilla-router"],
    "flotilla-scheduler": ["flotilla-scheduler"],
    "flotilla-worker": ["flotilla-worker"],
    "flotilla-detokenizer": ["flotilla-detokenizer"],
    "flotilla-grammar": ["flotilla-grammar"],
}
HANDS_ON = {"flotilla bench offline": "flotilla engine"}  # takes this one's flags too
# Flags that --help leaves out: what stands behind the "=" is a flag of this command.
PASSED_ON = {"--router-flag": "flotilla-router", "--scheduler-flag": "flotilla-scheduler"}
SCRIPT_COMMANDS = ("test", "format", "image", "package", "help")
FOREIGN = {"apt-get", "apt", "buildah", "cmake", "cmp", "ctr", "curl", "docker", "git", "grep", "head", "install", "kill",
           "kind", "kubectl", "openssl", "pgrep", "pip", "printf", "prometheus", "promtool", "systemctl", "systemd-analyze",
           "journalctl", "llama-server", "vllm", "sglang"}
# Pages that tell a reader which flag to turn: it must be in the tables of docs/commands.md, where its default is.
IN_TABLES = ("docs/tuning.md", "docs/concepts.md", "docs/sizing.md")
FLAG = re.compile(r"(?<![\w-])--[a-z][\w-]*")
PASSED = re.compile(f"({'|'.join(PASSED_ON)})=(--[a-z][\\w-]*)")
METRIC = re.compile(r"\bflotilla_(?:router|scheduler|worker|shm|detokenizer|launcher|build)_\w+")
FENCE = re.compile(r"^```[^\n]*\n(.*?)^```$", re.M | re.S)
SPAN = re.compile(r"`([^`\n]+(?:\n[^`\n]+)?)`")
LINK = re.compile(r"\[[^\]\n]*(?:\n[^\]\n]*)?\]\(([^)\s]+)\)")
# In docs/limits.md: a flag with its default. Of a flag that ends in -ms the unit may be larger.
DEFAULT = re.compile(r"(--[a-z][\w-]*) (\d[\d,.]*)(?: (KiB|MiB|GiB|s|min|h)\b)?")
UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "s": 1, "min": 60, "h": 3600}
OUR_FILE = re.compile(r"\.(?:h|cc|cu|cuh|py|sh|md|cmake|yaml|json|proto|patch|js|txt)$")


@functools.cache
def tracked():
    out = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True,
                         capture_output=True, text=True).stdout
    return sorted(path for path in out.split("\0") if path)


def read(path):
    return (ROOT / path).read_text(encoding="utf-8")


def pages():
    return [path for path in tracked() if re.fullmatch(r"(README|ARCHITECTURE)\.md|docs/[\w-]+\.md", path)]


def line_of(text, position):
    return text.count("\n", 0, position) + 1


# --- Links ----------------------------------------------------------------------------------------

def anchors(text):
    """GitHub's names of the headings."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.M)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {name.replace(" ", "-") for name in plain}


def wrong_links(path, text):
    bare = FENCE.sub(lambda match: "\n" * match[0].count("\n"), text)
    for match in LINK.finditer(bare):
        target, _, anchor = match[1].partition("#")
        if "://" in target:
            continue
        to = (ROOT / path).parent / target if target else ROOT / path
        if not to.exists():
            yield f"{path}:{line_of(bare, match.start())}: no {target}"
        elif anchor and anchor not in anchors(to.read_text(encoding="utf-8") if target else text):
            yield f"{path}:{line_of(bare, match.start())}: {target} has no heading #{anchor}"


# --- Flags ----------------------------------------------------------------------------------------

class Flags:
    """Which command has which flag."""

    def __init__(self, bin_dir):
        self.defaults = {}  # flag → those of all commands
        self.of = {command: self._flags(bin_dir, argv) for command, argv in COMMANDS.items()}
        for command, other in HANDS_ON.items():
            self.of[command] = self.of[command] | self.of[other]
        self.script = set(FLAG.findall(read("flotilla") + read("tests/test.sh")))
        scripts = {path: set(FLAG.findall(read(path))) for path in tracked()
                   if path.endswith((".py", ".sh")) and path.startswith(("tests/", "deploy/"))
                   and path != "tests/house/docs_test.py"}
        self.files = scripts
        self.all = self.script.union(*self.of.values(), *self._own(scripts))
        self.tables = set(re.findall(r"^\| `(--[\w-]+)` \|", read(flag_tables.PAGE), re.M))

    def _flags(self, bin_dir, argv):
        done = subprocess.run([bin_dir / argv[0], *argv[1:], "--list-flags"], capture_output=True, text=True, check=True)
        found = {"--help", "--version"}
        for name, default, _ in flag_tables.rows(done.stdout):
            self.defaults.setdefault(name, set()).add(default)
            found.add(name)
        assert len(found) > 2, f"{argv}: --list-flags shows no flags"
        return found

    @staticmethod
    def _own(scripts):
        """What scripts take, and not what they hand to others: in Python argparse's, in bash what they compare with."""
        for path, flags in scripts.items():
            text = read(path)
            yield {flag for flag in flags if re.search(rf'add_argument\("{flag}"|^ +{flag}\)|== {flag} ', text, re.M)}


def command_of(words):
    """The key of COMMANDS, "script", a path, "foreign", or None: no command."""
    while words and re.fullmatch(r"\w+=.*", words[0]):  # A=1 command
        words = words[1:]
    if not words:
        return None
    first = words[0].removeprefix("./")
    if first == "flotilla":
        for length in (3, 2):
            if " ".join(["flotilla", *words[1:length]]) in COMMANDS:
                return " ".join(["flotilla", *words[1:length]])
        return "script" if words[1:2] and words[1] in SCRIPT_COMMANDS else None
    if first in COMMANDS:
        return first
    if first in FOREIGN or (first.startswith(("build/", "/")) or first in ("python3", "python")):
        return "foreign"
    return first if (ROOT / first).is_file() else None


def commands_in(text):
    """(words, position) of the lines of code blocks, continued ones joined, and of code spans."""
    for block in FENCE.finditer(text):
        body = re.sub(r"\\\n\s*", lambda match: " " * len(match[0]), block[1])
        position = block.start(1)
        for line in body.split("\n"):
            for part in re.split(r"(?<=\s)[|&;]+\s|\$\(", line):
                yield part.removeprefix("$ ").split(), position
            position += len(line) + 1
    for span in SPAN.finditer(FENCE.sub(lambda match: " " * len(match[0]), text)):
        yield span[1].split(), span.start()


def wrong_flags(path, text, flags):
    for match in PASSED.finditer(text):
        if match[2] not in flags.of[PASSED_ON[match[1]]]:
            yield f"{path}:{line_of(text, match.start())}: {PASSED_ON[match[1]]} has no {match[2]}"
    text = PASSED.sub(lambda match: " " * len(match[0]), text)
    known = set()  # in this page: given to a foreign program
    for words, position in commands_in(text):
        named = {flag for word in words for flag in FLAG.findall(word)}
        command = command_of(words)
        if command == "foreign":
            known |= named
            continue
        has = (flags.script if command == "script" else flags.of.get(command) or flags.files.get(command)
               or flags.all)
        for flag in sorted(named - has):
            where = f"{command} has no" if command else "no program has"
            if command or flag not in known:
                yield f"{path}:{line_of(text, position)}: {where} {flag}"
    bare = FENCE.sub(lambda match: "\n" * match[0].count("\n"), text)
    for match in FLAG.finditer(SPAN.sub(lambda span: re.sub(r"[^\n]", " ", span[0]), bare)):
        if match[0] not in flags.all | known:
            yield f"{path}:{line_of(bare, match.start())}: no program has {match[0]}"
    if path in IN_TABLES:
        for flag in sorted(set(FLAG.findall(text)) - flags.tables - known):
            yield f"{path}: {flag} is in no table of {flag_tables.PAGE}"


def wrong_defaults(path, text, flags):
    if path != "docs/limits.md":
        return
    for match in DEFAULT.finditer(text):
        number = float(match[2].rstrip(".,").replace(",", "")) * UNITS[match[3] or ""]
        if match[1].endswith("-ms") and match[3]:
            number *= 1000
        if not any(default and float(default) == number for default in flags.defaults.get(match[1], ())):
            yield f"{path}:{line_of(text, match.start())}: not '{match[0]}' but {flags.defaults.get(match[1])}"


# --- Metrics --------------------------------------------------------------------------------------

def metric_names(program):
    page = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    found = set(re.findall(r"^# TYPE (\w+) ", page, re.M))
    assert len(found) > 50, found
    return found


def wrong_metrics(path, text, names):
    vllm = set(re.findall(r'^    \{"\w+", "(\w+)"\},', read("deploy/launcher/metrics_vllm.cc"), re.M))
    for match in METRIC.finditer(text):
        name = match[0]
        begins = name.endswith("_") and any(known.startswith(name) for known in names)
        if not begins and not names & {name, re.sub(r"_(bucket|sum|count)$", "", name)}:
            yield f"{path}:{line_of(text, match.start())}: there is no metric {name}"
    for match in re.finditer(r"\bvllm:(\w+)", text):
        if match[1] not in vllm:
            yield f"{path}:{line_of(text, match.start())}: metrics_vllm.cc has no {match[0]}"


# --- Files ----------------------------------------------------------------------------------------

@functools.cache
def names_of_files():
    """Every tracked file and folder."""
    found = set(tracked())
    for path in tracked():
        found |= {str(parent) for parent in pathlib.PurePath(path).parents}
    return found


def expand(pattern):
    """a/{b,c}.d → a/b.d, a/c.d"""
    match = re.search(r"\{([^{}]*)\}", pattern)
    if not match:
        return [pattern]
    return [result for part in match[1].split(",")
            for result in expand(pattern[:match.start()] + part.strip() + pattern[match.end():])]


def is_there(path):
    """A file or folder; a pattern; a source file without its ending."""
    path = path.removesuffix("/")
    return any(fnmatch.fnmatch(name, pattern) for pattern in (path, path + ".*") for name in names_of_files())


def wrong_files(path, text):
    tops = {pathlib.PurePath(name).parts[0] for name in tracked() if "/" in name}
    bare = FENCE.sub(lambda match: "\n" * match[0].count("\n"), text)
    for span in SPAN.finditer(bare):
        for word in span[1].split():
            for name in expand(re.sub(r"\bNAME|\bTARGET\b", "*", word.rstrip(".,;:").removeprefix("./"))):
                ours = name.split("/")[0] in tops and "/" in name and re.fullmatch(r"[\w./*-]+", name)
                inside = "/" in name and OUR_FILE.search(name) and re.fullmatch(r"[\w.-][\w./*-]*", name)
                if name.startswith(("build/", "/", "~")) or not (ours or inside):
                    continue
                # `cpu/kernels.h` in a text about worker_proc/: the end of a path will do.
                if not is_there(name) and not (inside and is_there("*/" + name)):
                    yield f"{path}:{line_of(bare, span.start())}: no file {name}"
    for match in re.finditer(r"(?<![\w/.-])docs/[\w-]+\.(?:md|yaml)", bare):
        if not is_there(match[0]):
            yield f"{path}:{line_of(bare, match.start())}: no file {match[0]}"


class DocsTest(unittest.TestCase):
    flags = None
    metrics = None

    def hold(self, check, mistakes, *facts):
        """`mistakes`: lines that `check` must complain of, one by one, in a page that is right otherwise."""
        wrong = [complaint for path in pages() for complaint in check(path, read(path), *facts)]
        self.assertEqual(wrong, [], "\n" + "\n".join(wrong))
        for mistake in mistakes:
            found = list(check("docs/limits.md", f"# Title\n\n{mistake}\n", *facts))
            self.assertEqual(len(found), 1, f"{mistake}: {found}")

    def test_links_lead_somewhere(self):
        self.hold(wrong_links, ["[a](gone.md)", "[a](metrics.md#gone)", "[a](#gone)", "[two\nlines](../gone)"])

    def test_flags_exist(self):
        self.hold(wrong_flags, ["`flotilla serve --max-requests 3`", "```\n./flotilla serve \\\n  --grpc-prt 1\n```",
                                "```\n$ flotilla ask --max-token 2\n```", "`tests/bench/compare.py --runns 3`",
                                "`./flotilla test --labl x`", "`./flotilla serve --router-flag=--gone=1`",
                                "`--scheduler-flag=--failover-wait-ms=1`", "`--router-flag`"], self.flags)
        for mistake in ("`--gone`", "in prose --gone"):  # no program's, and in no table
            found = list(wrong_flags("docs/tuning.md", mistake, self.flags))
            self.assertEqual(len(found), 2, found)
        known = "`docker build --build-arg A=1` and `--build-arg`"
        self.assertEqual([], [found for found in wrong_flags("docs/deploying.md", known, self.flags)])

    def test_defaults_are_the_programs(self):
        self.hold(wrong_defaults, ["--max-connections 4095", "--max-header-bytes 16 MiB", "--header-timeout-ms 10",
                                   "--max-request-ms 61 min", "--gone 7"], self.flags)
        found = list(wrong_defaults("docs/limits.md", read("docs/limits.md").replace("256 MiB", "255 MiB", 1),
                                    self.flags))
        self.assertEqual(len(found), 1, found)

    def test_metrics_exist(self):
        self.hold(wrong_metrics, ["`flotilla_router_gone_total`", "flotilla_worker_gone{rank=\"0\"}", "`vllm:gone`",
                                  "`flotilla_scheduler_step_seconds_gone`"], self.metrics)

    def test_files_exist(self):
        self.hold(wrong_files, ["`router/gone.cc`", "`tests/bench/{compare,gone}.py`", "`cpu/gone.h`", "docs/gone.md",
                                "`deploy/gone`"])

    def test_the_index_has_every_page(self):
        index = read("docs/README.md")
        missing = [path for path in pages() if path.startswith("docs/") and path != "docs/README.md"
                   and f"({path.removeprefix('docs/')})" not in index]
        self.assertEqual(missing, [], "docs/README.md does not lead to them")
        self.assertTrue("(docs/README.md)" in read("README.md"), "README.md does not lead to docs/README.md")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin-dir", type=pathlib.Path, required=True)
    parser.add_argument("--metric-list", type=pathlib.Path, required=True)
    args, rest = parser.parse_known_args()
    DocsTest.flags = Flags(args.bin_dir.resolve())
    DocsTest.metrics = metric_names(args.metric_list.resolve())
    unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
