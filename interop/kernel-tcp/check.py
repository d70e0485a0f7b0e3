"""Checks the congestion control of kernel-tcp/. Each check has its own network and prints one line."""

import signal
import sys
import time

import checks
from checks import expect
from network import (
    CLIENT,
    CONTROL,
    ROUTER,
    SERVER,
    Network,
    Path3,
    Result,
    controls,
    counted,
    dropped,
    end,
    loaded_programs,
    output,
)

RATE = 50  # Mbit/s, of the access link
SECONDS = 6
LEAST = 0.5  # the least share of RATE, on machines that have other work too; `measure` says what is reached
ATTRIBUTED = 0.98  # the share of losses that have to be counted for the right domain
ACCESS = ["--rate", f"{RATE}Mbit/s"]


def lossy(share: str) -> list:
    """The flags of a link that loses this share of the data, and no acknowledgement."""
    return ["--uplink-loss", share]


def losses_behind_the_pep_are_no_congestion() -> None:
    result, counters = transfer_with_pep(Path3(access=[*ACCESS, *lossy("2%")]))
    lost = expect_attributed(result, counters)
    expect(lost > 200, f"only {lost} segments were lost")
    slower = {control: without_pep(control) for control in ("cubic", "bbr")}
    said = f"{result.goodput:.1f} Mbit/s beside {slower}"
    expect(result.goodput > 3 * slower["cubic"], said)
    expect(result.goodput > LEAST * RATE, said)


def without_pep(control: str) -> float:
    with Network(Path3(access=[*ACCESS, *lossy("2%")])) as network:
        return round(network.run(control, SECONDS).goodput, 1)


def losses_before_the_pep_are_congestion() -> None:
    result, counters = transfer_with_pep(Path3(wired=lossy("1%"), access=ACCESS))
    lost = expect_attributed(result, counters)
    expect(lost > 30, f"only {lost} segments were lost")
    expect(counters["reductions"] > lost / 3, f"the window was hardly reduced: {counters}")
    expect(result.goodput < RATE / 2, f"{result.goodput:.1f} Mbit/s in spite of losses")


def losses_in_both_domains_are_told_apart() -> None:
    result, counters = transfer_with_pep(Path3(wired=lossy("1%"), access=[*ACCESS, *lossy("1%")]), 12)
    lost = expect_attributed(result, counters)
    expect(lost > 80, f"only {lost} segments were lost")


def a_wired_bottleneck_is_used_and_its_losses_are_congestion() -> None:
    wired = ["--rate", f"{RATE}Mbit/s"]
    result, counters = transfer_with_pep(Path3(wired=wired, access=["--rate", "200Mbit/s"]))
    expect_attributed(result, counters)
    expect(counters["reductions"] > 0, f"the window was not reduced: {counters}")
    expect(result.goodput > LEAST * RATE, f"{result.goodput:.1f} Mbit/s")


def ipv6_works() -> None:
    path = Path3(access=[*ACCESS, *lossy("1%")], ipv6=True)
    result, counters = transfer_with_pep(path)
    lost = expect_attributed(result, counters)
    expect(lost > 100, f"only {lost} segments were lost")
    expect(result.goodput > LEAST * RATE, f"{result.goodput:.1f} Mbit/s")


def transfer_with_pep(path: Path3, seconds: int = SECONDS) -> tuple[Result, dict]:
    with Network(path) as network, network.pep(), network.loader() as loader:
        result = network.run(CONTROL, seconds)
        counters = counted(loader)
    expect(counters["pep_acks_used"] > 500, f"PEP-ACKs were not used: {counters}")
    refused = [counters[f"pep_acks_{why}"] for why in ("wrong_mac", "other_pep", "implausible")]
    expect(not any(refused), f"good PEP-ACKs were refused: {counters}")
    expect(counters["to_one_domain"] == 0, f"the PEP was not silent: {counters}")
    return result, counters


def expect_attributed(result: Result, counters: dict) -> int:
    """Each link has counted what it dropped. Returns the number of all losses."""
    lost = {"wired": dropped(result.wired), "access": dropped(result.access)}
    everything = sum(lost.values())
    # A loss before the first PEP-ACK belongs to no domain, and TCP sends what is late again.
    # A loss that is counted for the other domain is missing in one and too many in the other: it is one wrong loss.
    surplus = [counters[f"lost_{domain}"] - count for domain, count in lost.items()]
    wrong = max(sum(max(it, 0) for it in surplus), sum(max(-it, 0) for it in surplus))
    allowed = (1 - ATTRIBUTED) * everything + 2
    expect(wrong <= allowed, f"{wrong} losses in a wrong domain; the links dropped {lost}: {counters}")
    return everything


def forged_pep_acks_change_nothing() -> None:
    path = Path3(access=[*ACCESS, *lossy("1%")])
    with Network(path) as network, network.loader() as loader:
        with network.pep(network.new_pep("forger")), network.pep(network.new_pep("other", 43)):
            result = network.run(CONTROL, SECONDS)
        counters = counted(loader)
    said = f"{result} {counters}"
    expect(counters["pep_acks_wrong_mac"] > 100, f"nothing was forged: {said}")
    expect(counters["pep_acks_other_pep"] > 100, f"nothing came from another PEP: {said}")
    expect(counters["pep_acks_used"] == 0 and counters["to_two_domains"] == 0, f"used: {said}")
    expect(counters["lost_access"] == 0 and counters["lost_wired"] == 0, f"believed: {said}")
    expect(counters["lost_one_domain"] > 10, f"losses were not noticed: {said}")
    expect(counters["reductions"] > 5, f"losses were no congestion: {said}")


def forged_and_replayed_pep_acks_do_not_disturb_good_ones() -> None:
    path = Path3(access=[*ACCESS, *lossy("1%")])
    with Network(path) as network, network.loader() as loader, network.pep(network.new_pep("forger")):
        with network.transfer(CONTROL, 9) as sender:
            time.sleep(1)
            with network.pep():  # its numbers are below those of the forger, who has begun earlier
                time.sleep(3)
                with network.pep():  # this one counts from 0, so that all its numbers are old ones
                    network.finish(sender, CONTROL)
        wired, access = network.counters()
        counters = counted(loader)
    said = f"the links dropped {dropped(wired)} and {dropped(access)}: {counters}"
    expect(counters["pep_acks_used"] > 500, f"good ones were not used: {said}")
    expect(counters["pep_acks_wrong_mac"] > 500, f"nothing was forged: {said}")
    expect(counters["pep_acks_replayed"] > 500, f"nothing was replayed: {said}")
    expect(counters["to_two_domains"] == 1 and counters["to_one_domain"] == 0, f"switched: {said}")
    lost = sum(counters[f"lost_{domain}"] for domain in ("access", "one_domain"))
    wrong = counters["lost_wired"] + abs(lost - dropped(access))
    expect(wrong <= (1 - ATTRIBUTED) * dropped(access) + 2, f"losses in a wrong domain: {said}")


def a_silent_pep_is_noticed_and_heard_again() -> None:
    path = Path3(access=[*ACCESS, *lossy("1%")])
    with Network(path) as network, network.loader() as loader, network.pep() as pep:
        with network.transfer(CONTROL, 12) as sender:
            time.sleep(4)
            pep.send_signal(signal.SIGSTOP)  # chrt and ip have replaced themselves by the program
            time.sleep(4)
            pep.send_signal(signal.SIGCONT)
            network.finish(sender, CONTROL)
        counters = counted(loader)
    expect(counters["to_one_domain"] == 1, f"the silence was not noticed: {counters}")
    expect(counters["to_two_domains"] == 2, f"the PEP was not heard again: {counters}")
    expect(counters["lost_one_domain"] > 5, f"no losses without the PEP: {counters}")
    expect(counters["reductions"] > 3, f"losses without the PEP were no congestion: {counters}")
    # Until the silence is noticed, losses count as wired ones. Two RTTs of the PEP are some 25 ms, in which
    # one packet is lost.
    expect(counters["lost_wired"] <= 4, f"the silence was noticed late: {counters}")


def nothing_is_left() -> None:
    for how in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        with Network(Path3(access=ACCESS)) as network:
            with network.loader() as loader:
                expect(CONTROL in controls(), f"{CONTROL} is not registered: {controls()}")
                expect(len(loaded_programs()) >= 8, f"programs: {loaded_programs()}")
                loader.send_signal(how)
                end(loader)
            expect(CONTROL not in controls(), f"{CONTROL} is left after {how.name}")
            with network.transfer(CONTROL, 1) as sender:
                said = sender.communicate(timeout=30)[0]
            expect("congestion" in said, f"a new connection could use it after {how.name}: {said}")
        deadline = time.monotonic() + 60  # the kernel frees programs some time after their last use
        while loaded_programs() and time.monotonic() < deadline:
            time.sleep(0.1)
        expect(not loaded_programs(), f"left after {how.name}: {loaded_programs()}")


CHECKS = [
    losses_behind_the_pep_are_no_congestion,
    losses_before_the_pep_are_congestion,
    losses_in_both_domains_are_told_apart,
    a_wired_bottleneck_is_used_and_its_losses_are_congestion,
    ipv6_works,
    forged_pep_acks_change_nothing,
    forged_and_replayed_pep_acks_do_not_disturb_good_ones,
    a_silent_pep_is_noticed_and_heard_again,
    nothing_is_left,
]


def left() -> str | None:
    """Removes the namespaces that are left, and names them."""
    namespaces = {line.split()[0] for line in output("ip", "netns", "list").splitlines()} & {SERVER, ROUTER, CLIENT}
    for namespace in namespaces:
        output("ip", "netns", "delete", namespace)
    return f"{', '.join(namespaces)} is left" if namespaces else None


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # this also ends the running processes
    checks.main(CHECKS, left)
