"""Programs that send large datagrams of their own, with their default settings."""

import re
import sys

from processes import Failure, Lab
from programs.network import FAR_ADDRESS, PROXY_ADDRESS, Network
from programs.tunnel import HOME_END, INSIDE, PORT, tunnel
from programs.vpn import iperf3_report

IPERF3_DEFAULT = 1448  # bytes: what a segment of TCP carries on an Ethernet
LEAST_SHARE = 0.98  # of the packets; a busy machine may lose some, and some are still on their way
DNS_ANSWERS = (1300, 4000)  # bytes
LEAST_DATAGRAM = {"mdt": 1400, "rmdt": 1380}  # bytes that must fit a datagram on an Ethernet path


def iperf3_udp(lab: Lab, network: Network, mode: str) -> str:
    """Runs `iperf3 -u` with packets of its default size in both directions. It controls its server
    over TCP, which goes around the tunnel through a relay, and derives the size from that."""
    network.home.ip("link", "set", "lo", "mtu", "1500")  # else the size is not that of an Ethernet
    tunnel(lab, network, mode)
    server = ("iperf3", "-s", "--forceflush", "-p", PORT)
    lab.start("iperf3-server", *network.far.inside(*server)).wait_for("Server listening")
    relay = (sys.executable, INSIDE / "tcp_relay.py")
    beyond = (*relay, PROXY_ADDRESS, PORT, FAR_ADDRESS, PORT)
    lab.start("relay", *network.proxy.inside(*beyond)).wait_for("listening on")
    near = (*relay, HOME_END, PORT, PROXY_ADDRESS, PORT)
    lab.start("relay", *network.home.inside(*near)).wait_for("listening on")
    found = []
    for direction, option in (("up", ()), ("down", ("--reverse",))):
        command = ("iperf3", "-u", "-c", HOME_END, "-p", PORT, "-b", "10M", "-t", "2", "--json")
        report = iperf3_report(lab, network.home, *command, *option)
        size, end = report["start"]["test_start"]["blksize"], report["end"]
        sent, received = (end[key]["bytes"] // size for key in ("sum_sent", "sum_received"))
        found.append(f"{direction} {received} of {sent}")
        if size != IPERF3_DEFAULT or received < sent * LEAST_SHARE or sent == 0:
            raise Failure(f"packets of {size} bytes that arrived: {', '.join(found)}")
    return f"packets of {IPERF3_DEFAULT} bytes that arrived: {', '.join(found)}"


def dns(lab: Lab, network: Network, mode: str) -> str:
    """Asks for DNS answers that fit no datagram of the tunnel."""
    tunnel(lab, network, mode)
    server = (sys.executable, INSIDE / "dns_server.py", FAR_ADDRESS, PORT)
    lab.start("dns-server", *network.far.inside(*server)).wait_for("listening on")
    options = ("+bufsize=4096", "+notcp", "+ignore", "+tries=1", "+timeout=5")
    for length in DNS_ANSWERS:
        name = f"{length}.test"
        dig = ("dig", f"@{HOME_END}", "-p", PORT, *options, name, "TXT")
        log = lab.run("dig", *network.home.inside(*dig)).read_text()
        if f"MSG SIZE  rcvd: {length}" not in log:
            raise Failure(f"the answer of {length} bytes did not arrive: {log}")
    return f"answers of {' and '.join(map(str, DNS_ANSWERS))} bytes"


def largest_datagram(lab: Lab, network: Network, mode: str) -> str:
    """Finds the largest payload that is carried in a datagram, in both directions."""
    tunnel(lab, network, mode, "--oversize", "drop")
    echo = (sys.executable, INSIDE / "echo.py", "serve", FAR_ADDRESS, PORT)
    lab.start("echo-server", *network.far.inside(*echo)).wait_for("listening on")
    probe = (sys.executable, INSIDE / "echo.py", "probe", HOME_END, PORT)
    log = lab.run("echo-client", *network.home.inside(*probe)).read_text()
    largest = int(re.search(r"largest: (\d+)", log)[1])
    if largest < LEAST_DATAGRAM[mode]:
        raise Failure(f"datagrams carry at most {largest} bytes")
    return f"{largest} bytes"
