"""Prints the tables of docs/design/kernel-tcp.md. Each round runs all cases, so that other work on the machine meets all."""

import json
from pathlib import Path
from statistics import median

from network import CONTROL, Network, Path3, controls, counted, dropped, loaded_programs

SECONDS, ROUNDS = 10, 3
ACCESS = ["--rate", "50Mbit/s"]
CASES = {
    "no loss": Path3(access=ACCESS),
    "1 % behind the PEP": Path3(access=[*ACCESS, "--uplink-loss", "1%"]),
    "2 % behind the PEP": Path3(access=[*ACCESS, "--uplink-loss", "2%"]),
    "1 % before the PEP": Path3(wired=["--uplink-loss", "1%"], access=ACCESS),
}
SHARED = Path3(wired=["--rate", "50Mbit/s"], access=["--rate", "200Mbit/s"])
STATS = Path("/proc/sys/kernel/bpf_stats_enabled")


def one(path: Path3, control: str, pep: bool = True):
    """Returns the result, and the counters and programs of the loader if it is needed."""
    with Network(path) as network:
        if control != CONTROL:
            return network.run(control, SECONDS), {}, []
        with network.loader() as loader:
            if pep:
                with network.pep():
                    result = network.run(control, SECONDS)
            else:
                result = network.run(control, SECONDS)
            programs = loaded_programs()
            return result, counted(loader), programs


def transfers() -> None:
    rows = {}
    for _ in range(ROUNDS):
        for case, path in CASES.items():
            for control in (CONTROL, "cubic", "bbr"):
                result, counters, _ = one(path, control)
                rows.setdefault((case, control), []).append((result, counters))
    print("| losses | congestion control | Mbit/s (all runs) | mean RTT, ms | sent again | counted wired, access, none "
          "| dropped wired, access |\n| --- | --- | --- | --- | --- | --- | --- |")
    for (case, control), runs in rows.items():
        goodput = sorted(round(result.goodput, 1) for result, _ in runs)
        rtt = median(result.rtt for result, _ in runs)
        again = median(result.sent_again for result, _ in runs)
        of = [[counters.get(f"lost_{d}", 0) for d in ("wired", "access", "one_domain")] for _, counters in runs]
        lost = [(dropped(result.wired), dropped(result.access)) for result, _ in runs]
        total = ", ".join(str(sum(column)) for column in zip(*of)) if control == CONTROL else "-"
        links = ", ".join(str(sum(column)) for column in zip(*lost))
        print(f"| {case} | {control} | {median(goodput)} {goodput} | {rtt:.1f} | {again:.0f} | {total} | {links} |")


def shares() -> None:
    print("\n| two flows, wired bottleneck | Mbit/s |\n| --- | --- |")
    for first, second in ((CONTROL, "cubic"), (CONTROL, CONTROL), ("cubic", "cubic")):
        for _ in range(ROUNDS):
            with Network(SHARED) as network, network.pep(), network.loader():
                with network.transfer(first, 20) as one_flow, network.transfer(second, 20, 5202) as other:
                    rates = [network.finish(*flow)[0] for flow in ((one_flow, first), (other, second))]
            print(f"| {first}, {second} | {rates[0]:.1f}, {rates[1]:.1f} |")


def costs() -> None:
    before = STATS.read_text()
    STATS.write_text("1")
    try:
        path = CASES["2 % behind the PEP"]
        _, _, without = one(path, CONTROL, pep=False)
        _, counters, programs = one(path, CONTROL)
    finally:
        STATS.write_text(before)
    plain = next(mean(program) for program in without if program["name"] == "tandem_pep_in")
    print("\n| program | calls | ns on average |\n| --- | --- | --- |")
    for program in programs:
        if program.get("run_cnt"):
            print(f"| {program['name']} | {program['run_cnt']} | {mean(program):.0f} |")
    device = next(program for program in programs if program["name"] == "tandem_pep_in")
    acks = counters["pep_acks_used"]
    rest = device["run_time_ns"] - plain * (device["run_cnt"] - acks)
    print(f"| of tandem_pep_in: other packets | | {plain:.0f} |")
    print(f"| of tandem_pep_in: PEP-ACKs, the rest | {acks} | {rest / acks:.0f} |")
    print(json.dumps(counters))


def mean(program: dict) -> float:
    return program["run_time_ns"] / program["run_cnt"]


if __name__ == "__main__":
    assert CONTROL not in controls(), "another loader runs"
    costs()
    transfers()
    shares()
