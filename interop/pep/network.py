"""Three hosts in a row: server, router and client. The link to the client has a rate, and a queue that drops
nothing, so that whatever a server sends again was provoked."""

import json
import os
import re
from pathlib import Path

from namespaces import Host, Hosts, checked, connect, shape
from processes import Failure, Lab, Process

TANDEM = os.environ.get("TANDEM", "tandem")
SERVER, SERVER_IPV6 = "10.78.1.1", "fd78:1::1"
CLIENT = "10.78.2.2"
PORT = 4433
RATE = "50mbit"
PEP_ID = 7
KEY = "5e" * 32


class Network(Hosts):
    def __init__(self):
        super().__init__("server", "router", "client")
        self.server, self.router, self.client = self.all

    def make(self) -> None:
        connect(self.server, SERVER, self.router, "10.78.1.2")
        connect(self.router, "10.78.2.1", self.client, CLIENT)
        for host, device, address in (
            (self.server, "to-router", SERVER_IPV6),
            (self.router, "to-server", "fd78:1::2"),
            (self.router, "to-client", "fd78:2::1"),
            (self.client, "to-router", "fd78:2::2"),
        ):
            host.ip("-6", "address", "add", f"{address}/64", "dev", device, "nodad")
            # A link between machines carries single packets.
            off = ("tso", "off", "gso", "off", "gro", "off", "tx-udp-segmentation", "off")
            checked(*host.inside("ethtool", "-K", device, *off))
        for host, first in ((self.server, 1), (self.client, 2)):
            # A busy machine holds packets up for longer than Linux waits before it sends them again, 200 ms.
            patient = ("rto_min", "5s")
            host.ip("route", "add", "default", "via", f"10.78.{first}.{3 - first}", *patient)
            host.ip("-6", "route", "add", "default", "via", f"fd78:{first}::{3 - first}", *patient)
        # A window of 80 ms, so that the queue does not grow for seconds.
        self.client.set("net.ipv4.tcp_rmem", "4096 131072 1000000")
        for setting in ("ipv4.ip_forward", "ipv6.conf.all.forwarding"):
            self.router.set(f"net.{setting}", 1)
        shape(self.router, "to-client", RATE, "limit", "50mb")

    def counters(self, host: Host) -> dict[str, int]:
        """Returns what the host's kernel has counted."""
        return json.loads(checked(*host.inside("nstat", "-aszj")))["kernel"]

    def overflows(self, host: Host) -> int:
        """Returns how many UDP packets came when their program's buffer was full, as on a busy machine."""
        counters = self.counters(host)
        return sum(counters.get(f"{udp}RcvbufErrors", 0) for udp in ("Udp", "Udp6"))

    def counted(self, host: Host, name: str) -> int:
        """Returns the packets of a named counter."""
        text = checked(*host.inside("nft", "list", "counter", "inet", "pep", name))
        return int(re.search(r"packets (\d+)", text)[1])


class Pep:
    """A running `tandem pep` on the router. `bounded` is a command that bounds its privileges."""

    def __init__(
        self,
        lab: Lab,
        network: Network,
        *options: str,
        server: str = "",
        bounded: tuple[str, ...] = (),
    ):
        keys = keys_of(lab)
        servers = ("--server", server) if server else ("--server", SERVER, "--server", SERVER_IPV6)
        command = (TANDEM, "pep", "--device", "to-server", "--key-file", keys, *servers)
        command = (*bounded, *command, "--json", *options)
        self.process: Process = lab.start("pep", *network.router.inside(*command))
        self.process.wait_for("ready: PEP")

    def end(self) -> dict[str, int]:
        """Ends it, and returns its counters."""
        self.process.stop()
        code = self.process.popen.returncode
        if code != 0:
            raise Failure(f"the PEP ended with {code}: {self.process.text()[-300:]}")
        return json.loads(re.search(r"^\{.*\}$", self.process.text(), re.MULTILINE)[0])


def keys_of(lab: Lab) -> Path:
    """Returns the file that both the PEP and the origin read."""
    file = lab.logs / "peps"
    if not file.exists():
        file.touch(mode=0o600)
        file.write_text(f"{PEP_ID} {KEY}\n")
    return file
