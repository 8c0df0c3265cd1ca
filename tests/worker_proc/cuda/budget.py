#!/usr/bin/env python3
"""What nvcc makes of our kernels: registers, spilled bytes and shared memory of each, for each architecture.

  python budget.py --check     compares with budget.tsv: none may grow, appear or vanish (exit status 77: no nvcc)
                   --architecture sm_90a  only for this one: each takes nvcc a minute or two
  python budget.py --write     writes it anew

Static shared memory only: what a launch asks for besides is in the kernel's own file.
"""

import argparse
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[3]
TABLE = pathlib.Path(__file__).with_name("budget.tsv")
KERNELS = ROOT / "worker_proc/cuda/kernels"
ARCHITECTURES = ("sm_80", "sm_90a", "sm_100a")
COLUMNS = ("kernel", "architecture", "registers", "spilled bytes", "shared bytes")
FUNCTION = re.compile(r"Compiling entry function '(\S+)' for|Function properties for (\S+)")
SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
SHARED = re.compile(r"(\d+) bytes smem")


def find_nvcc():
    return shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")


def short_name(mangled):
    """flotilla::cuda::gpu::(anonymous namespace)::RmsNormKernel<float, 8u>(…) → RmsNormKernel<float, 8>"""
    plain = subprocess.run(["c++filt", mangled], capture_output=True, text=True, check=True).stdout.strip()
    plain = re.sub(r"\(flotilla::DType\)", "type ", plain)
    plain = plain.removeprefix("void ").split("(flotilla", 1)[0]
    plain = re.sub(r"flotilla::cuda::|gpu::|\(anonymous namespace\)::|_GLOBAL__N__\w+::", "", plain)
    return re.sub(r"(\d)u\b", r"\1", plain)


def compile_one(nvcc, source, architecture):
    """{(kernel, architecture): (registers, spilled, shared)}"""
    with tempfile.TemporaryDirectory() as folder:
        command = [nvcc, "-std=c++20", "-O3", "-DNDEBUG", f"-arch={architecture}", "-cubin", "-Xptxas=-v",
                   "--Werror=all-warnings", f"-I{ROOT}", str(source), "-o", os.path.join(folder, "out.cubin")]
        command += ["--fmad=false"] if source.stem.startswith("sample") else []  # as gpu/CMakeLists.txt has it
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        raise SystemExit(f"{source.name} for {architecture}:\n{ran.stderr}")
    found, name, spilled = {}, None, 0
    for line in ran.stderr.splitlines():
        if match := FUNCTION.search(line):
            name = match[1] or match[2]
        elif match := SPILLS.search(line):
            spilled = int(match[1]) + int(match[2])
        elif match := USED.search(line):
            shared = SHARED.search(line)
            found[short_name(name), architecture] = (int(match[1]), spilled, int(shared[1]) if shared else 0)
    return found


def measure(nvcc, architectures):
    jobs = [(source, architecture) for source in sorted(KERNELS.glob("*.cu")) for architecture in architectures]
    table = {}
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for found in pool.map(lambda job: compile_one(nvcc, *job), jobs):
            table |= found
    return table


def write(table):
    lines = ["\t".join(COLUMNS)] + ["\t".join(map(str, key + value)) for key, value in sorted(table.items())]
    TABLE.write_text("\n".join(lines) + "\n", encoding="ascii")


def read():
    table = {}
    for line in TABLE.read_text(encoding="ascii").splitlines()[1:]:
        kernel, architecture, *figures = line.split("\t")
        table[kernel, architecture] = tuple(map(int, figures))
    return table


def compare(budget, now):
    """What is wrong, in words; nothing if all is within the budget."""
    wrong = [f"{kernel}, {architecture}: is in the budget, nvcc has no such kernel"
             for kernel, architecture in sorted(budget.keys() - now.keys())]
    for key, figures in sorted(now.items()):
        if key not in budget:
            wrong.append(f"{', '.join(key)}: has no budget")
            continue
        wrong += [f"{', '.join(key)}: {figure} {name}, {limit} allowed"
                  for name, figure, limit in zip(COLUMNS[2:], figures, budget[key]) if figure > limit]
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--check", action="store_true")
    mode.add_argument("--write", action="store_true")
    parser.add_argument("--architecture", choices=ARCHITECTURES)
    arguments = parser.parse_args()
    if arguments.write and arguments.architecture:
        parser.error("--write is for all architectures")
    architectures = (arguments.architecture,) if arguments.architecture else ARCHITECTURES
    nvcc = find_nvcc()
    if nvcc is None:
        print("skipped: there is no nvcc")
        sys.exit(77)
    now = measure(nvcc, architectures)
    assert len(now) > len(architectures) * 10, "nvcc's output is not understood"
    if arguments.write:
        write(now)
        print(f"{len(now)} kernels in {TABLE}")
        return
    budget = {key: figures for key, figures in read().items() if key[1] in architectures}
    # The comparison must be able to fail.
    key = next(iter(now))
    assert compare({key: now[key]}, {key: tuple(n + 1 for n in now[key])}) and compare({}, {key: now[key]})
    wrong = compare(budget, now)
    print("\n".join(wrong) or f"{len(now)} kernels within their budget")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
