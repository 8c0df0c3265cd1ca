"""Pictures of measurements: shares of the machine's limits, throughput over batch, latency over load.

  python3 -m venv .cache/plots && .cache/plots/bin/pip install -r tests/bench/requirements.txt
  ./flotilla bench roofline --json roofline.json
  .cache/plots/bin/python tests/bench/plots.py --roofline roofline.json --load served.jsonl --out docs/plots

--load takes files with a JSON line a run, as compare.py --jsonl writes them:
label, c (clients) or rate, out_tok_s, ttft_p50, ttft_p99, itl_p50, itl_p99 (milliseconds). Lines of one label
are a curve; several of one load (the same runs again) become their median. The same input gives the same
bytes of SVG.
"""

import argparse
import collections
import json
import pathlib
import statistics
import sys

LATENCIES = {"ttft": "time to first token", "itl": "between tokens"}
LOAD_FIELDS = ("out_tok_s", "ttft_p50", "ttft_p99", "itl_p50", "itl_p99")


def matrix_curves(run):
    """Matrix → [(tokens, share)] of a run's products, in the report's order."""
    curves = {}
    for row in run["rows"]:
        if row["kernel"] in ("gemm", "gate_up"):
            curves.setdefault(row["name"], []).append((row["tokens"], row["share"]))
    return curves


def other_shares(run):
    """(label, share) of the rows that are no product."""
    return [(f"{row['kernel']}: {row['name']}", row["share"]) for row in run["rows"]
            if row["kernel"] not in ("gemm", "gate_up")]


def decode_points(run):
    """[(batch, tokens a second, tokens a second at the limit)] of the decoding steps, by batch."""
    points = []
    for row in run["rows"]:
        if row["kernel"] == "forward" and row["name"].startswith("decode "):
            points.append((row["tokens"], row["tokens_per_second"], row["tokens"] / (row["limit_us"] * 1e-6)))
    return sorted(points)


def read_loads(lines):
    """(label, field) → [(load, value)] by rising load; equal loads become their median."""
    runs = collections.defaultdict(lambda: collections.defaultdict(list))
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            run = json.loads(line)
            load = run.get("rate") or run["c"]
            values = {field: run[field] for field in LOAD_FIELDS}
        except (json.JSONDecodeError, KeyError) as error:
            raise ValueError(f"line {number} is no line of the load generator: {error!r}") from error
        for field, value in values.items():
            if value is not None:  # nobody answered
                runs[run.get("label") or "flotilla", field][load].append(value)
    return {key: sorted((load, statistics.median(values)) for load, values in loads.items())
            for key, loads in runs.items()}


def machine_line(report):
    machine = report["machine"]
    return (f"{machine['cpu']}, {machine['cores']} cores, {machine['model']}, commit {machine['commit']}, "
            f"load {machine['load_before']:.1f} to {machine['load_after']:.1f}")


class Painter:
    """What all pictures share."""

    def __init__(self, out, suffix):
        import matplotlib
        matplotlib.use("Agg")
        matplotlib.rcParams.update({
            "svg.hashsalt": "flotilla", "svg.fonttype": "none", "font.size": 9, "axes.grid": True,
            "grid.alpha": 0.3, "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False})
        import matplotlib.pyplot
        self.plot = matplotlib.pyplot
        self.out, self.suffix = out, suffix
        out.mkdir(parents=True, exist_ok=True)

    def save(self, figure, name, note):
        figure.text(0.01, 0.01, note, fontsize=7, color="gray")
        path = self.out / f"{name}.{self.suffix}"
        metadata = {"Date": None} if self.suffix == "svg" else {"Software": None}
        figure.savefig(path, metadata=metadata, dpi=110)
        self.plot.close(figure)
        print(path)


def percent_axis(axis):
    from matplotlib.ticker import PercentFormatter
    axis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def plot_shares(painter, report, run):
    figure, (left, right) = painter.plot.subplots(1, 2, figsize=(11, 4.6), width_ratios=[1, 1])
    for name, points in matrix_curves(run).items():
        left.plot(*zip(*points), marker="o", markersize=3, label=name)
    left.set_xscale("log", base=2)
    ticks = sorted({tokens for points in matrix_curves(run).values() for tokens, _ in points})
    left.set_xticks(ticks, [str(tick) for tick in ticks])
    left.set(xlabel="tokens a call", ylabel="share of the limit", ylim=(0, 1.1), title=f"{run['isa']}: matrices")
    percent_axis(left.yaxis)
    left.legend(fontsize=7)
    labels, shares = zip(*other_shares(run))
    right.barh(labels, shares, color="tab:gray")
    right.invert_yaxis()
    right.set(xlim=(0, 1.1), title=f"{run['isa']}: all else")
    right.tick_params(axis="y", labelsize=7)
    percent_axis(right.xaxis)
    figure.tight_layout(rect=(0, 0.03, 1, 1))
    painter.save(figure, f"roofline_{run['isa']}", machine_line(report))


def plot_batches(painter, report):
    figure, axes = painter.plot.subplots(figsize=(6, 4))
    for i, run in enumerate(report["runs"]):
        batches, rates, limits = zip(*decode_points(run))
        axes.plot(batches, rates, color=f"C{i}", marker="o", label=run["isa"])
        axes.plot(batches, limits, color=f"C{i}", linestyle=":", label=f"{run['isa']}, limit")
    axes.set_xscale("log", base=2)
    axes.set_xticks(batches, [str(batch) for batch in batches])
    axes.set(xlabel="requests that decode in a step", ylabel="tokens a second", title="Decoding, context 192")
    axes.set_ylim(bottom=0)
    axes.legend()
    figure.tight_layout(rect=(0, 0.03, 1, 1))
    painter.save(figure, "decode_over_batch", machine_line(report))


def plot_loads(painter, loads, note):
    figure, panels = painter.plot.subplots(1, 3, figsize=(12, 4))
    labels = list(dict.fromkeys(label for label, _ in loads))
    for i, label in enumerate(labels):
        panels[0].plot(*zip(*loads[label, "out_tok_s"]), color=f"C{i}", marker="o", label=label)
        for panel, kind in zip(panels[1:], LATENCIES):
            for quantile, style in (("p50", "-"), ("p99", "--")):
                if loads.get((label, f"{kind}_{quantile}")):
                    panel.plot(*zip(*loads[label, f"{kind}_{quantile}"]), color=f"C{i}", marker="o", markersize=3,
                               linestyle=style, label=f"{label}, {quantile}")
    panels[0].set(ylabel="output tokens a second", title="throughput")
    for panel, title in zip(panels[1:], LATENCIES.values()):
        panel.set(ylabel="ms", title=title)
    for panel in panels:
        panel.set_xlabel("load: clients, or requests a second")
        panel.set_ylim(bottom=0)
        panel.legend(fontsize=7, handlelength=3)
    figure.tight_layout(rect=(0, 0.03, 1, 1))
    painter.save(figure, "latency_over_load", note)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--roofline", type=pathlib.Path, help="what flotilla bench roofline --json has written")
    parser.add_argument("--load", type=pathlib.Path, nargs="+", default=[], help="lines of the load generator")
    parser.add_argument("--note", default="", help="machine and commit of --load, for below the picture")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder for the pictures")
    parser.add_argument("--format", choices=["svg", "png"], default="svg")
    args = parser.parse_args()
    if not args.roofline and not args.load:
        parser.error("give --roofline, --load or both")
    painter = Painter(args.out, args.format)
    if args.roofline:
        report = json.loads(args.roofline.read_text(encoding="utf-8"))
        for run in report["runs"]:
            plot_shares(painter, report, run)
        plot_batches(painter, report)
    if args.load:
        try:
            loads = read_loads(line for path in args.load for line in path.read_text(encoding="utf-8").splitlines())
        except ValueError as error:
            sys.exit(f"--load: {error}")
        if not loads:
            sys.exit("--load: there is no run in these files")
        plot_loads(painter, loads, args.note)


if __name__ == "__main__":
    main()
