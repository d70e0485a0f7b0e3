"""summary.md from the raw data."""

import collections
import csv
import datetime
import os
import pathlib
import platform
import statistics
import subprocess

import paper
from bed import CONTESTANTS
from common import table

TITLES = {
    "q1": ("Q1: bandwidth", "Mbit/s of the link"),
    "q2": ("Q2: loss at 80 Mbit/s", "% of packets lost"),
    "q3": ("Q3: delay at 80 Mbit/s", "ms in each direction"),
    "q4": ("Q4: reordering at 80 Mbit/s", "% of packets 2 ms late"),
}
EMPTY = "-"


def rows(file):
    if not file.exists():
        return []
    with open(file) as table:
        return list(csv.DictReader(table))


def medians(data, *keys, value):
    """The median of each group that has any values: {keys: median}"""
    groups = collections.defaultdict(list)
    for row in data:
        if row[value]:
            groups[tuple(row[key] for key in keys)].append(float(row[value]))
    return {key: statistics.median(values) for key, values in groups.items()}


def number(value):
    return EMPTY if value is None else f"{value:.3g}" if value < 100 else f"{value:.0f}"


def ordered(names):
    return [name for name in CONTESTANTS if name in names]


def of_experiment(experiment, data):
    """Tables of one experiment: after start-up, and from the first packet on as in the paper."""
    title, x_name = TITLES[experiment]
    data = [row for row in data if row["experiment"] == experiment]
    if not data:
        return
    settings = list(dict.fromkeys((row["x"], row["direction"]) for row in data))
    names = ordered({row["contestant"] for row in data})
    tunnel, plain = paper.receiver(experiment)
    yield f"## {title}\n"
    for value, caption in [("mbps", "After start-up"), ("mbps_first_10s", "The first 10 s")]:
        middle = medians(data, "x", "direction", "contestant", value=value)
        if not middle:
            continue
        yield f"{caption}, Mbit/s at the receiver:\n"
        head = [x_name, *(CONTESTANTS[name].label for name in names)]
        lines = []
        for x, direction in settings:
            found = [middle.get((x, direction, name)) for name in names]
            if any(value is not None for value in found):
                line = [x if direction == "up" else f"{x} ({direction})", *map(number, found)]
                of_paper = [tunnel[float(x)], plain[float(x)]] if direction == "up" else [None] * 2
                lines.append(line + [number(value) for value in of_paper])
        yield from table([*head, "paper: tunnel", "paper: TCP"], lines)


def lateness(links):
    """How well the machine kept the link's times, by which runs of different times may differ."""
    late = sorted(float(row["lateness_p99_us"]) / 1000 for row in links if row["lateness_p99_us"])
    if not late:
        return ""
    return (
        f"The emulated link sent packets late when the machine did not run it in time: the p99 of a run "
        f"is {late[0]:.1f} to {late[-1]:.1f} ms, and {statistics.median(late):.1f} ms in the median run. "
        "All contestants are slower in such runs; link.csv has the value of each.\n"
    )


def of_links(data):
    yield (
        "One TCP connection carries data over `tandem lab link`, up (from near to far) unless a row "
        "says otherwise. Values are medians over the rounds. The start-up, which is not measured, "
        "is 2 s and 15 RTTs. The delay is 0.25 ms in each direction, in Q4 1 ms, and the queue has "
        "256 kB, or one bandwidth-delay product where that is more. Packets are lost in the "
        "direction of the data only. The paper's values are for 10 s from the first packet on, so "
        "that the tables of the first 10 s are those to compare it with. It does not say whether "
        "its delay is that of one direction (as here) or the RTT, and how late its reordered "
        "packets were.\n"
    )
    for experiment in TITLES:
        yield from of_experiment(experiment, data)
    failures = [row for row in data if row["failure"]]
    yield f"{len(failures)} of {len(data)} runs failed" + (":\n" if failures else ".\n")
    for row in failures:
        yield f"- {row['experiment']} {row['x']} {row['direction']}, {row['contestant']}: {row['failure']}"
    missed = sum(int(row["missed_packets"] or 0) > 0 for row in data)
    late = [int(row["lateness_p99_us"]) for row in data if row["lateness_p99_us"]]
    if late:
        yield (
            f"\nThe link missed packets in {missed} runs. The 99th percentile of its lateness was "
            f"{statistics.median(late):.0f} us in the median run, and {max(late)} us in the worst.\n"
        )


def of_hop(data):
    yield "## One hop\n"
    for place in dict.fromkeys(row["place"] for row in data):
        part = [row for row in data if row["place"] == place]
        middle = medians(part, "measure", "contestant", value="value")
        names = ordered({row["contestant"] for row in part})
        units = {row["measure"]: row["unit"] for row in part if row["value"]}
        yield f"{place}, medians of {max(int(row['round']) for row in part)} interleaved rounds:\n"
        lines = [
            [measure, unit, *(number(middle.get((measure, name))) for name in names)]
            for measure, unit in units.items()
        ]
        yield from table(["measure", "unit", *(CONTESTANTS[name].label for name in names)], lines)
        for row in part:
            if not row["value"]:
                yield f"- {row['contestant']}, round {row['round']}: {row['measure']}"
    yield (
        "\nCPU is that of both ends of the tunnel together for each GB of payload. Sender, receiver "
        "and both ends share the machine. Memory is what the resident set of the process grew by, "
        "for each of 1000 connections; what the kernel holds for their sockets is not in it.\n"
    )


def machine(loads):
    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if "model name" in line), "")
    limits = [
        f"{name} = {' '.join(pathlib.Path(f'/proc/sys/net/ipv4/{name}').read_text().split())}"
        for name in ("tcp_rmem", "tcp_wmem")
    ]
    return (
        f"{os.cpu_count()} cores ({cpu}), Linux {platform.release()}, {', '.join(limits)}. The load "
        f"average during the runs was {min(loads):.1f} to {max(loads):.1f}.\n"
    )


def version():
    from bed import TANDEM

    try:
        return subprocess.run([TANDEM, "--version"], capture_output=True, text=True).stdout.strip()
    except OSError:
        return "tandem"


def main(out):
    links, hop = rows(out / "link.csv"), rows(out / "hop.csv")
    if not links + hop:
        raise SystemExit(f"{out} has no raw data: run `links` or `hop` first")
    lines = [
        f"# TCP over QUIC tunnels, {datetime.date.today()}\n",
        f"{version()}; quinn 0.11.12; the Hysteria 2 protocol of sing-quic 0.7.0, which is an "
        "independent implementation and not the program of apernet. Its Brutal controller gets the "
        "link's rate as a setting, and ignores loss.\n",
        machine([float(row["load_average"]) for row in links + hop]),
    ]
    if links:
        lines += [lateness(links), *of_links(links)]
    if hop:
        lines += of_hop(hop)
    (out / "summary.md").write_text("\n".join(lines))
