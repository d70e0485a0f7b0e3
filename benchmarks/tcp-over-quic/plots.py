"""Draws q1.svg to q4.svg and start-up.svg from link.csv and link.jsonl: plots.py FOLDER"""

import json
import pathlib
import statistics
import sys

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plot  # noqa: E402

import paper  # noqa: E402
from bed import CONTESTANTS  # noqa: E402
from report import TITLES, medians, ordered, rows  # noqa: E402

COLOURS = {
    "tandem": "#c0392b", "tandem-pair": "#e67e22", "tcp-cubic": "#7f8c8d", "tcp-bbr": "#2c3e50",
    "tcp-bbr-wide": "#95a5a6", "quinn-cubic": "#5dade2", "quinn-bbr": "#1f618d",
    "quinn-bbr-wide": "#85c1e9", "hysteria-bbr": "#27ae60", "hysteria-brutal": "#a9dfbf",
}  # fmt: skip
BINS_SHOWN = 10  # of 100 ms, for one point of a line over time


def style(name):
    wide = 2.4 if name.startswith("tandem") else 1.4
    return {"color": COLOURS[name], "linewidth": wide, "label": CONTESTANTS[name].label}


def panel(axes, experiment, data, value, title):
    part = [r for r in data if r["experiment"] == experiment and r["direction"] == "up"]
    middle = medians(part, "contestant", "x", value=value)
    for name in ordered({row["contestant"] for row in part}):
        line = sorted((float(x), y) for (who, x), y in middle.items() if who == name)
        if line:
            axes.plot(*zip(*line), marker="o", markersize=4, **style(name))
    for numbers, label, look in zip(
        paper.receiver(experiment), ("paper: tunnel (quinn)", "paper: plain TCP"), ("k--", "k:")
    ):
        axes.plot(*zip(*sorted(numbers.items())), look, marker="x", linewidth=1, label=label)
    axes.set_title(title, fontsize=10)
    axes.set_xlabel(TITLES[experiment][1])
    axes.grid(alpha=0.3)
    if experiment == "q1":
        axes.set_xscale("log")
        axes.set_yscale("log")
    else:
        axes.set_ylim(0, 85)
    if experiment == "q3":
        axes.set_xscale("symlog", linthresh=50)
    settings = list(paper.TABLES[experiment])
    axes.set_xticks(settings, [f"{x}" for x in settings], minor=False)
    axes.minorticks_off()


def by_setting(out, data):
    for experiment in sorted({row["experiment"] for row in data}):
        shape = {"figsize": (11, 4.6), "sharey": True, "layout": "constrained"}
        figure, (left, right) = plot.subplots(1, 2, **shape)
        panel(left, experiment, data, "mbps", "after start-up")
        panel(right, experiment, data, "mbps_first_10s", "the first 10 s, as in the paper")
        left.set_ylabel("Mbit/s at the receiver")
        figure.suptitle(TITLES[experiment][0])
        figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=4,
                      fontsize=8)  # fmt: skip
        figure.savefig(out / f"{experiment}.svg", metadata={"Date": None})
        plot.close(figure)


def over_time(out):
    """How each contestant starts over a long way: the first round of the longest delay."""
    file = out / "link.jsonl"
    runs = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    runs = [r for r in runs if r["experiment"] == "q3" and r["direction"] == "up"]
    if not runs:
        return
    longest = max(float(run["x"]) for run in runs)
    figure, axes = plot.subplots(figsize=(9, 4.6), layout="constrained")
    for run in runs:
        if run["round"] == 1 and float(run["x"]) == longest and run["bytes_per_100ms"]:
            bins = run["bytes_per_100ms"]
            parts = [bins[i : i + BINS_SHOWN] for i in range(0, len(bins), BINS_SHOWN)]
            rates = [statistics.mean(part) * 80 / 1e6 for part in parts]
            axes.plot(range(len(rates)), rates, **style(run["contestant"]))
    axes.set_xlabel("s since the request")
    axes.set_ylabel("Mbit/s at the receiver")
    axes.set_title(f"The start at 80 Mbit/s and {longest:g} ms in each direction", fontsize=10)
    axes.grid(alpha=0.3)
    if axes.has_data():
        axes.legend(fontsize=8)
    figure.savefig(out / "start-up.svg", metadata={"Date": None})
    plot.close(figure)


def main():
    out = pathlib.Path(sys.argv[1])
    data = rows(out / "link.csv")
    if data:
        by_setting(out, data)
        over_time(out)


main()
