"""The tables of the benchmark: medians over the rounds, with the least and the most."""

import csv
import statistics

import common

PARAMETERS = ["rate", "bytes", "burst", "direction", "flows", "beside", "hops", "mode", "idle"]
MEASURED = [
    "sent", "received", "reached_pps", "late_p99_us", "loss_percent", "proxy_ns", "client_ns", "p50_us", "p99_us", "lost",
    "goodput_mbps", "get_s_per_gb", "entrance_s_per_gb", "proxy1_s_per_gb", "proxy2_s_per_gb", "origin_s_per_gb",
    "start_bytes", "connection_bytes", "flow_bytes",
]  # fmt: skip
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


def loss(rows):
    found = values(rows, "loss_percent")
    if not found:
        return "-"
    share = statistics.median(found)
    return f"**{share:.2f} !**" if share > LOSS_LIMIT else f"{share:.2f}"


def reached(rows, rate):
    found = values(rows, "reached_pps")
    if not found:
        return "-"
    shown = f"{statistics.median(found):.0f}"
    return f"**{shown} !**" if statistics.median(found) < SLOWEST * float(rate) else shown


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


def lines(file):
    if not file.exists():
        raise SystemExit(f"{file} is missing: measure first, or name another file with --csv")
    with file.open(newline="") as opened:
        rows = list(csv.DictReader(opened))
    if not rows:
        yield f"{file} has no results."
        return
    loads = sorted(float(row["load_average"]) for row in rows)
    failed = sum(row["failed"] != "" for row in rows)
    yield f"{len(rows)} runs, of which {failed} failed; load average {loads[0]} to {loads[-1]}"
    yield ""
    rows.sort(key=lambda row: int(row["order"]))  # the cases stay in their order: the sort is stable
    of_part = {}
    for row in rows:
        of_part.setdefault(row["part"], []).append(row)
    for part, table in (
        ("packets", packets), ("echo", echo), ("setup", setup), ("downloads", downloads), ("memory", memory),
    ):  # fmt: skip
        if part in of_part:
            yield from table(of_part[part])


def packets(rows):
    first = rows[0]["contestant"]
    yield "**CPU time per delivered packet, in nanoseconds**"
    yield ""
    yield (f"A loss above {LOSS_LIMIT} % is marked, and a rate below {SLOWEST * 100:.0f} % of what was asked for: the costs of such a "
           "line are no comparison.")  # fmt: skip
    yield ""
    head = ["packets/s", "bytes", "spacing", "direction", "flows", "contestant", "reached", "loss %", "proxy", "client",
            f"proxy against {first}", f"client against {first}"]  # fmt: skip
    yield from common.table(head, packets_of(groups(rows, "rate", "bytes", "burst", "direction", "flows"), first))


def packets_of(cases, first):
    for (rate, size, burst, direction, flows), of_contestant in cases.items():
        spacing = "even" if burst == "1" else f"bursts of {burst}"
        for name, found in of_contestant.items():
            costs = [spread(found, "proxy_ns"), spread(found, "client_ns")]
            others = of_contestant.get(first, [])
            ratios = ["1" if name == first else against(found, others, field) for field in ("proxy_ns", "client_ns")]
            yield [rate, size, spacing, direction, flows, name, reached(found, rate), loss(found), *costs, *ratios]


def echo(rows):
    yield "**Echoes of 1200 bytes through one flow, in microseconds; beside a load: 500 Mbit/s on another flow of the tunnel**"
    yield ""
    found = groups(rows, "beside")
    table = (
        [beside, name, spread(of, "p50_us"), spread(of, "p99_us"), median(of, "lost"), median(of, "reached_pps"), loss(of)]
        for (beside,), case in found.items() for name, of in case.items()
    )  # fmt: skip
    yield from common.table(["beside", "contestant", "p50", "p99", "lost echoes", "load, packets/s", "its loss %"], table)


def setup(rows):
    yield "**First echo of a new flow of a standing tunnel, in microseconds**"
    yield ""
    table = ([name, spread(of, "p50_us"), spread(of, "p99_us"), median(of, "lost")] for name, of in groups(rows)[()].items())
    yield from common.table(["contestant", "p50", "p99", "lost"], table)


def downloads(rows):
    yield f"**HTTP/3 downloads of {int(rows[0]['bytes']) / 1e6:.0f} MB; CPU seconds per GB**"
    yield ""
    processes = ["get", "entrance", "proxy1", "proxy2", "origin"]
    found = groups(rows, "hops", "mode")
    table = (
        [hops, mode, name, spread(of, "goodput_mbps"), *(spread(of, f"{process}_s_per_gb") for process in processes)]
        for (hops, mode), case in found.items() for name, of in case.items()
    )  # fmt: skip
    yield from common.table(["proxies", "mode", "contestant", "Mbit/s", "get", "relay client", "proxy 1", "proxy 2", "origin"], table)


def memory(rows):
    yield "**Memory of a proxy (resident), in kB**"
    yield ""
    fields = ["start_bytes", "connection_bytes", "flow_bytes"]
    table = ([name, median(of, "idle"), *(spread(of, field, 1000) for field in fields)] for name, of in groups(rows)[()].items())
    yield from common.table(["contestant", "how many", "at its start", "per idle connection with a flow", "per idle flow more"], table)
