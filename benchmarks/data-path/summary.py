"""One table for readers in a hurry: Tandem, the best peer, and their ratio."""

import statistics

import common
import report

CENTRE = {"part": "packets", "rate": "50000", "bytes": "1200", "burst": "16", "flows": "16"}
EVEN = CENTRE | {"rate": "10000", "bytes": "64", "burst": "1", "flows": "256"}
MANY = {"part": "connections", "connections": "256", "burst": "16", "flows": "256"}
MOST = {"connections": "10000", "flows": "10000"}
NO_PROXY, ONE_PROXY, TWO_PROXIES = ({"part": "downloads", "hops": hops} for hops in ("0", "1", "2"))
UP, DOWN = {"direction": "up"}, {"direction": "down"}
THREADS = {"part": "threads", "rate": "50000"} | DOWN
FLOOR = "quinn"  # without HTTP, policy and limits
NO_PEERS = ("limit", "-pause")  # ends of names: a bound, and contestants with one setting changed
MODES = ("", "mdt", "relayed", "mft")  # of downloads; other parts have none
FIFTY_EVEN, TEN_EVEN = CENTRE | {"burst": "1"}, CENTRE | {"rate": "10000", "burst": "1"}
# (what, which rows, field) of the table that compares with quinn.
AIMS = [
    *((f"{end}, {what}, {direction['direction']}", rows | direction, f"{end}_ns")
      for end, what, rows in (
          ("proxy", "50,000/s, bursts of 16", CENTRE), ("proxy", "50,000/s, even", FIFTY_EVEN),
          ("proxy", "10,000/s, even", TEN_EVEN), ("client", "50,000/s, bursts of 16", CENTRE),
          ("client", "50,000/s, even", FIFTY_EVEN), ("client", "10,000/s, even", TEN_EVEN))
      for direction in (UP, DOWN)),
    ("echo, idle tunnel, median", {"part": "echo", "beside": "idle"}, "p50_us"),
    ("echo beside 500 Mbit/s up, median", {"part": "echo", "beside": "up"}, "p50_us"),
    ("echo beside 500 Mbit/s down, median", {"part": "echo", "beside": "down"}, "p50_us"),
    ("echo, idle tunnel, median, of part packets", {"part": "packets", "rate": "idle"}, "p50_us"),
    *((f"echo beside {what}, {direction['direction']}, median", rows | direction, "p50_us")
      for what, rows in (("50,000/s in bursts of 16", CENTRE), ("50,000/s, even", FIFTY_EVEN), ("10,000/s, even", TEN_EVEN))
      for direction in (UP, DOWN)),
]  # fmt: skip
# (what, unit, which rows, field) of TCP through one hop.
TCP = [
    ("TCP bulk up, CPU of both ends", "s/GB", {"kind": "up"}, "all_s_per_gb"),
    ("TCP bulk down, CPU of both ends", "s/GB", {"kind": "down"}, "all_s_per_gb"),
    ("TCP round trip, median", "µs", {"kind": "echo"}, "p50_us"),
]
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
    ("proxy, 10,000 connections, up", "µs", 1e3, MANY | UP | MOST, "proxy_ns"),
    ("proxy, 10,000 connections, down", "µs", 1e3, MANY | DOWN | MOST, "proxy_ns"),
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
    ("CPU of `get` for it", "s/GB", 1, ONE_PROXY, "get_s_per_gb"),
    ("CPU of the origin for it", "s/GB", 1, ONE_PROXY, "origin_s_per_gb"),
    ("CPU of all processes for it", "s/GB", 1, ONE_PROXY, "all_s_per_gb"),
    ("the same without a proxy", "s/GB", 1, NO_PROXY, "all_s_per_gb"),
    ("the same with two proxies", "s/GB", 1, TWO_PROXIES, "all_s_per_gb"),
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


    yield from aims(rows)
    yield from hops(rows)
    yield from tcp(rows)


def aims(rows):
    """CPU time and echoes as shares of quinn's."""
    names = [name for name in dict.fromkeys(row["contestant"] for row in rows if row["part"] in ("packets", "echo")) if name != FLOOR]
    found = []
    for what, wanted, field in AIMS:
        of = {name: [row for row in rows if row["contestant"] == name and matches(row, wanted)] for name in [*names, FLOOR]}
        if report.values(of[FLOOR], field):
            floor = report.median(of[FLOOR], field, 1e3 if field.endswith("_ns") else 1) + " µs"
            found.append([what, floor, *(report.against(of[name], of[FLOOR], field) for name in names)])
    if found:
        yield f"**Shares of what {FLOOR} needs, 1200 bytes, 16 flows: medians of the ratios within rounds; less is better**"
        yield ""
        yield from common.table(["what", FLOOR, *names], found)


def hops(rows):
    """Goodput over hops as a share of that over none."""
    downloads = [row for row in rows if row["part"] == "downloads" and row["mode"] in MODES]
    found = []
    for name in dict.fromkeys(row["contestant"] for row in downloads):
        of = {hops: [row for row in downloads if (row["contestant"], row["hops"]) == (name, hops)] for hops in "012"}
        if of["0"]:
            found.append([name, *(report.against(of[hops], of["0"], "goodput_mbps") for hops in "12")])
    if found:
        yield "**HTTP/3 goodput over one and two hops, as a share of that over none; more is better**"
        yield ""
        yield from common.table(["contestant", "one hop", "two hops"], found)


def tcp(rows):
    rows = [row for row in rows if row["part"] == "tcp"]
    names = dict.fromkeys(row["contestant"] for row in rows)
    found = []
    for what, unit, wanted, field in TCP if rows else ():
        of = {name: [row for row in rows if row["contestant"] == name and matches(row, wanted)] for name in names}
        found.append([f"{what}, {unit}", *(report.median(of[name], field) for name in names)])
    if found:
        yield "**TCP through one hop: medians; less is better**"
        yield ""
        yield from common.table(["what", *names], found)


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
