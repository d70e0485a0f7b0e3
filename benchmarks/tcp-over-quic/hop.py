"""What one hop costs: bulk over loopback with CPU time, latency, and memory of idle connections."""

import csv
import os
import statistics
import subprocess
import sys
import tempfile
import time

from bed import CONTESTANTS, FAR, FAR_ADDRESS, NEAR, Bed, Failed, Place, Processes, flow
from bed import inside, set_up_namespaces, there
from links import Point, start_link

COLUMNS = ["round", "place", "contestant", "measure", "value", "unit", "load_average"]
LATENCY_LINK = Point("connect", 20, mbps=80, delay_ms=20)
IDLE = 1000  # connections


def bulk(bed, seconds):
    """Throughput and the CPU time of both ends. The first second is not measured."""
    for direction in ("up", "down"):
        for streams in (1, 8):
            bins, cpu = bed.carry(direction, 1 + seconds, f"{direction}-{streams}", streams)
            name = f"{direction}, {streams} stream{'s' * (streams > 1)}"
            yield name, sum(bins[10:]) * 8 / seconds / 1e9, "Gbit/s"
            if cpu and sum(bins):
                yield f"CPU {name}", sum(cpu) / (sum(bins) / 1e9), "s/GB"


def latency(bed, connections):
    times = sorted(bed.ask("connect", connections))
    yield "connect + 1 byte + echo, p50", statistics.median(times) * 1e6, "us"
    yield "connect + 1 byte + echo, p99", times[int(len(times) * 0.99)] * 1e6, "us"
    yield "1 byte + echo, p50", statistics.median(bed.ask("rtt", connections)) * 1e6, "us"


def memory(bed):
    """Resident bytes of each end for each idle connection, without what the kernel holds."""
    before = bed.memory()
    holder = subprocess.Popen(flow(bed.place, "hold", bed.address, IDLE), stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, text=True)  # fmt: skip
    try:
        if holder.stdout.readline().strip() != str(IDLE):
            raise Failed(f"{IDLE} connections could not be opened")
        time.sleep(2)
        after = bed.memory()
    finally:
        holder.kill()
        holder.communicate()
    for end, old, new in zip(["server", "client"], before, after):
        yield f"memory of an idle connection, {end}", (new - old) / IDLE / 1000, "kB"


def on_loopback(contestant, quick, first):
    """A process that has carried much has memory to spare, so that idle connections get a new one."""
    with tempfile.TemporaryDirectory() as folder:
        place = Place([], [], "127.0.0.1", folder)
        with Processes() as processes:
            bed = Bed(processes, place, contestant, 0)
            bed.ask("connect", 20)
            yield from latency(bed, 500)
            yield from bulk(bed, 2 if quick else 8)
        if contestant.server and first:
            with Processes() as processes:
                bed = Bed(processes, place, contestant, 0)
                bed.ask("connect", 20)
                yield from memory(bed)


def over_link(contestant, quick):
    """A connect through a warm tunnel over 40 ms: how many round trips does it take?"""
    with tempfile.TemporaryDirectory() as folder, Processes() as processes:
        start_link(processes, LATENCY_LINK, 1, subprocess.DEVNULL)
        set_up_namespaces(contestant.wide)
        place = Place(inside(NEAR), inside(FAR), FAR_ADDRESS, folder)
        bed = Bed(processes, place, contestant, LATENCY_LINK.mbps)
        bed.ask("connect", 5)
        yield from latency(bed, 20 if quick else 100)


def main(out, options):
    """Writes hop.csv."""
    rounds = options.rounds or (1 if options.quick else 5)
    names = [name for name in options.contestants or CONTESTANTS if there(name)]
    with open(out / "hop.csv", "w") as table:
        rows = csv.writer(table, lineterminator="\n")
        rows.writerow(COLUMNS)
        for number in range(1, rounds + 1):
            for kind in ("loopback", "connect"):
                for name in names:
                    contestant = CONTESTANTS[name]
                    if kind not in contestant.only:
                        continue
                    print(number, kind, name, file=sys.stderr)
                    if kind == "loopback":
                        measures = on_loopback(contestant, options.quick, number == 1)
                        place = "loopback"
                    else:
                        measures, place = over_link(contestant, options.quick), "RTT 40 ms"
                    load = f"{os.getloadavg()[0]:.1f}"
                    try:
                        for measure, value, unit in measures:
                            rows.writerow([number, place, name, measure, f"{value:.4g}", unit, load])
                    except (Failed, OSError) as failed:
                        rows.writerow([number, place, name, f"failed: {failed}", "", "", load])
                    table.flush()
