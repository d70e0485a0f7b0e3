"""The cases: a program, and the mode of the tunnel that carries its packets."""

from collections.abc import Callable
from dataclasses import dataclass

from processes import Lab
from programs import datagrams, sessions, vpn
from programs.network import Network
from versions import version


@dataclass(frozen=True)
class Case:
    """A program whose packets go through a tunnel."""

    project: str
    does: str
    check: Callable[[Lab, Network, str], str]  # says what it measured
    mode: str

    def __str__(self) -> str:
        program = f"{self.project} {version(self.project)}"
        return f"{program}, {self.does}, in tandem client --udp --mode {self.mode}"

    def run(self, lab: Lab) -> str:
        with Network() as network:
            return self.check(lab, network, self.mode)


CHECKS = [
    ("wireguard-go", "TCP inside", vpn.carries_tcp(vpn.wireguard)),
    ("openvpn", "TCP inside", vpn.carries_tcp(vpn.openvpn)),
    ("iperf3", "UDP", datagrams.iperf3_udp),
    ("dig", "large answers", datagrams.dns),
    ("kdig", "DNS over QUIC", sessions.dns_over_quic),
    ("mosh", "a shell", sessions.mosh),
    ("tandem", "largest datagram", datagrams.largest_datagram),
]
CASES = [Case(*check, mode) for check in CHECKS for mode in ("mdt", "rmdt")]
