"""The tables of the benchmark: medians over the rounds, with the least and the most."""

import csv
import statistics

import common
import summary

PARAMETERS = [
    "rate", "bytes", "burst", "direction", "flows", "connections", "threads", "beside", "kind", "hops", "mode", "idle", "congestion",
]  # fmt: skip
MEASURED = [
    "payload_bytes", "sent", "received", "reached_pps", "late_p99_us", "late", "loss_percent", "proxy_ns", "client_ns",
    "busiest_share", "bound_pps", "delivered_pps", "p50_us", "p99_us", "lost", "full_handshakes",
    "goodput_mbps", "get_s_per_gb", "entrance_s_per_gb", "proxy1_s_per_gb", "proxy2_s_per_gb", "origin_s_per_gb",
    "near_s_per_gb", "far_s_per_gb",
    "start_bytes", "connection_bytes", "flow_bytes",
]  # fmt: skip
CIRCUMSTANCES = ["others_cpus", "busy", "again", "skipped", "failed"]
LOSS_LIMIT = 0.5  # percent
SLOWEST = 0.95  # of the rate that was asked for


def values(rows, field):
    return [float(row[field]) for row in rows if row[field] != ""]


def median(rows, field, scale=1):
    found = values(rows, field)
    return number(statistics.median(found) / scale) if found else "-"


def spread(rows, field, scale=1):
    """Median (least-most)."""
    found = values(rows, field)
    if len(found) < 2:
        return median(rows, field, scale)
    return f"{median(rows, field, scale)} ({number(min(found) / scale)}-{number(max(found) / scale)})"


def number(value):
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def marks(rows):
    """What makes the costs of a line no comparison."""
    found = []
    loss = values(rows, "loss_percent")
    if loss and statistics.median(loss) > LOSS_LIMIT:
        found.append(f"loss {statistics.median(loss):.1f} %")
    shares = [float(row["reached_pps"]) / float(row["rate"]) for row in rows if row["reached_pps"] and row["rate"]]
    if shares and statistics.median(shares) < SLOWEST:
        found.append(f"{statistics.median(shares) * 100:.0f} % of the rate")
    for mark in ("late", "busy"):
        marked = values(rows, mark)
        if sum(marked):
            found.append(f"{mark} {sum(marked):.0f} of {len(marked)}")
    not_asked = values(rows, "skipped")
    if not_asked:
        found.append(f"not asked {len(not_asked)} of {len(rows)}, because late at {min(not_asked):.0f}/s")
    return ", ".join(found)


def against(rows, others, field):
    """The median of the ratios within rounds."""
    of_round = {row["round"]: float(row[field]) for row in others if row[field] != ""}
    ratios = [float(row[field]) / of_round[row["round"]] for row in rows if row[field] != "" and of_round.get(row["round"])]
    return f"{statistics.median(ratios):.2f}" if ratios else "-"


def groups(rows, *fields):
    """Rows by case, and in each case by contestant."""
    found = {}
    for row in rows:
        case = found.setdefault(tuple(row[field] for field in fields), {})
        case.setdefault(row["contestant"], []).append(row)
    return found


def read(file):
    if not file.exists():
        raise SystemExit(f"{file} is missing: measure first, or name another file with --csv")
    with file.open(newline="") as opened:
        nothing = dict.fromkeys([*PARAMETERS, *MEASURED, *CIRCUMSTANCES], "")  # what earlier versions did not measure
        rows = [summed(nothing | row) for row in csv.DictReader(opened)]
    rows.sort(key=lambda row: int(row["order"]))  # the cases stay in their order: the sort is stable
    return rows


def summed(row):
    """With the CPU time of all processes."""
    each = [float(value) for field, value in row.items() if field.endswith("_s_per_gb") and value != ""]
    return row | {"all_s_per_gb": sum(each) if each else ""}


def lines(file):
    rows = read(file)
    if not rows:
        yield f"{file} has no results."
        return
    loads = sorted(float(row["load_average"]) for row in rows)
    failed = sum(row["failed"] != "" for row in rows)
    late, busy = (sum(row[mark] == "1" for row in rows) for mark in ("late", "busy"))
    again = sum(values(rows, "again"))
    yield (f"{len(rows)} runs, of which {failed} failed, {late} had a late generator, and {busy} other programs disturbed; {again:.0f} "
           f"more were made again for one of these; load average {loads[0]} to {loads[-1]}")  # fmt: skip
    yield ""
    yield from summary.lines(rows)
    of_part = {}
    for row in rows:
        of_part.setdefault(row["part"], []).append(row)
    for part, table in (
        ("packets", packets), ("connections", connections), ("echo", echo), ("setup", setup), ("threads", threads),
        ("downloads", downloads), ("tcp", tcp), ("memory", memory),
    ):  # fmt: skip
        if part in of_part:
            yield from table(of_part[part])


def packets(rows):
    yield "**CPU time per delivered packet, in nanoseconds, and echoes of 1200 bytes beside the same load, in microseconds**"
    yield ""
    yield (f"Marked are a loss above {LOSS_LIMIT} %, a rate below {SLOWEST * 100:.0f} % of what was asked for, and runs whose generator "
           "was late or that other programs disturbed: their costs are no comparison.")  # fmt: skip
    yield ""
    yield from costs(rows, ["rate", "bytes", "burst", "direction", "flows"], ["proxy_ns", "client_ns"], ECHOES)


def connections(rows):
    yield "**CPU time of the proxy per delivered packet, in nanoseconds, with one client for all contestants**"
    yield ""
    yield from costs(rows, ["rate", "connections", "burst", "direction", "flows"], ["proxy_ns"])


ECHOES = {"echo p50": "p50_us", "echo p99": "p99_us", "lost echoes": "lost"}


def costs(rows, parameters, fields, more=None):
    """A line for each case and contestant, with its ratios to the first contestant, and more columns."""
    more = more or {}
    first = rows[0]["contestant"]
    names = [field.removesuffix("_ns") for field in fields]
    head = [*parameters, "contestant", "marks", *names, *(f"{name} against {first}" for name in names), *more]
    found = (
        [*(of_value(value, of) for value in case), name, marks(of), *(spread(of, field) for field in fields),
         *("1" if name == first and values(of, field) else against(of, of_contestant.get(first, []), field) for field in fields),
         *(spread(of, field) for field in more.values())]
        for case, of_contestant in groups(rows, *parameters).items() for name, of in of_contestant.items()
    )  # fmt: skip
    yield from common.table(head, found)


def of_value(value, rows):
    """The largest payload is not the same for all."""
    return f"{value}: {median(rows, 'payload_bytes')}" if value == "largest" else value


def echo(rows):
    yield "**Echoes of 1200 bytes through one flow, in microseconds; beside a load: 500 Mbit/s on another flow of the tunnel**"
    yield ""
    table = (
        [beside, name, spread(of, "p50_us"), spread(of, "p99_us"), median(of, "lost"), median(of, "reached_pps"), marks(of)]
        for (beside,), case in groups(rows, "beside").items() for name, of in case.items()
    )  # fmt: skip
    yield from common.table(["beside", "contestant", "p50", "p99", "lost echoes", "load, packets/s", "marks"], table)


def setup(rows):
    yield "**Time until the first packet has come back, in microseconds**"
    yield ""
    table = (
        [kind, name, spread(of, "p50_us"), spread(of, "p99_us"), median(of, "lost"), median(of, "full_handshakes")]
        for (kind,), case in groups(rows, "kind").items() for name, of in case.items()
    )  # fmt: skip
    yield from common.table(["kind", "contestant", "p50", "p99", "lost", "full handshakes"], table)


def threads(rows):
    yield "**One and two threads of a proxy with 64 connections**"
    yield ""
    parameters = ["rate", "direction", "threads"]
    fields = ["delivered_pps", "proxy_ns", "busiest_share", "bound_pps"]
    head = [*parameters, "contestant", "marks", "delivered/s", "proxy ns/packet", "share of the busiest thread", "bound, packets/s"]
    table = (
        [*case, name, marks(of), *(spread(of, field) for field in fields)]
        for case, of_contestant in groups(rows, *parameters).items() for name, of in of_contestant.items()
    )  # fmt: skip
    yield from common.table(head, table)


def downloads(rows):
    yield f"**HTTP/3 downloads of {int(rows[0]['bytes']) / 1e6:.0f} MB; CPU seconds per GB**"
    yield ""
    processes = ["get", "entrance", "proxy1", "proxy2", "origin", "all"]
    table = (
        [hops, mode, name, marks(of), spread(of, "goodput_mbps"), *(spread(of, f"{process}_s_per_gb") for process in processes)]
        for (hops, mode), case in groups(rows, "hops", "mode").items() for name, of in case.items()
    )  # fmt: skip
    yield from common.table(["proxies", "mode", "contestant", "marks", "Mbit/s", "get", "client", "proxy 1", "proxy 2", "origin", "all"], table)


def tcp(rows):
    bulk = max(int(row["bytes"]) for row in rows) / 1e6
    yield (f"**TCP through one hop: {bulk:.0f} MB in Gbit/s, CPU seconds per GB of both ends, and round trips of 100 bytes in "
           f"microseconds; TCP's congestion control: {rows[0]['congestion']}**")  # fmt: skip
    yield ""
    yield "haproxy neither encrypts nor tunnels, and has one process."
    yield ""
    by_kind = groups(rows, "kind")
    found = (
        [name, marks([row for case in by_kind.values() for row in case.get(name, [])]),
         *(word for kind in ("up", "down") for word in of_bulk(by_kind.get((kind,), {}).get(name, []))),
         *(spread(by_kind.get(("echo",), {}).get(name, []), field) for field in ("p50_us", "p99_us"))]
        for name in dict.fromkeys(row["contestant"] for row in rows)
    )  # fmt: skip
    costs = [f"{what} {kind}" for kind in ("up", "down") for what in ("Gbit/s", "near end", "far end", "both ends")]
    yield from common.table(["contestant", "marks", *costs, "RTT p50", "RTT p99"], found)


def of_bulk(rows):
    ends = ["near_s_per_gb", "far_s_per_gb"]
    return [spread(rows, "goodput_mbps", 1000), *(spread(rows, end) for end in (*ends, "all_s_per_gb"))]


def memory(rows):
    yield "**Memory of a proxy (resident), in kB**"
    yield ""
    fields = ["start_bytes", "connection_bytes", "flow_bytes"]
    table = ([name, median(of, "idle"), *(spread(of, field, 1000) for field in fields)] for name, of in groups(rows)[()].items())
    yield from common.table(["contestant", "how many", "at its start", "per idle connection with a flow", "per idle flow more"], table)
