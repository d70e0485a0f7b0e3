"""One table for readers in a hurry: Tandem, the best peer, and their ratio."""

import statistics

import common
import report

CENTRE = {"part": "packets", "rate": "50000", "bytes": "1200", "burst": "16", "flows": "16"}
EVEN = CENTRE | {"rate": "10000", "bytes": "64", "burst": "1", "flows": "256"}
MANY = {"part": "connections", "connections": "256", "burst": "16", "flows": "256"}
ONE_PROXY = {"part": "downloads", "hops": "1"}
UP, DOWN = {"direction": "up"}, {"direction": "down"}
MODES = ("", "mdt", "relayed")  # of downloads; other parts have none
# (what, unit, its size in the unit of the field, which rows, field); a field with a minus is the better the larger it is.
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
        yield from common.table(["what", first, "best peer", "ratio"], found)


def one(rows, first, what, unit, scale, wanted, field):
    larger, field = field.startswith("-"), field.removeprefix("-")
    chosen = [row for row in rows if row[field] != "" and row["mode"] in MODES and matches(row, wanted)]
    of = {name: [row for row in chosen if row["contestant"] == name] for name in dict.fromkeys(row["contestant"] for row in chosen)}
    own = of.pop(first, [])
    if not own:
        return None
    peers = {name: of_peer for name, of_peer in of.items() if not name.startswith("tandem") and comparable(of_peer)}
    medians = {name: statistics.median(report.values(of_peer, field)) for name, of_peer in peers.items()}
    own_median = statistics.median(report.values(own, field))
    marks = report.marks(own)
    shown = f"{report.number(own_median / scale)} {unit}" + (f" ({marks})" if marks else "")
    if not medians:
        return [what, shown, "-", "-"]
    best = (max if larger else min)(medians, key=medians.get)
    better = (own, peers[best]) if larger else (peers[best], own)
    return [what, shown, f"{report.number(medians[best] / scale)} {unit} ({best})", report.against(*better, field)]


def matches(row, wanted):
    return all(row[name] == value for name, value in wanted.items())


def comparable(rows):
    """A peer that loses much, or that cannot keep up, is not the best one."""
    loss = report.values(rows, "loss_percent")
    return not loss or statistics.median(loss) <= report.LOSS_LIMIT
