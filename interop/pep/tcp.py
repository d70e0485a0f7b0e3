"""Cases with kernel TCP, which has never heard of PEP-ACKs."""

import re
import time
from collections.abc import Callable
from pathlib import Path

from pep.network import PORT, SERVER, SERVER_IPV6, Network, Pep
from processes import Failure, Lab, Process

PROGRAM = Path(__file__).parent / "inside/tcp.py"
LENGTH = 30_000_000  # bytes of a long transfer, which takes 5 s
SHORT, SHORTS = 50_000, 200  # bytes and number of short transfers
# Counters of the server's kernel that PEP-ACKs must not move.
PROVOKED = (
    "TcpRetransSegs",
    "TcpOutRsts",
    "TcpExtTCPChallengeACK",
    "TcpExtTCPSYNChallenge",
    "TcpExtTCPACKSkippedSeq",
    "TcpExtTCPACKSkippedPAWS",
    "TcpExtTCPACKSkippedChallenge",
    "TcpExtTCPDSACKRecv",
    "TcpExtTCPSACKReneging",
)
Check = Callable[[Lab, Network], str]


def serve(lab: Lab, network: Network, address: str, length: int, how: str = "close") -> Process:
    command = ("python3", PROGRAM, "serve", address, str(PORT), str(length), how)
    server = lab.start("server", *network.server.inside(*command))
    server.wait_for("listening")
    return server


def fetching(
    lab: Lab, network: Network, address: str, how: str = "close", times: int = 1
) -> Process:
    length = LENGTH if times == 1 else SHORT
    command = ("python3", PROGRAM, "fetch", address, str(PORT), str(length), how, str(times))
    return lab.start("client", *network.client.inside(*command))


def expect_all(client: Process, length: int) -> None:
    """Waits for the client's end, when it must have all bytes."""
    if client.popen.wait(60) != 0 or int(client.text().split()[-1]) != length:
        raise Failure(f"not all of {length} bytes came: {client.text()[-300:]}")


def provoked(network: Network) -> dict[str, int]:
    counters = network.counters(network.server)
    return {name: counters[name] for name in PROVOKED if counters.get(name)}


def transfer(lab: Lab, network: Network, address: str) -> dict[str, int]:
    """Carries one long transfer, and returns what it has provoked."""
    server = serve(lab, network, address, LENGTH)
    before = provoked(network)
    expect_all(fetching(lab, network, address), LENGTH)
    server.stop()
    after = provoked(network)
    return {name: after[name] - before.get(name, 0) for name in after}


def ignores(form: str, family: str, sack: str) -> Check:
    def check(lab: Lab, network: Network) -> str:
        address = SERVER if family == "IPv4" else SERVER_IPV6
        for host in (network.server, network.client):
            host.set("net.ipv4.tcp_sack", int(sack == "on"))
            # Linux probes for losses at the tail by a timer, which fires too early on a busy machine.
            host.set("net.ipv4.tcp_early_retrans", 0)
        control = transfer(lab, network, address)
        pep = Pep(lab, network, "--tcp-form", form, "--user", "nobody")
        with_pep = transfer(lab, network, address)
        counted = pep.end()
        if counted["pep_acks"] < 1000 or counted["refused_pep_acks"]:
            raise Failure(f"too few PEP-ACKs: {counted}")
        if any(value > control.get(name, 0) for name, value in with_pep.items()):
            raise Failure(f"{counted['pep_acks']} PEP-ACKs provoked {with_pep}, without {control}")
        return f"{counted['pep_acks']} PEP-ACKs of {counted['seen_packets']} packets: nothing happened"

    return check


def ends(form: str, how: str) -> Check:
    def check(lab: Lab, network: Network) -> str:
        serve(lab, network, SERVER, SHORT, how)
        pep = Pep(lab, network, "--tcp-form", form, "--user", "nobody")
        expect_all(fetching(lab, network, SERVER, how, SHORTS), SHORT * SHORTS)
        counted = pep.end()
        # The server's own, and answers to PEP-ACKs that were on their way when the connection ended. The PEP
        # sends none after it has seen a FIN or RST, but these may arrive before it gets a processor.
        allowed = (SHORTS if how == "reset" else 0) + SHORTS // 20
        resets = network.counters(network.server)["TcpOutRsts"]
        if counted["pep_acks"] < SHORTS:
            raise Failure(f"too few PEP-ACKs: {counted}")
        if resets > allowed:
            raise Failure(f"{resets} RST, not {allowed}, for {counted['pep_acks']} PEP-ACKs")
        return f"{counted['pep_acks']} PEP-ACKs for {SHORTS} connections, {resets} RST"

    return check


def firewall(form: str) -> Check:
    """The server's host drops what its connection tracking finds invalid."""

    def check(lab: Lab, network: Network) -> str:
        network.server.rules(
            """table inet pep {
                counter invalid {}
                counter passed {}
                chain input {
                    type filter hook input priority 0
                    ct state invalid counter name invalid drop
                    tcp option 253 exists counter name passed
                }
            }""",
        )
        pep = Pep(lab, network, "--tcp-form", form, "--user", "nobody")
        serve(lab, network, SERVER, LENGTH)
        expect_all(fetching(lab, network, SERVER), LENGTH)
        sent = pep.end()["pep_acks"]
        dropped, passed = (network.counted(network.server, name) for name in ("invalid", "passed"))
        expected = (sent, 0) if form == "flagless" else (0, sent)
        if (dropped, passed) != expected or sent < 1000:
            raise Failure(f"of {sent} PEP-ACKs {dropped} were dropped and {passed} passed")
        return f"of {sent} PEP-ACKs {dropped} were dropped and {passed} passed"

    return check


def few_privileges(lab: Lab, network: Network) -> str:
    """The kernel verifies BPF programs more strictly when it does not trust their loader with more."""
    setpriv = ("setpriv", "--bounding-set", "-all,+bpf,+net_admin,+net_raw")
    pep = Pep(lab, network, "--tcp-form", "old-ack", bounded=setpriv)
    serve(lab, network, SERVER, LENGTH)
    expect_all(fetching(lab, network, SERVER), LENGTH)
    status = threads(pep)
    counted = pep.end()
    if counted["pep_acks"] < 1000 or any(int(mask, 16) for mask in status):
        raise Failure(f"the threads have {status}; {counted}")
    return f"{counted['pep_acks']} PEP-ACKs, and none of {len(status)} threads has a capability"


def threads(pep: Pep) -> list[str]:
    """Returns the capabilities of each thread."""
    tasks = Path(f"/proc/{pep.process.popen.pid}/task").glob("*/status")
    return [re.search(r"CapPrm:\s*(\w+)", task.read_text())[1] for task in tasks]


def goes_on(lab: Lab, network: Network) -> str:
    serve(lab, network, SERVER, LENGTH)
    pep = Pep(lab, network)
    client = fetching(lab, network, SERVER)
    time.sleep(2)
    counted = pep.end()
    if client.popen.poll() is not None:
        raise Failure("the transfer ended before the PEP")
    expect_all(client, LENGTH)
    if provoked(network).get("TcpOutRsts") or counted["pep_acks"] < 100:
        raise Failure(f"{provoked(network)} after {counted}")
    return f"the PEP ended after {counted['pep_acks']} PEP-ACKs"


def not_listed(lab: Lab, network: Network) -> str:
    pep = Pep(lab, network, server=f"{SERVER}:{PORT + 1},{SERVER_IPV6},203.0.113.0/24")
    serve(lab, network, SERVER, LENGTH)
    expect_all(fetching(lab, network, SERVER), LENGTH)
    counted = pep.end()
    if any(counted.values()):
        raise Failure(f"the PEP counted {counted}")
    return "no packet was seen"
