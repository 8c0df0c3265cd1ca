#!/usr/bin/env python3
"""clang-tidy over every translation unit of a built folder, in parallel. What was clean and has not
changed since (command, headers, configuration) is not looked at again.

    tests/house/tidy.py [--build-dir build/release] [--jobs N] [FOLDER…]     default: all our folders

Prints each finding once; exits with 1 if there is any. The stamps are in .cache/tidy.
"""
import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
STAMPS = ROOT / ".cache" / "tidy"
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


def key_of(entry, headers, version):
    directory = pathlib.Path(entry["directory"])
    key = hashlib.sha256(f"{version}\n{digest_of(ROOT / '.clang-tidy')}\n{entry['command']}\n".encode())
    for header in sorted(headers[object_of(entry)]):
        key.update(f"{header} {digest_of(directory / header)}\n".encode())
    return key.hexdigest()


def check(file, build_dir):
    run = subprocess.run(["clang-tidy", "--quiet", "-p", build_dir, file], capture_output=True, text=True)
    lines = [line for line in run.stdout.splitlines() if "warning:" in line or "error:" in line]
    # The analyzer also follows our calls into libraries; what it makes of Boost's code is not ours to mend.
    findings = [line for line in lines if line.startswith(f"{ROOT}/") or "clang-diagnostic" in line]
    if run.returncode != 0 and not lines:
        findings = [f"{file}: error: clang-tidy failed: {run.stderr.strip()[-500:]}"]
    return findings


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
        entries = [entry for entry in json.load(file) if entry["file"].startswith(inside)]
    unbuilt = [entry["file"] for entry in entries if object_of(entry) not in headers]
    if unbuilt:
        sys.exit(f"error: {len(unbuilt)} files are not built yet, among them {unbuilt[0]}; build first")

    STAMPS.mkdir(parents=True, exist_ok=True)
    todo = {}  # by file: a test's source may be in several programs
    for entry in entries:
        key = key_of(entry, headers, version)
        if not (STAMPS / key).exists():
            todo.setdefault(entry["file"], []).append(key)
    print(f"clang-tidy: {len(todo)} files, {len({e['file'] for e in entries}) - len(todo)} unchanged", flush=True)
    findings = set()
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        jobs = {pool.submit(check, file, args.build_dir): file for file in todo}
        for done, job in enumerate(concurrent.futures.as_completed(jobs), 1):
            new = set(job.result()) - findings
            for line in sorted(new):
                print(line, flush=True)
            findings |= new
            if not job.result():
                for key in todo[jobs[job]]:
                    (STAMPS / key).touch()
            if done % 25 == 0:
                print(f"clang-tidy: {done} of {len(todo)} files", flush=True)
    if findings:
        sys.exit(f"clang-tidy: {len(findings)} findings")


if __name__ == "__main__":
    main()
