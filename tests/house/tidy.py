#!/usr/bin/env python3
"""clang-tidy over every translation unit of a built folder, in parallel. What was clean and has not
changed since (command, headers, configuration) is not looked at again. The files of a folder are read as
one, ten times as fast as one by one.

    tests/house/tidy.py [--build-dir build/release] [--jobs N] [FOLDER…]     default: all our folders

Prints each finding once; exits with 1 if there is any. The stamps are in .cache/tidy.
"""
import argparse
import bisect
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
STAMPS = ROOT / ".cache" / "tidy"
UNITS = STAMPS / "units"
MOST_FILES = 32  # in a unit
FOLDERS = ["common", "shm", "router", "scheduler_proc", "worker_proc", "detokenizer_proc", "deploy", "tests"]

_digests = {}


def digest_of(path):
    if path not in _digests:
        try:
            _digests[path] = hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError:
            _digests[path] = "absent"
    return _digests[path]


def headers_by_object(build_dir):
    """What ninja knows from the last build: object file → the files it was made from."""
    listing = subprocess.run(["ninja", "-C", build_dir, "-t", "deps"], capture_output=True, text=True, check=True)
    headers, current = {}, None
    for line in listing.stdout.splitlines():
        if line.startswith("    "):
            current.append(line.strip())
        elif ": #deps" in line:
            current = headers.setdefault(line.split(": #deps")[0], [])
    return headers


def object_of(entry):
    words = entry["command"].split()
    return words[words.index("-o") + 1]


def sources_of(entry):
    """Our files that a command compiles: what a unity build reads as one counts file by file."""
    if "/Unity/" not in entry["file"]:
        return [entry["file"]]
    return re.findall(r'^#include "(/[^"]+)"', pathlib.Path(entry["file"]).read_text(encoding="utf-8"), re.MULTILINE)


def checks_of(file):
    """The analyzer takes two thirds of the time. What it looks for in a test, the sanitizers find by running it; and
    no test is slow for a copy."""
    options = [f"--config-file={ROOT}/.clang-tidy"]
    in_tests = file.startswith(f"{ROOT}/tests/")
    return [*options, "--checks=-clang-analyzer-*,-performance-*"] if in_tests else options


def key_of(file, entry, headers, version):
    directory = pathlib.Path(entry["directory"])
    about = [version, digest_of(ROOT / ".clang-tidy"), *checks_of(file), file, entry["command"]]
    key = hashlib.sha256("\n".join([*about, ""]).encode())
    strangers = {entry["file"], *sources_of(entry)} - {file}  # of a unity build
    strangers |= {os.path.relpath(name, directory) for name in strangers}
    for header in sorted(headers[object_of(entry)]):
        if header in strangers:
            continue
        key.update(f"{header} {digest_of(directory / header)}\n".encode())
    return key.hexdigest()


def flags_of(entry):
    """What the compiler is told about any file of this kind."""
    words = shlex.split(entry["command"])
    while "=" in words[0] or os.path.basename(words[0]) in ("env", "ccache"):  # before the compiler
        words.pop(0)
    flags, skip = ["-Wno-unknown-warning-option"], False
    for word in words[1:]:
        # -include: GCC's compiled headers, each of which a test includes itself.
        if not skip and word not in ("-o", "-MF", "-MT", "-include", "-c", "-MD", "-Winvalid-pch", entry["file"]):
            flags.append(word)
        skip = word in ("-o", "-MF", "-MT", "-include")
    return tuple(flags)


class Unit:
    """Some files as one: most of the time goes into the headers that they share."""

    def __init__(self, files, flags, directory):
        self.files, self.flags, self.directory = files, flags, directory
        self.starts = []

    def write(self):
        UNITS.mkdir(parents=True, exist_ok=True)
        self.starts = []
        name = hashlib.sha256("\n".join(self.files).encode()).hexdigest()[:16]
        self.path = str(UNITS / f"{name}.cc")
        lines = []
        for file in self.files:
            self.starts.append(len(lines))
            lines += pathlib.Path(file).read_text(encoding="utf-8").splitlines()
        pathlib.Path(self.path).write_text("\n".join(lines) + "\n", encoding="utf-8")

    def place(self, line):
        """A line of clang-tidy's with the file and line that it is about."""
        match = re.match(rf"{re.escape(self.path)}:(\d+):", line)
        if not match:
            return line
        number = int(match.group(1)) - 1
        index = bisect.bisect_right(self.starts, number) - 1
        return f"{self.files[index]}:{number - self.starts[index] + 1}:{line[match.end():]}"

    def tidy(self, *options):
        self.write()
        run = subprocess.run(["clang-tidy", "--quiet", *options, self.path, "--", *self.flags],
                             capture_output=True, text=True, cwd=self.directory)
        lines = [self.place(line) for line in run.stdout.splitlines() if "warning:" in line or "error:" in line]
        if run.returncode != 0 and not lines:
            lines = [f"{self.files[0]}: error: clang-tidy failed: {run.stderr.strip()[-500:]}"]
        return lines

    def strangers(self):
        """Files that do not compile beside those before them: both have a helper of one name. All, if that is in
        what they include."""
        if len(self.files) == 1:
            return []
        errors = [line for line in self.tidy("--checks=-*,modernize-use-nullptr") if "[clang-diagnostic-error]" in line]
        found = [file for file in self.files if any(line.startswith(f"{file}:") for line in errors)]
        return self.files if errors and not found else found


def check(unit):
    """Findings by file."""
    strangers = unit.strangers()
    if strangers and len(strangers) < len(unit.files):
        friends = [file for file in unit.files if file not in strangers]
        found = {}
        for files in (friends, strangers):
            found |= check(Unit(files, unit.flags, unit.directory))
        return found
    if strangers:
        found = {}
        for file in unit.files:
            found |= check(Unit([file], unit.flags, unit.directory))
        return found
    lines = unit.tidy(*checks_of(unit.files[0]))
    # The analyzer also follows our calls into libraries; what it makes of Boost's code is not ours to mend.
    lines = [line for line in lines if line.startswith(f"{ROOT}/") or "clang-diagnostic" in line]
    found = {file: [line for line in lines if line.startswith(f"{file}:")] for file in unit.files}
    # Of a header: whoever is first may show it.
    others = [line for line in lines if not line.startswith(tuple(f"{file}:" for file in unit.files))]
    found[unit.files[0]] += others
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build-dir", default=str(ROOT / "build" / "release"))
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("folders", nargs="*", default=FOLDERS)
    args = parser.parse_args()

    version = subprocess.run(["clang-tidy", "--version"], capture_output=True, text=True, check=True).stdout
    headers = headers_by_object(args.build_dir)
    inside = tuple(f"{ROOT / folder}/" for folder in args.folders)
    with open(pathlib.Path(args.build_dir) / "compile_commands.json", encoding="utf-8") as file:
        sources = [(name, entry) for entry in json.load(file) for name in sources_of(entry) if name.startswith(inside)]
    unbuilt = [name for name, entry in sources if object_of(entry) not in headers]
    if unbuilt:
        sys.exit(f"error: {len(unbuilt)} files are not built yet, among them {unbuilt[0]}; build first")

    STAMPS.mkdir(parents=True, exist_ok=True)
    todo = {}  # by file: a test's source may be in several programs
    groups = {}
    for name, entry in sources:
        key = key_of(name, entry, headers, version)
        if not (STAMPS / key).exists():
            todo.setdefault(name, []).append(key)
            groups.setdefault((os.path.dirname(name), flags_of(entry), entry["directory"]), set()).add(name)
    print(f"clang-tidy: {len(todo)} files, {len({name for name, _ in sources}) - len(todo)} unchanged", flush=True)
    units = []
    taken = set()
    for (_, flags, directory), files in groups.items():
        files = sorted(files - taken)
        taken |= set(files)
        units += [Unit(files[i:i + MOST_FILES], flags, directory) for i in range(0, len(files), MOST_FILES)]
    findings, done = set(), 0
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for job in concurrent.futures.as_completed([pool.submit(check, unit) for unit in units]):
            found = job.result()
            new = {line for lines in found.values() for line in lines} - findings
            for line in sorted(new):
                print(line, flush=True)
            findings |= new
            for file, lines in found.items():
                for key in [] if lines else todo[file]:
                    (STAMPS / key).touch()
            done += len(found)
            print(f"clang-tidy: {done} of {len(todo)} files", flush=True)
    if findings:
        sys.exit(f"clang-tidy: {len(findings)} findings")


if __name__ == "__main__":
    main()
