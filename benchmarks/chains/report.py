"""Medians over the rounds, as tables and for programs."""

import collections
import csv
import statistics

from common import table

MODES = ["mft", "mdt", "rmdt", "tecc", "mst", "uack", "forward"]
PROCESSES = ["client", "proxy1", "proxy2", "proxy3", "proxy4", "origin"]
COLUMNS = ["round", "place", "mode", "proxies", "bytes", "packets", "packets_back", "goodput_mbps",
           *(f"{process}_s" for process in PROCESSES), "load_average"]  # fmt: skip
# A proxy shall cost at most this share of what it costs in mode mdt.
GOALS = {"forward": 1 / 2, "uack": 1 / 3}
CAPTION = """Microseconds of CPU time for each packet from end to end, median (least-most). *Packets* are those that the
client received, and *back* those that it sent:
"""
PLACES = {
    "loopback": "Loopback, as fast as the machine can",
    "link": "A link of 100 Mbit/s behind the last proxy",
}


def writer(file):
    rows = csv.DictWriter(file, COLUMNS, restval="", lineterminator="\n")
    rows.writeheader()
    return rows


def rows(file):
    with open(file) as table:
        return list(csv.DictReader(table))


def spread(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def packets(row):
    """The packets of the connection from end to end, in both directions."""
    return int(row["packets"]) + int(row["packets_back"])


def microseconds(row, process):
    return float(row[f"{process}_s"]) * 1e6 / packets(row)


def mean_proxy(row):
    each = [microseconds(row, process) for process in PROCESSES[1:-1] if row[f"{process}_s"]]
    return statistics.mean(each) if each else None


def rank(group):
    (place, mode, length), _ = group
    return list(PLACES).index(place), length, MODES.index(mode)


def costs(data):
    """One object for each place, mode and number of proxies. Times are in microseconds a packet."""
    groups = collections.defaultdict(list)
    for row in data:
        groups[row["place"], row["mode"], int(row["proxies"])].append(row)
    mdt = {(row["place"], row["proxies"], row["round"]): row for row in data if row["mode"] == "mdt"}
    found = []
    for (place, mode, length), runs in sorted(groups.items(), key=rank):
        cost = {
            "place": place,
            "mode": mode,
            "proxies": length,
            "rounds": len(runs),
            "packets": statistics.median(int(it["packets"]) for it in runs),
            "packets_back": statistics.median(int(it["packets_back"]) for it in runs),
            "goodput_mbps": statistics.median(float(it["goodput_mbps"]) for it in runs),
        }
        for process in PROCESSES:
            each = [microseconds(it, process) for it in runs if it[f"{process}_s"]]
            if each:
                cost[f"{process}_us"] = spread(each)
        if length:
            cost["mean_proxy_us"] = spread([mean_proxy(it) for it in runs])
            pairs = [(it, mdt.get((place, it["proxies"], it["round"]))) for it in runs]
            ratios = [mean_proxy(it) / mean_proxy(base) for it, base in pairs if base]
            if ratios:
                cost["of_mdt"] = spread(ratios)
        found.append(cost)
    return found


def cell(values, digits=1):
    if values is None:
        return ""
    low, middle, high = (f"{values[key]:.{digits}f}" for key in ("min", "median", "max"))
    return f"{middle} ({low}-{high})"


def goal(cost):
    """Whether the median reaches the goal of the mode."""
    most = GOALS.get(cost["mode"])
    if most is None or "of_mdt" not in cost:
        return ""
    met = "met" if cost["of_mdt"]["median"] <= most else "missed"
    return f"at most {most:.2f}: {met}"


def tables(costs):
    lines = []
    for place, title in PLACES.items():
        here = [cost for cost in costs if cost["place"] == place]
        if not here:
            continue
        lines += [f"### {title}\n", CAPTION]
        lines += table(
            ["proxies", "mode", "client", "proxy 1", "proxy 2", "proxy 3", "proxy 4", "origin", "packets", "back", "Mbit/s"],
            ([str(it["proxies"]), f"`{it['mode']}`", *(cell(it.get(f"{name}_us")) for name in PROCESSES),
              f"{it['packets']:.0f}", f"{it['packets_back']:.0f}", f"{it['goodput_mbps']:.0f}"] for it in here),
        )  # fmt: skip
        lines += ["The mean of a chain's proxies, and as a multiple of `mdt` in the same round:\n"]
        lines += table(
            ["proxies", "mode", "a proxy", "of `mdt`", "goal"],
            ([str(it["proxies"]), f"`{it['mode']}`", cell(it["mean_proxy_us"]), cell(it.get("of_mdt"), 2), goal(it)]
             for it in here if it["proxies"]),
        )  # fmt: skip
    return "\n".join(lines)
