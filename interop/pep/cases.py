"""The cases: what a PEP has to do, and what must not happen because of it."""

from collections.abc import Callable
from dataclasses import dataclass

from pep import quic, tcp
from pep.network import Network
from processes import Lab


@dataclass(frozen=True)
class Case:
    """A check in a network of its own."""

    name: str
    check: Callable[[Lab, Network], str]  # says what it measured

    def __str__(self) -> str:
        return self.name

    def run(self, lab: Lab) -> str:
        with Network() as network:
            return self.check(lab, network)


CASES = [
    Case("an origin hears the PEP over IPv4", quic.origin_hears("ipv4")),
    Case("an origin hears the PEP over IPv6", quic.origin_hears("ipv6")),
    Case("a download goes on after the PEP has ended", quic.goes_on),
    Case("an origin that is not listed gets nothing", quic.not_listed),
    Case("quic-go ignores PEP-ACKs", quic.ignores(quic.QUIC_GO)),
    Case("aioquic ignores PEP-ACKs", quic.ignores(quic.AIOQUIC)),
    *(
        Case(f"Linux TCP ignores {form} PEP-ACKs over {family}, SACK {sack}", check)
        for form in ("flagless", "old-ack")
        for family, sack in (("IPv4", "on"), ("IPv4", "off"), ("IPv6", "on"))
        for check in [tcp.ignores(form, family, sack)]
    ),
    *(
        Case(f"{form} PEP-ACKs bring no RST at the end, by {end}", tcp.ends(form, how))
        for form in ("flagless", "old-ack")
        for end, how in (
            ("the server's FIN", "close"),
            ("the client's FIN", "client"),
            ("the server's RST", "reset"),
        )
    ),
    Case("a firewall drops flagless PEP-ACKs, and the transfer goes on", tcp.firewall("flagless")),
    Case("a firewall lets old-ack PEP-ACKs pass", tcp.firewall("old-ack")),
    Case("the three privileges of its unit suffice, and it drops them", tcp.few_privileges),
    Case("a TCP transfer goes on after the PEP has ended", tcp.goes_on),
    Case("a TCP server that is not listed gets nothing", tcp.not_listed),
]
