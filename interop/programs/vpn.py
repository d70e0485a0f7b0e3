"""VPNs with their default settings, whose packets go through a tunnel. TCP inside them must run at
the rate of the link, over IPv4 and IPv6."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from files import BIN, CA, CERT, KEY
from namespaces import Host, checked
from processes import Failure, Lab, wait
from programs.network import RATE, Network
from programs.tunnel import HOME_END, PORT, tunnel

PINGS = 10
SECONDS = 2  # that each transfer lasts
OPENVPN_LARGEST = 1492 - 28 - 24  # bytes: --mssfix less IPv4, UDP, OpenVPN's header and tag
LEAST_RATE = RATE / 2  # a generous bound: it shows that TCP works, not how fast it is


@dataclass(frozen=True)
class Vpn:
    """A running VPN: the length of the largest packets that pass, and the far host's addresses."""

    largest: int
    ipv4: str
    ipv6: str


Start = Callable[[Lab, Network], Vpn]


def carries_tcp(start: Start) -> Callable[[Lab, Network, str], str]:
    """Returns a case that runs such a VPN in a tunnel of a mode, and says the rates."""

    def run(lab: Lab, network: Network, mode: str) -> str:
        tunnel(lab, network, mode)
        vpn = start(lab, network)
        ping(lab, network.home, vpn)
        server = lab.start("iperf3-server", *network.far.inside("iperf3", "-s", "--forceflush"))
        server.wait_for("Server listening")
        found = []
        for address, family in ((vpn.ipv4, "IPv4"), (vpn.ipv6, "IPv6")):
            for direction, option in (("up", ()), ("down", ("--reverse",))):
                rate = tcp_rate(lab, network.home, address, *option)
                found.append(f"{family} {direction} {rate / 1e6:.1f} Mbit/s")
                if rate < LEAST_RATE:
                    raise Failure(f"TCP inside is slow: {', '.join(found)}")
        return ", ".join(found)

    return run


def ping(lab: Lab, home: Host, vpn: Vpn) -> None:
    """Sends small echo requests, and the largest that pass. All must be answered."""
    for address, headers in ((vpn.ipv4, 28), (vpn.ipv6, 48)):
        for length in (56, vpn.largest - headers):
            size = ("-s", str(length), "-M", "do")
            command = ("ping", "-q", "-c", str(PINGS), "-i", "0.1", "-W", "2", *size, address)
            log = lab.run("ping", *home.inside(*command)).read_text()
            if f" {PINGS} received" not in log:
                raise Failure(f"echoes of {length} bytes to {address} were lost: {log}")


def tcp_rate(lab: Lab, home: Host, address: str, *options: str) -> float:
    """Returns the rate at which the bytes of a TCP connection arrive, in bit/s."""
    command = ("iperf3", "-c", address, "-t", str(SECONDS), "--json", *options)
    return iperf3_report(lab, home, *command)["end"]["sum_received"]["bits_per_second"]


def iperf3_report(lab: Lab, home: Host, *command: str) -> dict:
    log = lab.run("iperf3", *home.inside(*command)).read_text()
    return json.loads(log[log.index("\n{") :])


def wireguard(lab: Lab, network: Network) -> Vpn:
    """Starts wireguard-go at both ends. Its UDP payloads have 32 bytes more than its packets."""
    home, far = network.home, network.far
    keys = {host: private_key(lab, host) for host in (home, far)}
    public = {host: checked("sh", "-c", f"wg pubkey < {key}").strip() for host, key in keys.items()}
    for host, other, number in ((home, far, 1), (far, home, 2)):
        device = wireguard_device(lab, host)
        place = ("endpoint", f"{HOME_END}:{PORT}") if host == home else ()
        port = ("listen-port", PORT) if host == far else ()
        peer = ("peer", public[other], "allowed-ips", "10.80.0.0/24,fd80::/64", *place)
        checked(*host.inside("wg", "set", device, "private-key", keys[host], *port, *peer))
        host.ip("address", "add", f"10.80.0.{number}/24", "dev", device)
        host.ip("address", "add", f"fd80::{number}/64", "dev", device)
        host.ip("link", "set", device, "up")
    return Vpn(mtu_of(home, wireguard_name(home)), "10.80.0.2", "fd80::2")


def wireguard_device(lab: Lab, host: Host) -> str:
    """Starts wireguard-go on a host, and returns the name of its device."""
    device = wireguard_name(host)
    lab.start("wireguard-go", *host.inside(BIN / "wireguard", "-f", device))
    socket = Path(f"/var/run/wireguard/{device}.sock")
    wait(socket.exists, f"socket {socket}", 10)
    return device


def wireguard_name(host: Host) -> str:
    """Returns the name of the device, and of a socket for which all namespaces share a folder."""
    return f"wg{host.namespace}"


def private_key(lab: Lab, host: Host) -> Path:
    key = lab.logs / f"{host.namespace}.key"
    key.write_text(checked("wg", "genkey"))
    return key


def mtu_of(host: Host, device: str) -> int:
    [link] = json.loads(host.ip("-json", "link", "show", "dev", device))
    return link["mtu"]


def openvpn(lab: Lab, network: Network) -> Vpn:
    """Starts a server and a client of OpenVPN, with TLS and without any option about sizes. The
    default of --mssfix keeps TCP's packets at a size that passes. The device's MTU is 1500, but
    such packets need fragments outside, and a proxy must not fragment (RFC 9298 §3.1)."""
    common = ("openvpn", "--dev-type", "tun", "--ca", CA, "--cert", CERT, "--key", KEY)
    networks = ("--server", "10.81.0.0", "255.255.255.0", "--server-ipv6", "fd81::/64")
    server = ("--dev", "vpn", "--port", PORT, "--topology", "subnet", "--dh", "none", *networks)
    client = ("--dev", "vpn", "--client", "--nobind", "--remote", HOME_END, PORT, "udp")
    for host, options in ((network.far, server), (network.home, client)):
        process = lab.start("openvpn", *host.inside(*common, *options))
        process.wait_for("Initialization Sequence Completed")
    return Vpn(OPENVPN_LARGEST, "10.81.0.1", "fd81::1")
