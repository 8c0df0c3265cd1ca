"""Pictures of what the router's policies do to a simulated fleet, over its load: throughput, first tokens, hit rate, balance.

  python3 -m venv .cache/plots && .cache/plots/bin/pip install -r tests/bench/requirements.txt
  .cache/plots/bin/python tests/bench/fleet_plots.py --out docs/plots
  .cache/plots/bin/python tests/bench/fleet_plots.py --out docs/plots --figures FOLDER   keeps the figures, too

Each point is a run of `flotilla simulate fleet` of build/release; SCENES has the flags. The simulation's time is
virtual, so the same commit gives the same pictures on any machine, byte for byte with the same matplotlib.
"""

import argparse
import json
import pathlib
import subprocess

from checkout import ROOT
from plots import Painter

REQUESTS = 100_000
SCENES = {
    "conversations": (
        "conversations of five turns, 100 system prompts, 20 replicas",
        ["--replicas", "20"], [50, 100, 150, 200, 250, 300, 350]),
    "stragglers": (
        "such conversations, a tenth of the replicas three times as slow, 20 deaths",
        ["--replicas", "20", "--straggler-share", "0.1", "--failures", "20"], [50, 100, 150, 200, 250, 300, 350]),
    "lengths": (
        "nothing shared, 9 % of the prompts ten times as long, 20 replicas",
        ["--replicas", "20", "--turns", "1", "--groups", "0", "--user-tokens", "1500", "--long-share", "0.09"],
        [50, 75, 100, 125, 150, 175, 200]),
}
# Field, title, what the axis says, logarithmic.
PANELS = [
    ("requests_per_second", "throughput", "requests a second", False),
    ("ttft_p50_seconds", "first token, p50", "seconds", True),
    ("ttft_p99_seconds", "first token, p99", "seconds", True),
    ("hit_rate", "prompt tokens from a cache", "share", False),
    ("work_balance", "work of the busiest replica", "over the mean", False),
    ("request_balance", "requests of the busiest replica", "over the mean", False),
]


def simulate(flags, rate):
    """The lines of a run, all policies."""
    argv = [ROOT / "build/release/bin/flotilla", "simulate", "fleet", *flags, "--requests", str(REQUESTS), "--rate", str(rate),
            "--json"]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.splitlines()


def curves_of(runs):
    """policy → field → [(rate, value)], of [(rate, lines)]."""
    curves = {}
    for rate, lines in runs:
        for line in lines:
            run = json.loads(line)
            fields = curves.setdefault(run["policy"], {})
            for field, *_ in PANELS:
                fields.setdefault(field, []).append((rate, run[field]))
    return curves


def seconds_axis(axis):
    from matplotlib.ticker import FormatStrFormatter, LogLocator
    axis.set_yscale("log")
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 3)))
    axis.yaxis.set_major_formatter(FormatStrFormatter("%g"))
    axis.minorticks_off()


def plot_scene(painter, name, title, flags, curves):
    figure, axes = painter.plot.subplots(2, 3, figsize=(12, 6.4))
    for axis, (field, panel, unit, logarithmic) in zip(axes.flat, PANELS):
        for policy, fields in curves.items():
            axis.plot(*zip(*fields[field]), label=policy)
        axis.set(title=panel, xlabel="turns a second that come", ylabel=unit)
        if logarithmic:
            seconds_axis(axis)
        elif field == "hit_rate":
            axis.set_ylim(0, 1)
        elif field == "requests_per_second":
            axis.set_ylim(bottom=0)
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.suptitle(title)
    figure.legend(handles, labels, loc="lower center", ncols=len(labels), bbox_to_anchor=(0.5, 0.02))
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    painter.save(figure, f"fleet_{name}", f"flotilla simulate fleet {' '.join(flags)} --requests {REQUESTS} --rate …")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder for the pictures")
    parser.add_argument("--figures", type=pathlib.Path, help="folder for the simulation's lines, each with its rate")
    args = parser.parse_args()
    painter = Painter(args.out, "svg")
    for name, (title, flags, rates) in SCENES.items():
        runs = [(rate, simulate(flags, rate)) for rate in rates]
        if args.figures:
            args.figures.mkdir(parents=True, exist_ok=True)
            lines = [json.dumps({"rate": rate, **json.loads(line)}) for rate, of_rate in runs for line in of_rate]
            (args.figures / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
        plot_scene(painter, name, title, flags, curves_of(runs))


if __name__ == "__main__":
    main()
