"""The tables of the benchmark: medians over the rounds."""

import csv
import statistics

import common

TITLES = {
    "forwarded": "Forwarding time in microseconds: from the ingress towards the server to the egress towards the client",
    "newest": "When a PEP-ACK leaves, in microseconds after its newest packet came",
    "oldest": "When a PEP-ACK leaves, in microseconds after its oldest packet came",
}


def median(rows, field):
    values = [float(row[field]) for row in rows if row[field] != ""]
    return statistics.median(values) if values else None


def micros(value):
    if value is None:
        return "-"
    return f"{value / 1000:.2f}" if value < 10_000 else f"{value / 1000:.0f}"


def groups(rows):
    found = {}
    for row in rows:
        found.setdefault((row["protocol"], int(row["rate"]), row["maker"]), []).append(row)
    return found


def lines(file):
    with file.open(newline="") as opened:
        rows = list(csv.DictReader(opened))
    times = groups(row for row in rows if row["with_cost"] == "0")
    costs = groups(row for row in rows if row["with_cost"] == "1")
    loads = sorted(float(row["load"]) for row in rows)
    yield f"{len(rows)} runs; load average {loads[0]} to {loads[-1]}"
    yield ""
    for metric, title in TITLES.items():
        yield f"**{title}**"
        yield ""
        head = ["protocol", "packets/s (reached)", "PEP-ACKs from", "min", "avg (by round)", "p50", "p99", "max"]
        yield from common.table(head, times_of(times, metric))
    yield "**CPU time for each packet in nanoseconds**"
    yield ""
    yield from common.table(["protocol", "packets/s", "PEP-ACKs from", "BPF", "user space"], costs_of(times, costs))


def times_of(times, metric):
    for (protocol, rate, maker), rows in times.items():
        if median(rows, f"{metric}_avg") is None:
            continue
        averages = sorted(float(row[f"{metric}_avg"]) for row in rows if row[f"{metric}_avg"] != "")
        by_round = f"{micros(median(rows, f'{metric}_avg'))} ({micros(averages[0])}-{micros(averages[-1])})"
        rest = [micros(median(rows, f"{metric}_{name}")) for name in ["min", "p50", "p99", "max"]]
        reached = f"{rate} ({median(rows, 'reached'):.0f})"
        yield [protocol, reached, maker, rest[0], by_round, *rest[1:]]


def costs_of(times, costs):
    for group, rows in costs.items():
        protocol, rate, maker = group
        if maker != "plain":
            user = median(times.get(group, rows), "user_ns")
            yield [protocol, str(rate), maker, f"{median(rows, 'bpf_ns'):.0f}", f"{user:.0f}"]
