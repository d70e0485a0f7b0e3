#!/usr/bin/env python3
"""The table of results and goals, from what runs.py has kept of the full runs, in FOLDER/runs.jsonl.xz.

    benchmarks/tecc/reached.py FOLDER > reached.md
"""

import functools
import json
import lzma
import math
import pathlib
import re
import sys
from collections import defaultdict

FOLDER = pathlib.Path(sys.argv[1])
PLAIN = ["mft", "mdt", "mst", "rmdt"]
# Where the four are compared, and what tells the points of a figure apart.
POINTS = {
    "t10": ["size"],
    "t11": ["client_rtt"],
    "t12": ["loss"],
    "t13": ["trace", "loss"],
    "traces": ["trace", "loss"],
    "headline": ["trace", "loss"],
    "outages": ["loss"],
    "rates": ["rate", "streams"],
    "bursts": ["loss"],
    "loss-before": ["loss"],
    "queues": ["queue"],
    "client-rtt": ["client_rtt"],
    "origin-rtt": ["origin_rtt"],
    "uplink-traces": ["uplink_trace"],
    "uplink-rates": ["uplink_rate", "loss"],
    "ten-flows": ["workload"],
    "behind-proxy": ["origin_rate"],
}
# Student's t at 97.5 % by degrees of freedom.
T = {1: 12.71, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 7: 2.365, 9: 2.262, 11: 2.201, 19: 2.093}


# Workloads whose flows do not end by themselves, so that they have no completion times.
ENDLESS = ("long:", "sharing:", "datagrams:")
SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1, "min": 60, "h": 3600}


def seconds(text):
    """A duration such as `10min` or `1min 30s`."""
    return sum(float(number) * SECONDS[unit] for number, unit in re.findall(r"([0-9.]+)([a-z]+)", text))


def counted(run):
    """A run with completion times as all statistics count them: a flow that did not complete
    counts as the time from its start to the time limit, which is a lower bound. Otherwise a mode would look better the
    more of its runs fail."""
    flows = run.pop("flows", [])
    if run["workload"].startswith(ENDLESS):
        return run
    limit = seconds(run["time_limit"])
    each = [max(limit - start, 0) if fct is None else fct for start, fct in flows]
    if not run["completed"]:
        run["fct_s"] = mean(each) if each else limit
        run["fct_over_ideal"] = run["fct_s"] / run["ideal_s"] if run["ideal_s"] else None
    run["fct_last_s"] = max(each, default=run["fct_last_s"] or run["fct_s"])
    run["flows_s"] = each
    return run


@functools.cache
def all_runs():
    """The runs of each figure."""
    figures = defaultdict(list)
    with lzma.open(FOLDER / "runs.jsonl.xz", "rt") as lines:
        for run in map(json.loads, lines):
            figures[run["figure"]].append(counted(defaultdict(lambda: None, run)))
    return figures


def load(name):
    """The runs of a figure; none if it was not made."""
    return all_runs().get(f"tecc/{name}", [])


def named(value):
    """A value as text; of a recording the name alone."""
    text = str(value)
    return pathlib.PurePath(text).stem if text.startswith("$") else text


def line_of(run):
    """Which line of a figure a run belongs to."""
    is_as_it_comes = run["mode"] == "rmdt" and run.get("resequence") == "off"
    return "rmdt off" if is_as_it_comes else run["mode"]


def points(name):
    """{point: {line: {seed: run}}} of a figure."""
    found = defaultdict(lambda: defaultdict(dict))
    for run in load(name):
        point = tuple(named(run[key]) for key in POINTS[name])
        found[point][line_of(run)][run["seed"]] = run
    return found


def mean(values):
    values = [value for value in values if value is not None]
    return sum(values) / len(values) if values else math.nan


def tail(values):
    """The 99th percentile, or the largest of fewer than 100."""
    values = sorted(value for value in values if value is not None)
    if not values:
        return math.nan
    return values[math.ceil(len(values) * 0.99) - 1] if len(values) >= 100 else values[-1]


def ratio(ours, theirs, key="fct_s"):
    """The ratio of means over the seeds of both, and its 95 % bounds."""
    pairs = [(ours[seed][key], theirs[seed][key]) for seed in ours if seed in theirs]
    pairs = [pair for pair in pairs if None not in pair]
    if not pairs:
        return math.nan, math.nan, math.nan
    count = len(pairs)
    that = mean(pair[1] for pair in pairs)
    value = mean(pair[0] for pair in pairs) / that
    if count < 2:
        return value, value, value
    residues = [this - value * other for this, other in pairs]
    deviation = math.sqrt(sum(residue**2 for residue in residues) / (count - 1))
    free = max((known for known in T if known <= count - 1), default=1)
    half = (1.984 if count >= 100 else T[free]) * deviation / math.sqrt(count) / that
    return value, value - half, value + half


def of(lines, line, key):
    return [run[key] for run in lines.get(line, {}).values()]


def percent(value):
    return f"{(value - 1) * 100:+.1f} %"


def row(what, goal, *values):
    print(f"| {what} | {goal} | {'; '.join(values)} |")


def rates():
    found = points("rates")
    ways = [(10, 1), (30, 1), (50, 1), (100, 4)]
    values = [mean(of(found[(f"{mbps} Mbit/s", str(n))], "tecc", "fct_over_ideal")) for mbps, n in ways]
    goal = "1.03, 1.05, 1.07, 1.12"
    row("FCT / ideal, 30 MB, 5 % loss, 10, 30, 50, 100 Mbit/s", goal, ", ".join(f"{it:.3f}" for it in values))


def traces():
    found = points("traces")
    for loss, goal in [("0%", "1.04, then 1.03"), ("5%", "1.06, then 1.05")]:
        here = {point: lines for point, lines in found.items() if point[1] == loss}
        each = {point[0]: mean(of(lines, "tecc", "fct_over_ideal")) for point, lines in here.items()}
        row(f"FCT / ideal, mean over {len(each)} recordings, {loss} loss", goal, f"{mean(each.values()):.3f}")
    lossy = {point[0]: lines for point, lines in found.items() if point[1] == "5%"}
    against = [ratio(lines["tecc"], lines["rmdt off"])[0] for lines in lossy.values()]
    hundred = points("headline").values()
    tails = [tail(of(it, "tecc", "fct_s")) / tail(of(it, "rmdt off", "fct_s")) for it in hundred]
    goal = "mean -30 %, p99 -50 %"
    spread = [f"{percent(mean(it))} (from {percent(min(it))} to {percent(max(it))})" for it in (against, tails) if it]
    row("against RMDT `off`, these recordings, 5 % loss: mean; p99 of 100", goal, *spread)
    for base in ["mft", "mft-tuned"]:
        ratios = {name: ratio(lines["tecc"], lines[base]) for name, lines in lossy.items() if lines.get(base)}
        if ratios:
            each = [value for value, _, _ in ratios.values()]
            row(f"against {base}, these recordings, 5 % loss", "better", f"{percent(mean(each))} (from {percent(min(each))} to {percent(max(each))})")
            slower = [f"{name} ({percent(value)}, {percent(low)} to {percent(high)})" for name, (value, low, high) in ratios.items() if value >= 1]
            row(f"recordings at 5 % loss where TECC is not faster than {base}", "none", ", ".join(slower) or "none")
    srtt = [mean(of(lines, "tecc", "e2e_srtt_mean_ms")) for lines in lossy.values()]
    row("E2E smoothed RTT, these recordings", "400 ms", f"{mean(srtt):.0f} ms")


def everywhere():
    worse, count = [], 0
    plus = {"mft-tuned": [], "mft+": [], "rmdt+": []}
    for name in [name for name in POINTS if name != "headline"]:
        for point, lines in points(name).items():
            ours, where = lines.get("tecc"), f"{name} {' '.join(point)}"
            if not ours:
                continue
            bases = [ratio(ours, lines[base]) for base in [*PLAIN, "rmdt off"] if lines.get(base)]
            if bases:
                value, _, high = max(bases)
                count += 1
                if high > 1.01:
                    worse.append(f"{where} ({percent(value)}, at most {percent(high)})")
            for base, ratios in plus.items():
                if lines.get(base):
                    ratios.append((ratio(ours, lines[base])[0], where))
    row(f"points of {count} whose 95 % bound against the best of MFT, MDT, MST, RMDT is above 1.01", "none", f"{len(worse)}: {', '.join(worse)}")
    for base, ratios in plus.items():
        if ratios:
            least = max(ratios)
            over = [where for value, where in ratios if value > 1.03]
            row(f"against {base}: mean over points; worst", "better; +3 %", percent(mean(it[0] for it in ratios)),
                f"{percent(least[0])} ({least[1]})", f"above +3 %: {', '.join(over) or 'none'}")


def short_flows():
    for size, goal in [("100 kB", "-55 %"), ("1 MB", "-33 %")]:
        lines = points("t10")[(size,)]
        if lines.get("tecc"):
            p99 = tail(of(lines, "tecc", "fct_s")) / tail(of(lines, "mft", "fct_s"))
            row(f"{size} at 5 % loss against MFT: mean; p99", goal, percent(ratio(lines["tecc"], lines["mft"])[0]), percent(p99))


def delay():
    over = []
    for name in ["client-rtt", "origin-rtt", "queues", "bursts", "loss-before"]:
        for lines in points(name).values():
            for run in lines.get("tecc", {}).values():
                base = sum(float(run[key].removesuffix("ms")) for key in ["client_rtt", "origin_rtt"])
                over.append(run["e2e_srtt_mean_ms"] / base)
    row("E2E smoothed RTT / base RTT, constant links: mean; largest of a run", "1.5", f"{mean(over):.2f}", f"{max(over, default=math.nan):.2f}")


def outages():
    for point, lines in sorted(points("outages").items()):
        runs = list(lines.get("tecc", {}).values())
        done = sum(run["completed"] for run in runs)
        stock = mean(of(lines, "rmdt off", "fct_over_ideal"))
        row(f"mmwave_blockage, {point[0]} loss: FCT / ideal; p99; completed", "3; every flow completes",
            f"{mean(run['fct_over_ideal'] for run in runs):.2f}", f"{tail([run['fct_over_ideal'] for run in runs]):.2f}",
            f"{done} of {len(runs)}", f"RMDT `off` {stock:.1f}")


def last_of_several():
    values = []
    for (workload,), lines in points("ten-flows").items():
        bases = [ratio(lines["tecc"], lines[base], "fct_last_s") for base in PLAIN if lines.get(base)]
        if lines.get("tecc") and bases:
            value, _, high = max(bases)
            values.append(f"{workload.removeprefix('parallel:')} {percent(value)} (at most {percent(high)})")
    if values:
        row("time of the last of several downloads at once, against the best of MFT, MDT, MST, RMDT", "0 %", ", ".join(values))


def rank(values, permille):
    """The nearest rank of sorted values."""
    return values[-(-len(values) * permille // 1000) - 1]


def requests():
    times = defaultdict(list)
    for run in load("tt3"):
        times[run["mode"]].extend(run["flows_s"])
    of = {mode: sorted(each) for mode, each in times.items()}
    for mode in [mode for mode in ["mft", "mft-tuned", "rmdt+", "tecc"] if of.get(mode) and of.get("mdt")]:
        ranks = [rank(of[mode], permille) / rank(of["mdt"], permille) for permille in (950, 990, 999)]
        parts = [mean(of[mode]) / mean(of["mdt"]), *ranks]
        row(f"requests in a mix of networks, {mode} against MDT: mean, p95, p99, p99.9", "below RMDT+" if mode == "tecc" else "-", ", ".join(percent(it) for it in parts))


def duplicates():
    groups = defaultdict(list)
    for name in ["tdup", "traces", "t13"]:
        for run in load(name):
            if run["mode"] == "tecc":
                where = (name, run["loss"], run["client_rtt"], named(run["trace"]))
                groups[where].append(run["duplicate_ratio"] * 100)
    means = {where: mean(values) for where, values in groups.items()}
    if means:
        worst = max(means, key=means.get)
        row("duplicates by the origin: mean of points; largest point", "1 %", f"{mean(means.values()):.2f} %", f"{means[worst]:.2f} % ({' '.join(it for it in worst if it != 'None')})")


def fairness():
    groups = defaultdict(list)
    for run in load("tt2"):
        groups[(run["origin_rtt"], run["origin_rtt_step"], run["client_rtt_step"], run["mode"])].append(run["jain_index"])
    for what, key, goal in [
        ("equal RTTs", ("10ms", "0s", "0s"), "0.99"),
        ("server delays 10 to 80 ms", ("10ms", "10ms", "0s"), "0.99"),
        ("client delays 10 to 80 ms", ("10ms", "0s", "10ms"), "0.86"),
        ("client delays 10 to 80 ms, origin at 100 ms", ("100ms", "0s", "10ms"), "MFT - 0.05"),
    ]:
        seen = [f"{mode} {mean(groups[(*key, mode)]):.3f}" for mode in ["tecc", "mft"] if groups[(*key, mode)]]
        row(f"Jain's index, eight flows, {what}", goal, *seen)


def overhead():
    sizes = defaultdict(lambda: defaultdict(list))
    for run in load("t14"):
        sizes[run["size"]][run["mode"]].append(run["downlink_bytes"])
    extra = [f"{size} {percent(mean(modes['tecc']) / mean(modes['mft']))}" for size, modes in sizes.items() if modes["tecc"]]
    row("bytes towards the client, against MFT, no loss", "+4 % from 1 MB on", ", ".join(extra))


print("""# Results of the full runs of the TECC figures

`reached.py` makes this file from the full runs. *TECC* is mode `tecc` unless a row says otherwise. The other modes are
those of the TECC paper: MFT (forwarding mode: no tunnel), MDT (MASQUE datagram tunnel), MST (MASQUE stream tunnel) and
RMDT (MASQUE datagram tunnel with retransmission; `off` releases payloads in the order in which they arrive). FCT is the
flow completion time, p99 the 99th percentile, E2E means end to end. MFT-TUNED (`mft-tuned`) is MFT with an origin that
has the controller and the initial window of a tunnel. In completion times, a flow that did not complete counts as the
time from its start to the time limit (10 min), so that such a value is a lower bound.

| measurement | goal | measured |
| --- | --- | --- |""")
for part in [rates, traces, everywhere, short_flows, delay, outages, last_of_several, requests, duplicates, fairness, overhead]:
    part()
