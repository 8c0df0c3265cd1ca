"""The house's rules, held against the tree: which folder may include which, where CUDA's headers may
be, that every test is registered, the size of files, and that nothing of one machine got in.

Run from the repository's root: python3 tests/house/house_test.py
"""

import pathlib
import re
import subprocess
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
MAX_LINES = 450

# Folder → what it may include besides itself (ARCHITECTURE.md has the picture). tests/ may include
# anything.
ALLOWED = {
    "common/base": set(),
    "common/checkpoint": {"common/base"},
    "common/cli": {"common/base"},
    "common/http": {"common/base", "common/tls"},
    "common/text": {"common/base", "common/checkpoint", "common/template"},
    "common/rpc": {"common/base", "common/text", "common/template", "common/tls", "proto"},
    "common/template": {"common/base"},
    "common/tls": {"common/base"},
    "shm": {"common/base"},
    "proto": set(),
    "scheduler_proc/core": {"common/base"},
    "scheduler_proc/grammar": {"scheduler_proc/core", "common/base", "proto"},
    # The scheduler's rooms: what its threads hand each other; what is recorded; where tokens leave; the loop; who is
    # spoken with.
    "scheduler_proc/exchange": {"scheduler_proc/core", "common", "proto"},
    "scheduler_proc/flight": {"scheduler_proc/core", "common", "shm"},
    "scheduler_proc/output": {"scheduler_proc/exchange", "common", "proto"},
    "scheduler_proc/loop": {"scheduler_proc/exchange", "scheduler_proc/flight", "scheduler_proc/core", "common", "shm",
                            "proto"},
    "scheduler_proc/front": {"scheduler_proc/exchange", "scheduler_proc/grammar", "common", "proto"},
    "scheduler_proc/simulation": {"scheduler_proc/flight", "scheduler_proc/core", "common", "shm"},
    "scheduler_proc": {"scheduler_proc", "common", "shm", "proto"},
    "worker_proc": {"common", "shm"},
    "detokenizer_proc": {"common"},
    # The router's rooms, each over those before it: what a field is; what the model wrote; what requests ask and answers
    # say; who may come in; where replicas are; which is best; what is sent to them; what is remembered of requests; the
    # way of one request; HTTP; its routes; gRPC.
    "router/base": {"common", "proto"},
    "router/answer": {"router/base", "common", "proto"},
    "router/api": {"router/base", "router/answer", "common", "proto"},
    "router/admission": {"router/base", "common", "proto"},
    "router/discovery": {"router/base", "common", "proto"},
    "router/policy": {"common"},
    "router/fleet": {"router/base", "router/admission", "router/discovery", "router/policy", "common", "proto"},
    "router/observe": {"router/base", "router/fleet", "common", "proto"},
    "router/dispatch": {"router/base", "router/api", "router/admission", "router/discovery", "router/policy", "router/fleet",
                        "router/observe", "common", "proto"},
    "router/http": {"router/base", "router/admission", "common"},
    "router/handlers": {"router/base", "router/api", "router/admission", "router/fleet", "router/observe",
                        "router/dispatch", "router/http", "common", "proto"},
    "router/grpc": {"router/base", "router/answer", "router/api", "router/handlers", "common", "proto"},
    "router/simulation": {"router/policy", "common"},
    "router": {"router", "common", "proto"},
    "deploy/launcher": {"common", "shm", "proto"},
    "deploy": {"common", "shm", "proto"},
}
EXCEPTIONS = {
    # How every process of a replica reports its state to the launcher.
    ("detokenizer_proc", "shm/replica_control.h"),
    ("detokenizer_proc", "shm/segment.h"),
    # Plain values that the core fills and reads; nothing shared is touched there.
    ("scheduler_proc/core", "shm/step_plan.h"),
    ("scheduler_proc/core", "shm/step_result.h"),
}

# Who may ask the wall clock, which may jump: durations and deadlines are CLOCK_MONOTONIC's. gRPC takes its
# deadlines as times of day, and turns them into durations at once.
WALL_CLOCK = re.compile(r"system_clock::now|CLOCK_REALTIME|gettimeofday")
WALL_CLOCK_FILES = {"common/base/unix_time.h", "router/fleet/collect_call.h", "router/fleet/engine_calls.cc",
                    "router/grpc/grpc_service.cc", "scheduler_proc/front/engine_server.cc"}

CUDA_HEADER = re.compile(r"^(cuda|cublas|cudnn|nccl|cub/|thrust/|cutlass/)")
CUDA_FOLDERS = ("worker_proc/cuda/", "worker_proc/comm/")
INCLUDE = re.compile(r'^\s*#\s*include\s+(["<])([^">]+)[">]', re.MULTILINE)


def tracked(*patterns):
    out = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *patterns],
        cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return sorted(path for path in out.split("\0") if path and (ROOT / path).is_file())


def read(path):
    return (ROOT / path).read_text(encoding="utf-8", errors="replace")


def folder_of(path):
    """The longest entry of ALLOWED that holds `path`."""
    holders = [folder for folder in ALLOWED if path.startswith(folder + "/")]
    return max(holders, key=len, default=None)


def within(folder, others):
    return any(folder == other or folder.startswith(other + "/") for other in others)


class HouseTest(unittest.TestCase):

    def test_includes_point_down_only(self):
        wrong = []
        for path in tracked("*.h", "*.cc", "*.cu", "*.cuh"):
            own = folder_of(path)
            if own is None or path.startswith("tests/"):
                continue
            for quote, header in INCLUDE.findall(read(path)):
                target = folder_of(header)
                if header.startswith(("flotilla/v1/", "grpc/health/")):
                    target = "proto"
                if header.startswith("tests/"):
                    wrong.append(f"{path}: the product includes {header}")
                if quote != '"' or target is None or target == own:
                    continue
                if not within(target, ALLOWED[own]) and (own, header) not in EXCEPTIONS:
                    wrong.append(f"{path}: {own} may not include {header}")
        self.assertEqual(wrong, [], "\n" + "\n".join(wrong))

    def test_cuda_headers_stay_in_their_folders(self):
        wrong = [
            f"{path}: {header}"
            for path in tracked("*.h", "*.cc", "*.cu", "*.cuh")
            if not path.startswith(CUDA_FOLDERS) and not path.startswith("tests/")
            for _, header in INCLUDE.findall(read(path))
            if CUDA_HEADER.match(header)
        ]
        self.assertEqual(wrong, [], "\n".join(wrong))

    def test_every_test_is_registered(self):
        registered = set()
        for path in tracked("tests/**CMakeLists.txt"):
            text = read(path)
            words = set(re.findall(r"[\w./-]+", text))
            registered |= {pathlib.PurePath(word).name for word in words}
            if "}_test.cc" in text:  # foreach(name a b …) flotilla_test(… ${name}_test.cc …)
                registered |= {word + "_test.cc" for word in words}
        missing = [
            path for path in tracked("tests/**_test.cc", "tests/**_test.py")
            if pathlib.PurePath(path).name not in registered
        ]
        self.assertEqual(missing, [], "not in any CMakeLists.txt under tests/")

    def test_every_fuzz_target_is_registered_and_has_seeds_and_a_planted_bug(self):
        registered = set(re.findall(r"flotilla_fuzz\((\w+) ", read("tests/fuzz/CMakeLists.txt")))
        written = {pathlib.PurePath(path).name.removesuffix("_fuzz.cc")
                   for path in tracked("tests/fuzz/*_fuzz.cc")}
        self.assertEqual(written, registered - {"name"})
        seeds = {pathlib.PurePath(path).parts[3] for path in tracked("tests/fuzz/corpus/**")}
        self.assertEqual(written, seeds)
        planted = {pathlib.PurePath(path).stem for path in tracked("tests/fuzz/planted/*.patch")}
        self.assertEqual(written, planted)

    def test_planted_bugs_fit_the_code(self):
        stale = [path for path in tracked("tests/fuzz/planted/*.patch")
                 if subprocess.run(["patch", "--dry-run", "-p1", "-s", "-f", "-i", ROOT / path], cwd=ROOT,
                                   capture_output=True).returncode != 0]
        self.assertEqual(stale, [], "patch can't apply them (tests/fuzz/planted.sh)")

    def test_seeds_are_small(self):
        total = sum((ROOT / path).stat().st_size for path in tracked("tests/fuzz/corpus/**"))
        self.assertLess(total, 1 << 20)

    def test_durations_are_not_measured_by_the_wall_clock(self):
        found = {path for path in tracked("*.h", "*.cc") if WALL_CLOCK.search(read(path))}
        found = {path for path in found if not path.startswith(("tests/", "examples/"))}
        self.assertEqual(found, WALL_CLOCK_FILES)

    def test_files_are_short(self):
        long = [
            f"{path}: {count} lines"
            for path in tracked("*.h", "*.cc", "*.cu", "*.cuh", "*.py", "*.proto", "*.cmake", "flotilla")
            if (count := read(path).count("\n")) > MAX_LINES
        ]
        self.assertEqual(long, [], "split them")

    def test_headers_open_with_a_comment_and_pragma_once(self):
        wrong = []
        for path in tracked("*.h", "*.cuh"):
            text = read(path)
            if not text.startswith("//"):
                wrong.append(f"{path}: does not open with what it is for")
            if "\n#pragma once\n" not in text:
                wrong.append(f"{path}: no #pragma once")
        self.assertEqual(wrong, [], "\n".join(wrong))

    def test_nothing_of_one_machine(self):
        # A home directory, or a working copy somewhere under / that only one machine has.
        pattern = re.compile(r"(?<![\w.$}])/(?:home|Users|work|mnt|root)/[\w.-]+|/tmp/(?:wt|w|build)/")
        wrong = [
            f"{path}: {match.group(0)}"
            for path in tracked()
            if path != "tests/house/house_test.py" and (ROOT / path).stat().st_size < 1 << 20
            for match in pattern.finditer(read(path))
        ]
        self.assertEqual(wrong, [], "\n".join(wrong))

    def test_keys_of_log_lines(self):
        """Members of the JSON object besides those that every line has, or that the launcher adds."""
        wrong = []
        for path in tracked("*.h", "*.cc"):
            if path.startswith("tests/"):
                continue
            taken = {"ts", "level", "process", "message"}
            if not path.startswith("router/"):  # no replica's process
                taken.add("replica")
            for key in re.findall(r'\bKv\(\s*"([^"]*)"', read(path)):
                if key in taken or not re.fullmatch(r"[a-z][a-z0-9_]*", key):
                    wrong.append(f"{path}: {key}")
        self.assertEqual(wrong, [], "\n".join(wrong))

    def test_no_sleeps_in_tests(self):
        """Except between two looks at a condition: the loop stands within the three lines before."""
        pattern = re.compile(r"\bsleep_for\s*\(|\busleep\s*\(|\bsleep\s*\(\d|absl::SleepFor")
        wrong = []
        for path in tracked("tests/**.cc", "tests/**.h"):
            lines = read(path).splitlines()
            for number, line in enumerate(lines):
                before = " ".join(lines[max(0, number - 3):number + 1])
                measured = "// what is measured is time" in line
                if pattern.search(line) and not measured and not re.search(r"\b(while|for) \(", before):
                    wrong.append(f"{path}:{number + 1}")
        self.assertEqual(wrong, [], "wait for a condition instead")


if __name__ == "__main__":
    unittest.main()
