"""Q1 to Q4: one flow of TCP over an emulated link, by bandwidth, loss, delay and reordering."""

import csv
import dataclasses
import json
import os
import sys
import tempfile

from bed import CONTESTANTS, FAR, FAR_ADDRESS, NEAR, TANDEM, Bed, Failed, Place, Processes
from bed import inside, set_up_namespaces, there

PAPER_SECONDS = 10  # a run of the paper, from its first packet on
QUEUE = 256_000  # bytes; it is 1 BDP where that is more
COLUMNS = [
    "experiment", "x", "direction", "contestant", "round", "mbps", "mbps_first_10s", "cpu_server_s",
    "cpu_client_s", "bytes", "missed_packets", "lateness_p99_us", "load_average", "failure",
]  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Point:
    """One link. `x` is the value that the experiment changes."""

    experiment: str
    x: float
    direction: str = "up"
    mbps: float = 80
    delay_ms: float = 0.25  # in each direction
    loss: str = "0%"  # in the direction of the data
    ack_loss: str = "0%"
    reorder: str = "0%"

    def flags(self):
        """Those of `tandem lab link`. The uplink is the way to the service."""
        bdp = self.mbps * 1e6 / 8 * 2 * self.delay_ms / 1e3
        up, down = self.loss, self.ack_loss
        if self.direction == "down":
            up, down = down, up
        return ["--rate", f"{self.mbps:g}Mbit/s", "--delay", f"{self.delay_ms * 1000:.0f}us",
                "--uplink-loss", up, "--loss", down, "--reorder", self.reorder, "--reorder-delay",
                "2ms", "--queue", f"{max(QUEUE, bdp):.0f}B"]  # fmt: skip

    def start_up(self):
        """Seconds that are not measured: TCP doubles its window at most once in an RTT."""
        return 2 + 15 * 2 * self.delay_ms / 1000


def points(quick):
    """Those that the paper has, and some in the other direction, or with loss in both."""
    rates = [800] if quick else [8, 80, 800]
    losses = [0, 20] if quick else [0, 5, 10, 15, 20]
    delays = [200] if quick else [0, 50, 100, 200, 500, 1000]
    reorders = [10] if quick else [0, 5, 10, 15, 20]
    yield from (Point("q1", rate, mbps=rate) for rate in rates)
    yield from (Point("q2", loss, loss=f"{loss}%") for loss in losses)
    yield from (Point("q3", delay, delay_ms=max(delay, 0.25)) for delay in delays)
    yield from (Point("q4", share, delay_ms=1, reorder=f"{share}%") for share in reorders)
    if not quick:
        yield Point("q1", 800, "down", mbps=800)
        yield Point("q2", 20, "down", loss="20%")
        yield Point("q2", 20, "up, ACKs too", loss="20%", ack_loss="20%")
        yield Point("q3", 200, "down", delay_ms=200)
        yield Point("q4", 10, "down", delay_ms=1, reorder="10%")


def one_run(point, name, number, seconds):
    """Returns a row for the table, and the bytes of each 100 ms."""
    contestant = CONTESTANTS[name]
    row = {"experiment": point.experiment, "x": f"{point.x:g}", "direction": point.direction,
           "contestant": name, "round": number}  # fmt: skip
    bins = []
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/link", "w+") as counters, Processes() as processes:
            try:
                with Processes() as ends:
                    start_link(processes, point, number, counters)
                    set_up_namespaces(contestant.wide)
                    place = Place(inside(NEAR), inside(FAR), FAR_ADDRESS, folder)
                    bed = Bed(ends, place, contestant, point.mbps)
                    bed.ask("connect", 1)  # the tunnel is warm
                    direction = point.direction.split(",")[0]
                    start_up = point.start_up()
                    bins, cpu = bed.carry(direction, start_up + seconds, "flow")
                row |= summary(bins, start_up, seconds)
                row |= dict(zip(["cpu_server_s", "cpu_client_s"], (f"{s:.2f}" for s in cpu)))
            except (Failed, OSError) as failed:
                row["failure"] = str(failed)
            processes.stop()  # the link then prints its counters
            counters.seek(0)
            row |= of_link(counters.read())
    return row | {"load_average": f"{os.getloadavg()[0]:.1f}"}, bins


def start_link(processes, point, seed, counters):
    processes.start("chrt", "--fifo", "1", TANDEM, "lab", "link", "--near", NEAR, "--far", FAR,
                    "--network", "10.79.0.0/30", "--seed", seed, *point.flags(), ready="ready:",
                    stdout=counters)  # fmt: skip


def summary(bins, start_up, seconds):
    def rate(part):
        return f"{sum(part) * 80 / 1e6 / len(part):.4g}"

    measured = bins[round(start_up * 10) :][: round(seconds * 10)]
    first = bins[: PAPER_SECONDS * 10]
    whole = len(first) == PAPER_SECONDS * 10
    return {"mbps": rate(measured), "bytes": sum(bins)} | (
        {"mbps_first_10s": rate(first)} if whole else {}
    )


def of_link(text):
    if not text:
        return {}
    counters = json.loads(text)
    return {"missed_packets": sum(counters[end]["missed_packets"] for end in ("near", "far")),
            "lateness_p99_us": counters["lateness_p99_us"]}  # fmt: skip


def main(out, options):
    """Writes link.csv, and the bytes of each 100 ms of all runs in link.jsonl."""
    rounds = options.rounds or (1 if options.quick else 3)
    seconds = 4 if options.quick else 10
    names = [name for name in options.contestants or CONTESTANTS if there(name)]
    chosen = [p for p in points(options.quick) if p.experiment in options.experiments]
    with open(out / "link.csv", "w") as table, open(out / "link.jsonl", "w") as series:
        rows = csv.DictWriter(table, COLUMNS, lineterminator="\n")
        rows.writeheader()
        for number in range(1, rounds + 1):
            for point in chosen:
                for name in names:
                    if point.experiment not in CONTESTANTS[name].only:
                        continue
                    row, bins = one_run(point, name, number, seconds)
                    rows.writerow(row)
                    table.flush()
                    key = {k: row[k] for k in COLUMNS[:5]}
                    series.write(json.dumps(key | {"bytes_per_100ms": bins}) + "\n")
                    say = row.get("failure") or f"{row['mbps']} Mbit/s"
                    print(*key.values(), say, f"load {row['load_average']}", file=sys.stderr)
