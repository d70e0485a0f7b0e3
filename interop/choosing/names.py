"""A name server with one zone, and the clients' configuration that names it."""

from pathlib import Path

import knot
from fleet.network import Network, address
from processes import Lab, Process

SERVER = "10.66.9.1"  # the router, as the client sees it
ZONE = "proxy.test"

RECORDS = f"""
ns A {SERVER}
relay A {SERVER}
machine1 A {address(1)}
machine2 A {address(2)}
machine3 A {address(3)}
"""


class Names:
    """The configuration exists while the context is open."""

    def __init__(self, lab: Lab, network: Network):
        self.lab, self.network = lab, network
        self.configuration = Path("/etc/netns") / network.client.namespace

    def __enter__(self):
        # `ip netns exec` shows a program these files as those in /etc.
        self.configuration.mkdir(parents=True)
        self.use(SERVER)
        return self

    def __exit__(self, *_):
        (self.configuration / "resolv.conf").unlink(missing_ok=True)
        self.configuration.rmdir()

    def use(self, server: str) -> None:
        (self.configuration / "resolv.conf").write_text(f"nameserver {server}\n")

    def serve(self, records: str) -> Process:
        folder = self.lab.logs / "knot"
        folder.mkdir()
        command = knot.configure(folder, SERVER, f"{ZONE}.", RECORDS + records)
        process = self.lab.start("knot", *self.network.balancer.inside(*command))
        process.wait_for("server started")
        return process
