"""The matrix of clients, proxies and origins.

The mode mst (one stream) carries all payloads in capsules on the request stream."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import clients
import servers
from clients import Transfer, forwarded
from files import LARGE, MEDIUM, PAGE, ROOT, sha256
from processes import Failure, Lab
from versions import version

DOWNLOADS = (Transfer(PAGE), Transfer(LARGE))
SMALL_DOWNLOADS = (Transfer(PAGE), Transfer(MEDIUM))  # for slow clients
UPLOAD = (Transfer(LARGE, upload=True),)
PAGES = (Transfer(PAGE), Transfer(PAGE), Transfer(MEDIUM), Transfer(PAGE))


@dataclass(frozen=True)
class Peer:
    """A program in one of its roles."""

    project: str
    run: Callable  # a client's function performs transfers, a server's starts it
    form: str = ""
    version: str = ""  # if it is not the one that the suite uses otherwise

    def __str__(self) -> str:
        of_program = self.version or version(self.project)
        return " ".join(filter(None, (self.project, of_program, self.form)))


@dataclass(frozen=True)
class Case:
    """A client, proxies in the order of their distance from it, and an origin."""

    client: Peer
    proxies: tuple[Peer, ...]
    origin: Peer
    transfers: tuple[Transfer, ...] = DOWNLOADS

    def __str__(self) -> str:
        chain = " -> ".join(map(str, (self.client, *self.proxies, self.origin)))
        return chain + (", upload" if self.transfers == UPLOAD else "")

    def run(self, lab: Lab) -> None:
        origin = self.origin.run(lab)
        proxies = [proxy.run(lab) for proxy in self.proxies]
        hashes = self.client.run(lab, proxies, origin, self.transfers)
        wanted = [sha256(ROOT / transfer.file) for transfer in self.transfers]
        if hashes != wanted:
            raise Failure(f"the received bytes differ: SHA-256 {hashes}, not {wanted}")
        length = sum((ROOT / transfer.file).stat().st_size for transfer in self.transfers)
        targets = [*proxies, origin][1:]
        for peer, proxy, target in zip(self.proxies, proxies, targets, strict=True):
            if peer is TANDEM:
                proxy.check_carried(target, length, uploaded=self.transfers == UPLOAD)


@dataclass(frozen=True)
class Echo:
    """A client that sends UDP payloads of its own through our proxy, to a server that echoes."""

    client: Peer

    def __str__(self) -> str:
        return f"{self.client} -> {TANDEM} -> echo server"

    def run(self, lab: Lab) -> None:
        self.client.run(lab, servers.tandem_proxy(lab), servers.echo(lab))


GET = Peer("tandem", clients.tandem(), "get")
GET_MST = Peer("tandem", clients.tandem("--mode", "mst"), "get --mode mst")
FORWARDED_GET = Peer("tandem", forwarded(clients.tandem()), "get in client --udp")
QUIC_GO_GET = Peer("quic-go", clients.quic_go)
HYBRID_QUIC_GO_GET = Peer("quic-go", clients.quic_go_hybrid, "with X25519MLKEM768 only")
FORWARDED_QUIC_GO = Peer("quic-go", forwarded(clients.quic_go), "in tandem client --udp")
AIOQUIC_GET = Peer("aioquic", clients.aioquic)
FORWARDED_AIOQUIC = Peer("aioquic", forwarded(clients.aioquic), "in tandem client --udp")
MASQUE_GO_GET = Peer("masque-go", clients.masque_go("masque-go-client"))
NGTCP2_GET = Peer("ngtcp2", clients.ngtcp2)
FORWARDED_NGTCP2 = Peer("ngtcp2", forwarded(clients.ngtcp2), "in tandem client --udp")
NIQUESTS = Peer("niquests", clients.niquests)
FORWARDED_NIQUESTS = Peer("niquests", forwarded(clients.niquests), "in tandem client --udp")
CHROMIUM = Peer("chromium", clients.chromium)
FORWARDED_CHROMIUM = Peer("chromium", forwarded(clients.chromium), "in tandem client --udp")
FLUPKE = Peer("flupke", clients.flupke)
FORWARDED_FLUPKE = Peer("flupke", forwarded(clients.flupke), "in tandem client --udp")
FLUPKE_ECHO = Peer("flupke", clients.flupke_echo, "with payloads in capsules")
PICOQUIC = Peer("picoquic", clients.picoquic)
FORWARDED_PICOQUIC = Peer("picoquic", forwarded(clients.picoquic), "in tandem client --udp")
PICOQUIC_ECHO = Peer("picoquic", clients.picoquic_echo, "with payloads in datagrams")
H3_GET = Peer("h3", clients.h3, "on quinn")
FORWARDED_H3 = Peer("h3", forwarded(clients.h3), "on quinn, in tandem client --udp")
LIBCURL = Peer("libcurl", clients.libcurl("http3"))
FIREFOX = Peer("firefox", clients.firefox("h3"))

TANDEM = Peer("tandem", servers.tandem_proxy)
MASQUE_GO = Peer("masque-go", servers.masque_go_proxy)
H3 = Peer("h3", servers.h3_proxy, "on quinn")

OURS = Peer("tandem", servers.tandem_origin)
QUIC_GO = Peer("quic-go", servers.quic_go_origin)
HYBRID_QUIC_GO = Peer("quic-go", servers.quic_go_origin_hybrid, "with X25519MLKEM768 only")
QUIC_GO_1200 = Peer("quic-go", servers.quic_go_origin_1200, "from 1200 bytes")
AIOQUIC = Peer("aioquic", servers.aioquic_origin)
NGTCP2 = Peer("ngtcp2", servers.ngtcp2_origin)
H3_ORIGIN = Peer("h3", servers.h3_origin, "on quinn")


def old_masque_go(version: str) -> list["Case"]:
    """Returns the cases of an earlier version of masque-go."""
    client = clients.masque_go(f"masque-go-client-{version}")
    proxy = partial(servers.masque_go_proxy, program=f"masque-go-proxy-{version}")
    client, proxy = (Peer("masque-go", run, version=version) for run in (client, proxy))
    return [
        Case(client, (TANDEM,), OURS, SMALL_DOWNLOADS),
        Case(GET, (proxy,), OURS, SMALL_DOWNLOADS),
    ]


CASES = [
    # There is no tunnel. These cases show whether a failure of another case is due to its tunnel.
    Case(GET, (), OURS),
    Case(GET, (), QUIC_GO),
    Case(GET, (), AIOQUIC),
    Case(QUIC_GO_GET, (), OURS),
    Case(GET, (), HYBRID_QUIC_GO),
    Case(HYBRID_QUIC_GO_GET, (), OURS, SMALL_DOWNLOADS),
    Case(AIOQUIC_GET, (), OURS),
    Case(GET, (), H3_ORIGIN),
    Case(H3_GET, (), OURS),
    Case(GET, (), NGTCP2),
    Case(NGTCP2_GET, (), OURS),
    Case(NIQUESTS, (), OURS, SMALL_DOWNLOADS),
    Case(CHROMIUM, (), OURS, PAGES),
    Case(FLUPKE, (), OURS, SMALL_DOWNLOADS),
    Case(PICOQUIC, (), OURS),
    # Tandem's client uses another project's proxy. A packet that does not fit ends a tunnel of
    # masque-go. Its tunnels are too small for 1280-byte packets at first, and its own client fails
    # with such origins too.
    Case(GET, (MASQUE_GO,), OURS),
    Case(GET, (MASQUE_GO,), QUIC_GO_1200),
    Case(GET, (MASQUE_GO,), AIOQUIC),
    Case(GET_MST, (MASQUE_GO,), OURS),  # it drops capsules, which the client notices
    Case(FORWARDED_GET, (MASQUE_GO,), AIOQUIC),
    Case(FORWARDED_AIOQUIC, (MASQUE_GO,), AIOQUIC),
    Case(GET, (H3,), OURS),
    Case(GET, (H3,), QUIC_GO_1200),
    Case(GET, (H3,), H3_ORIGIN),
    # Another project's client uses Tandem's proxy. quic-go's origin probes for a larger path MTU
    # all the time.
    Case(MASQUE_GO_GET, (TANDEM,), OURS),
    Case(MASQUE_GO_GET, (TANDEM,), QUIC_GO),
    Case(H3_GET, (TANDEM,), OURS),
    Case(H3_GET, (TANDEM,), QUIC_GO),
    Case(H3_GET, (TANDEM,), H3_ORIGIN),
    Echo(FLUPKE_ECHO),
    Echo(PICOQUIC_ECHO),
    Case(LIBCURL, (TANDEM,), OURS),
    Case(LIBCURL, (TANDEM,), QUIC_GO),
    Case(LIBCURL, (TANDEM,), QUIC_GO, UPLOAD),
    Case(FIREFOX, (TANDEM,), OURS, PAGES),
    Case(FIREFOX, (TANDEM,), QUIC_GO, PAGES),
    Case(FIREFOX, (TANDEM,), QUIC_GO, UPLOAD),
    # Tandem's client and proxy carry the packets of other projects' clients and origins.
    Case(GET, (TANDEM,), OURS),
    Case(GET, (TANDEM,), QUIC_GO),
    Case(GET, (TANDEM,), HYBRID_QUIC_GO),
    Case(GET, (TANDEM,), AIOQUIC),
    Case(GET, (TANDEM,), H3_ORIGIN),
    Case(GET, (TANDEM,), NGTCP2),
    Case(GET_MST, (TANDEM,), OURS),
    Case(GET_MST, (TANDEM,), QUIC_GO),
    Case(FORWARDED_QUIC_GO, (TANDEM,), OURS),
    Case(FORWARDED_QUIC_GO, (TANDEM,), QUIC_GO),
    Case(FORWARDED_QUIC_GO, (TANDEM,), AIOQUIC),
    Case(FORWARDED_QUIC_GO, (TANDEM,), QUIC_GO, UPLOAD),
    Case(FORWARDED_AIOQUIC, (TANDEM,), OURS),
    Case(FORWARDED_AIOQUIC, (TANDEM,), QUIC_GO),
    Case(FORWARDED_AIOQUIC, (TANDEM,), AIOQUIC),
    Case(FORWARDED_NGTCP2, (TANDEM,), OURS),
    Case(FORWARDED_NIQUESTS, (TANDEM,), OURS, SMALL_DOWNLOADS),
    Case(FORWARDED_CHROMIUM, (TANDEM,), OURS, PAGES),
    Case(FORWARDED_FLUPKE, (TANDEM,), OURS, SMALL_DOWNLOADS),
    Case(FORWARDED_PICOQUIC, (TANDEM,), OURS),
    Case(FORWARDED_H3, (TANDEM,), OURS),
    # Several proxies form a chain.
    Case(GET, (TANDEM, TANDEM), OURS),
    Case(GET, (TANDEM, TANDEM), QUIC_GO),
    Case(GET, (TANDEM, TANDEM, TANDEM), OURS),
    Case(GET, (TANDEM, TANDEM, TANDEM), QUIC_GO),
    Case(FORWARDED_QUIC_GO, (TANDEM, TANDEM), QUIC_GO),
    Case(GET, (TANDEM, MASQUE_GO), OURS),
    Case(GET, (TANDEM, MASQUE_GO), QUIC_GO_1200),
    Case(GET, (MASQUE_GO, TANDEM), OURS),
    Case(GET, (MASQUE_GO, TANDEM), QUIC_GO_1200),
    Case(GET, (TANDEM, H3), OURS),
    Case(GET, (H3, TANDEM), OURS),
    *(case for version in ("0.1.0", "0.2.0", "0.3.0", "0.4.0") for case in old_masque_go(version)),
]
