"""Chains of three of our proxies, in each mode of their tunnels.

In the modes of `BESIDE`, the packets of the connection inside must travel beside the tunnels' connections,
and in the others they must not. What a tunnel's connection carries tells which of the two happened."""

import re
from dataclasses import dataclass
from functools import partial

import servers
from cases import AIOQUIC, OURS, QUIC_GO, TANDEM, Peer
from chains.clients import (
    DOWNLOADS_AT_A_TIME,
    Chained,
    aioquic,
    forwarded,
    get,
    quic_go,
    quic_go_together,
)
from clients import Transfer
from files import LARGE, MEDIUM, ROOT, sha256
from processes import Failure, Lab
from servers import Server
from versions import version

PROXIES = 3
BESIDE = ("forward", "uack")
MODES = ("mdt", "rmdt", "tecc", "mst", "msgt", *BESIDE)
# The most that a tunnel's connection may carry of a file whose packets travel beside it. The packets before
# and during the agreement are inside, and so are the first ones after a change of the connection's ID.
MOST_INSIDE = 0.2
MOST_INSIDE_CHANGING = 0.5
ANY = float("inf")
LEAST_OF_FLOW = 0.1  # of a file, in each flow of a program that has several


@dataclass(frozen=True)
class Chain:
    """A transfer through three proxies."""

    mode: str
    project: str
    does: str
    run_client: Chained
    origin: Peer
    upload: bool = False
    flows: int = 1  # of the program
    most_inside: float = MOST_INSIDE

    def __str__(self) -> str:
        client = f"{self.project} {version(self.project)} {self.does}"
        return f"{client} -> chain of three {TANDEM}, mode {self.mode} -> {self.origin}"

    def run(self, lab: Lab) -> str:
        origin = self.origin.run(lab)
        proxies = [servers.tandem_proxy(lab) for _ in range(PROXIES)]
        # Our client begins a download before the agreement is complete, and is fast.
        file = LARGE if self.project == "tandem" and self.mode in BESIDE else MEDIUM
        transfer = Transfer(file, self.upload)
        found, tunnels = self.run_client(lab, proxies, origin, self.mode, transfer)
        wanted, length = sha256(ROOT / file), (ROOT / file).stat().st_size
        if found != wanted:
            raise Failure(f"the received bytes differ: SHA-256 {found}, not {wanted}")
        for proxy, target in zip(proxies, [*proxies, origin][1:], strict=True):
            proxy.check_carried(target, length, uploaded=self.upload)
        self.check_flows(proxies[-1], origin, length)
        return self.check_tunnels([carried / length for carried in tunnels])

    def check_flows(self, last: Server, origin: Server, length: int) -> None:
        """Checks that the program used as many flows as it should. The client also opens one at its
        start, to find out whether the target can be reached."""
        counter = "to_target" if self.upload else "to_client"
        closed = rf"flow closed.* destination={re.escape(origin.address)} .*\b{counter}=(\d+)"
        counts = [int(count) for count in re.findall(closed, last.process.text()) if count != "0"]
        least = length * LEAST_OF_FLOW / servers.LARGEST_PAYLOAD
        if len(counts) != self.flows or min(counts) < least:
            raise Failure(f"flows with {counts} datagrams, not {self.flows} flows")

    def check_tunnels(self, shares: list[float]) -> str:
        """Checks how much of the file the tunnels' connections carried, and returns it as text."""
        inside = ", ".join(f"{share:.1%}" for share in shares)
        text = f"the tunnels' connections carried {inside} of the file"
        if len(shares) != PROXIES:  # also if a tunnel was rebuilt
            raise Failure(f"{text}, of {len(shares)} tunnels instead of {PROXIES}")
        if self.mode in BESIDE and max(shares) > self.most_inside:
            raise Failure(f"{text}, although its packets should travel beside them")
        if self.mode not in BESIDE and min(shares) < 1:
            raise Failure(f"{text}, although there is no other way")
        return text


def program(mode: str, client: Peer, origin: Peer, **checks) -> Chain:
    """Makes the case of a program in `tandem client --udp`."""
    does = f"{client.form}, in tandem client --udp" if client.form else "in tandem client --udp"
    return Chain(mode, client.project, does, forwarded(client.run), origin, **checks)


def tandem_origin(mode: str) -> Peer:
    """Returns our origin, which follows the reports of mode tecc."""
    if mode != "tecc":
        return OURS
    following = partial(servers.tandem_origin, options=("--controller", "tecc"))
    return Peer("tandem", following, "with controller tecc")


QUIC_GO_GET = Peer("quic-go", quic_go())
QUIC_GO_UPLOAD = Peer("quic-go", quic_go("-small"), "upload")
QUIC_GO_EMPTY = Peer("quic-go", quic_go("-empty-id"), "with an empty connection ID")
QUIC_GO_MOVES = Peer("quic-go", quic_go("-migrate"), "which moves to another port")
QUIC_GO_TOGETHER = Peer("quic-go", quic_go_together, f"{DOWNLOADS_AT_A_TIME} downloads at a time")
AIOQUIC_GET = Peer("aioquic", aioquic())
AIOQUIC_CHANGES = Peer(
    "aioquic",
    aioquic("--change-id", says="changed the ID", times=5),
    "which changes its connection ID",
)
AIOQUIC_MOVES = Peer(
    "aioquic", aioquic("--rebind", says="rebound to port", times=1), "behind a NAT that rebinds"
)


def difficult(mode: str, origin: Peer) -> list[Chain]:
    """What may be difficult beside tunnels' connections."""
    changing = {"most_inside": MOST_INSIDE_CHANGING}
    # Nothing in the second flow tells of a new connection, so that its packets may all be inside.
    moving = {"flows": 2, "most_inside": ANY}
    # All these connections share the flows through the first two proxies.
    together = {
        "flows": DOWNLOADS_AT_A_TIME,
        "most_inside": DOWNLOADS_AT_A_TIME * MOST_INSIDE,
    }
    return [
        # The packets of a download's other direction are too few to show where they travel.
        program(mode, QUIC_GO_UPLOAD, QUIC_GO, upload=True),
        program(mode, QUIC_GO_EMPTY, origin),
        program(mode, AIOQUIC_CHANGES, AIOQUIC, **changing),
        program(mode, QUIC_GO_MOVES, origin, **moving),
        program(mode, AIOQUIC_MOVES, AIOQUIC, **moving),
        program(mode, QUIC_GO_TOGETHER, origin, **together),
    ]


CASES = [
    *(Chain(mode, "tandem", "get", get, tandem_origin(mode)) for mode in MODES),
    *(program(mode, QUIC_GO_GET, QUIC_GO) for mode in MODES),
    *(program(mode, AIOQUIC_GET, AIOQUIC) for mode in MODES),
    # The packets of aioquic stay at 1200 bytes. Those of quic-go grow, which is the matter of a case above.
    *difficult("forward", QUIC_GO),
    *difficult("uack", AIOQUIC),
]
