"""One table for readers in a hurry: Tandem, the best peer, and their ratio."""

import statistics

import common
import report

CENTRE = {"part": "packets", "rate": "50000", "bytes": "1200", "burst": "16", "flows": "16"}
EVEN = CENTRE | {"rate": "10000", "bytes": "64", "burst": "1", "flows": "256"}
MANY = {"part": "connections", "connections": "256", "burst": "16", "flows": "256"}
ONE_PROXY = {"part": "downloads", "hops": "1"}
UP, DOWN = {"direction": "up"}, {"direction": "down"}
THREADS = {"part": "threads", "rate": "50000"} | DOWN
FLOOR = "quinn"  # without HTTP, policy and limits
NO_PEERS = ("limit", "-pause")  # ends of names: a bound, and contestants with one setting changed
MODES = ("", "mdt", "relayed")  # of downloads; other parts have none
# (what, unit, how many of the field's units it has, which rows, field). Of a field with a minus, more is better.
LINES = [
    ("proxy, CPU per packet up: 50,000/s, 1200 bytes, bursts of 16, 16 flows", "µs", 1e3, CENTRE | UP, "proxy_ns"),
    ("the same, down", "µs", 1e3, CENTRE | DOWN, "proxy_ns"),
    ("client, CPU per packet, up", "µs", 1e3, CENTRE | UP, "client_ns"),
    ("the same, down", "µs", 1e3, CENTRE | DOWN, "client_ns"),
    ("proxy, 64 bytes, up", "µs", 1e3, CENTRE | UP | {"bytes": "64"}, "proxy_ns"),
    ("proxy, 150,000/s, up", "µs", 1e3, CENTRE | UP | {"rate": "150000"}, "proxy_ns"),
    ("proxy, 10,000/s, 64 bytes, even, 256 flows, down", "µs", 1e3, EVEN | DOWN, "proxy_ns"),
    ("proxy, 256 connections, up", "µs", 1e3, MANY | UP, "proxy_ns"),
    ("proxy, 256 connections, down", "µs", 1e3, MANY | DOWN, "proxy_ns"),
    ("proxy, 256 connections, 4096 flows, down", "µs", 1e3, MANY | DOWN | {"flows": "4096"}, "proxy_ns"),
    ("echo, idle tunnel, median", "µs", 1, {"part": "echo", "beside": "idle"}, "p50_us"),
    ("echo beside 500 Mbit/s up, median", "µs", 1, {"part": "echo", "beside": "up"}, "p50_us"),
    ("the same, 99th percentile", "µs", 1, {"part": "echo", "beside": "up"}, "p99_us"),
    ("first packet, new process and connection", "ms", 1e3, {"part": "setup", "kind": "cold"}, "p50_us"),
    ("first packet, new connection", "ms", 1e3, {"part": "setup", "kind": "full"}, "p50_us"),
    ("first packet, resumed TLS session", "ms", 1e3, {"part": "setup", "kind": "resumed"}, "p50_us"),
    ("first packet, new flow", "ms", 1e3, {"part": "setup", "kind": "warm"}, "p50_us"),
    ("estimate: rate that fills a proxy of one thread, 64 connections, down", "packets/s", 1, THREADS | {"threads": "1"}, "-bound_pps"),
    ("the same with two threads", "packets/s", 1, THREADS | {"threads": "2"}, "-bound_pps"),
    ("HTTP/3 download, one proxy", "Mbit/s", 1, ONE_PROXY, "-goodput_mbps"),
    ("proxy's CPU for it", "s/GB", 1, ONE_PROXY, "proxy1_s_per_gb"),
    ("memory of an idle connection with a flow", "kB", 1e3, {"part": "memory"}, "connection_bytes"),
    ("memory of an idle flow", "kB", 1e3, {"part": "memory"}, "flow_bytes"),
]


def lines(rows):
    first = rows[0]["contestant"]
    found = [line for words in LINES if (line := one(rows, first, *words))]
    if found:
        yield f"**{first} and the best peer: medians; a ratio above 1 says that {first} is better**"
        yield ""
        yield from common.table(["what", first, "best peer", "ratio", f"best but {FLOOR}", "ratio"], found)


def one(rows, first, what, unit, scale, wanted, field):
    larger, field = field.startswith("-"), field.removeprefix("-")
    of = {}
    for row in rows:
        peer = not row["contestant"].endswith(NO_PEERS)
        if peer and row[field] != "" and row["mode"] in MODES and matches(row, wanted):
            of.setdefault(row["contestant"], []).append(row)
    own = of.pop(first, None)
    if own is None:
        return None

    def shown(of_one):
        return f"{report.number(statistics.median(report.values(of_one, field)) / scale)} {unit}"

    def best(names):
        """The best of these peers, and the ratio."""
        medians = {name: statistics.median(report.values(of[name], field)) for name in names if comparable(of[name])}
        if not medians:
            return ["-", "-"]
        name = (max if larger else min)(medians, key=medians.get)
        better = (own, of[name]) if larger else (of[name], own)
        return [f"{shown(of[name])} ({name})", report.against(*better, field)]

    marks = report.marks(own)
    return [what, shown(own) + (f" ({marks})" if marks else ""), *best(of), *best([name for name in of if name != FLOOR])]


def matches(row, wanted):
    return all(row[name] == value for name, value in wanted.items())


def comparable(rows):
    """A peer that loses much, or that cannot keep up, is not the best one."""
    loss = report.values(rows, "loss_percent")
    return not loss or statistics.median(loss) <= report.LOSS_LIMIT
