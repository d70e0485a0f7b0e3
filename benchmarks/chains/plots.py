"""Draws the cost of a proxy by mode and number of proxies: plots.py CSV"""

import pathlib
import sys

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plot  # noqa: E402

import report  # noqa: E402

COLOURS = {
    "mdt": "#7f8c8d", "rmdt": "#e67e22", "tecc": "#c0392b", "mst": "#8e44ad", "uack": "#1f618d",
    "forward": "#27ae60",
}  # fmt: skip
WIDTH = 0.13  # of a bar, where the distance between two groups is 1


def panel(axes, title, costs):
    modes = [mode for mode in COLOURS if any(cost["mode"] == mode for cost in costs)]
    for index, mode in enumerate(modes):
        bars = [cost for cost in costs if cost["mode"] == mode]
        each = [cost["mean_proxy_us"] for cost in bars]
        middle = [it["median"] for it in each]
        below = [it["median"] - it["min"] for it in each]
        above = [it["max"] - it["median"] for it in each]
        places = [cost["proxies"] + (index - (len(modes) - 1) / 2) * WIDTH for cost in bars]
        axes.bar(places, middle, WIDTH, yerr=[below, above], color=COLOURS[mode], label=mode,
                 error_kw={"elinewidth": 0.8})  # fmt: skip
    axes.set_title(title, fontsize=10)
    axes.set_xlabel("proxies in the chain")
    axes.set_xticks(sorted({cost["proxies"] for cost in costs}))
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)


def main():
    file = pathlib.Path(sys.argv[1])
    costs = [cost for cost in report.costs(report.rows(file)) if cost["proxies"]]
    places = [place for place in report.PLACES if any(cost["place"] == place for cost in costs)]
    figure, panels = plot.subplots(1, len(places), figsize=(11, 4.4), sharey=True, squeeze=False, layout="constrained")
    for place, axes in zip(places, panels[0]):
        panel(axes, report.PLACES[place], [cost for cost in costs if cost["place"] == place])
    panels[0][0].set_ylabel("µs of CPU time of a proxy for each packet")
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=len(COLOURS))
    figure.savefig(file.with_suffix(".svg"), metadata={"Date": None})


main()
