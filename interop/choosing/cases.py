"""The cases: which proxy a client uses, and what happens to downloads when proxies come and go."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from choosing import ech
from choosing.names import ZONE, Names
from files import CA, CERT, KEY, LARGE, PAGE, ROOT
from fleet.cases import Download
from fleet.network import MACHINES, ORIGIN, Network, address
from processes import Failure, Lab, Process, last_line, wait
from servers import TANDEM

ORIGIN_PORT, PORT, RELAY_PORT = 4433, 443, 4000
NEAR, MIDDLE, FAR = 2, 1, 3
# One-way delays between the client and the proxies that are not near. They are longer than a busy machine takes for a handshake.
RELAYS = {MIDDLE: "100ms", FAR: "150ms"}

# Three servers of one priority, the near one in the middle. Two of them are behind relays at the router, at ports of their own.
ALL = f"""
@ HTTPS 1 relay alpn=h3 port={RELAY_PORT + MIDDLE} ipv4hint=10.66.9.1
@ HTTPS 1 machine2 alpn=h2,h3
@ HTTPS 1 relay alpn=h3 port={RELAY_PORT + FAR}
"""


@dataclass(frozen=True)
class Case:
    """A check in a network of its own."""

    name: str
    check: Callable[["Bed"], str]  # says what it measured
    records: str | None = None  # without records, no name server runs

    def __str__(self) -> str:
        return self.name

    def run(self, lab: Lab) -> str:
        with Network() as network, Names(lab, network) as names:
            bed = Bed(lab, network, names)
            if self.records is not None:
                names.serve(self.records)
            return self.check(bed)


class Bed:
    """Three proxies, of which two are far, an origin, and clients."""

    def __init__(self, lab: Lab, network: Network, names: Names):
        self.lab, self.network, self.names = lab, network, names
        origin = ("origin", "--listen", f"{ORIGIN}:{ORIGIN_PORT}", "--root", ROOT)
        self.start("origin", network.origin, *origin, "--cert", CERT, "--key", KEY)
        self.proxies = {machine: self.run_proxy(machine) for machine in MACHINES}
        for machine, delay in RELAYS.items():
            listen = ("--listen", f"10.66.9.1:{RELAY_PORT + machine}", "--to", f"{address(machine)}:{PORT}")
            self.start(f"relay{machine}", network.balancer, "lab", "relay", *listen, "--delay", delay)

    def start(self, name: str, host, *command) -> Process:
        process = self.lab.start(name, *host.inside(TANDEM, *command))
        process.wait_for("listening on")
        return process

    def run_proxy(self, machine: int) -> Process:
        open_to = ("--allow-anyone", "--allow-target", f"{ORIGIN}/32", "--drain", "5s")
        command = ("proxy", "--listen", f"0.0.0.0:{PORT}", *open_to, "--cert", CERT, "--key", KEY)
        return self.start(f"proxy{machine}", self.network.machines[machine], *command)

    def flows(self) -> list[int]:
        """Returns how many flows each machine has opened so far."""
        return [self.proxies[machine].text().count("flow opened") for machine in MACHINES]

    def expect_flows(self, *expected: int) -> None:
        if self.flows() != list(expected):
            raise Failure(f"flows of the machines: {self.flows()}, not {list(expected)}")

    def get(self, file: str, *via: str, expect: int = 0) -> str:
        """Fetches a file, and returns what the client said."""
        url = f"https://{ORIGIN}:{ORIGIN_PORT}/{file}"
        command = (TANDEM, "-v", "get", url, *self.via(*via), "-o", self.lab.logs / "file")
        return self.lab.run("get", *self.network.client.inside(*command), expect=expect).read_text()

    @staticmethod
    def via(*via: str) -> tuple:
        return ("--via", ",".join(via or (f"https://{ZONE}",)), "--ca", CA)

    def download(self, *via: str) -> Download:
        file = self.lab.logs / "file"
        url = f"https://{ORIGIN}:{ORIGIN_PORT}/{LARGE}"
        command = (TANDEM, "-v", "get", url, *self.via(*via), "--json", "-o", file)
        download = Download(self.lab.start("get", *self.network.client.inside(*command)), file)
        download.wait_until_begun()
        return download

    def cut(self, machine: int) -> None:
        """Takes a machine off the network, so that nothing answers for it, not even with ICMP."""
        self.network.balancer.rules(f"""
            table ip cut {{
                chain any {{
                    type filter hook prerouting priority raw
                    ip daddr {address(machine)} drop
                    ip saddr {address(machine)} drop
                }}
            }}""")

    def moves(self, download: Download, before: list[int]) -> str:
        """Waits until the download uses another machine and completes."""
        began = time.monotonic()
        wait(lambda: self.flows() != before, "flow through another machine", 20)
        took = time.monotonic() - began
        if download.is_over():
            raise Failure("the download had ended before")
        download.finish()
        return f"went on after {took:.2f} s; flows: {self.flows()}"


def the_nearest_is_used(bed: Bed) -> str:
    for _ in range(5):
        text = bed.get(PAGE)
    bed.expect_flows(0, 5, 0)
    return last_line(next(line for line in text.splitlines() if "nearest" in line))


def the_nearest_of_a_list_is_used(bed: Bed) -> str:
    bed.get(PAGE, f"https://{ZONE}:{RELAY_PORT + MIDDLE}", f"https://{ZONE}", f"https://{ZONE}:{RELAY_PORT + FAR}")
    bed.expect_flows(0, 1, 0)
    return "by three ports of one name"


def a_smaller_priority_is_used(bed: Bed) -> str:
    bed.get(PAGE)
    bed.expect_flows(0, 0, 1)
    bed.cut(FAR)
    start = time.monotonic()
    bed.get(PAGE)
    bed.expect_flows(0, 1, 1)
    return f"the far one; without it the near one, in {time.monotonic() - start:.2f} s"


def a_proxy_drains(bed: Bed) -> str:
    download, before = bed.download(), bed.flows()
    bed.proxies[NEAR].popen.terminate()
    return bed.moves(download, before)


def a_proxy_dies(bed: Bed) -> str:
    download, before = bed.download(), bed.flows()
    bed.proxies[NEAR].popen.kill()  # its host says with ICMP that the port is closed
    return bed.moves(download, before)


def a_proxy_falls_silent(bed: Bed) -> str:
    download, before = bed.download(), bed.flows()
    bed.cut(NEAR)
    return bed.moves(download, before)


def only_addresses_are_used(bed: Bed) -> str:
    start = time.monotonic()
    bed.get(PAGE)
    bed.expect_flows(0, 1, 0)
    return f"in {time.monotonic() - start:.2f} s"


def nobody_answers(bed: Bed) -> str:
    bed.names.use("10.66.9.77")
    start = time.monotonic()
    text = bed.get(PAGE, expect=1)
    took = time.monotonic() - start
    if "no name server answered" not in text or took > 15:
        raise Failure(f"after {took:.1f} s: {last_line(text)}")
    return f"after {took:.1f} s: {last_line(text)}"


def own_address(records: str) -> str:
    """Records beside the address of the near machine."""
    return f"@ A {address(NEAR)}\n{records}"


MANY = "\n".join(f"@ HTTPS {number} t{number} alpn=h3 port=9" for number in range(1, 301))
BAD = {
    "with an alias that leads back to itself": "@ HTTPS 0 loop\nloop HTTPS 0 loop2\nloop2 HTTPS 0 loop",
    "that is said not to exist": "@ HTTPS 0 .",
    "with a port of 0": "@ HTTPS 1 machine1 alpn=h3 port=0",
    "with a mandatory key that nobody knows": "@ HTTPS 1 machine1 alpn=h3 mandatory=key65000 key65000=x",
    "without h3": "@ HTTPS 1 machine1 alpn=h2 no-default-alpn",
    "with 300 records of machines that do not exist": MANY,
    "without records": "",
}

CASES = [
    Case("the nearest proxy of a name is used", the_nearest_is_used, ALL),
    Case("the nearest proxy behind an alias is used", the_nearest_is_used, ALL.replace("@", "pool") + "\n@ HTTPS 0 pool"),
    Case(
        "the nearest proxy of a list is used",
        the_nearest_of_a_list_is_used,
        f"_{RELAY_PORT + MIDDLE}._https HTTPS 1 relay alpn=h3\n"
        f"@ A {address(NEAR)}\n"
        f"_{RELAY_PORT + FAR}._https HTTPS 1 relay alpn=h3",
    ),
    Case(
        "a proxy with a smaller priority is used, and another if it is dead",
        a_smaller_priority_is_used,
        "@ HTTPS 1 machine3 alpn=h3\n@ HTTPS 2 machine2 alpn=h3",
    ),
    Case("a proxy drains in the middle of a download", a_proxy_drains, ALL),
    Case("a proxy dies in the middle of a download", a_proxy_dies, ALL),
    Case("a proxy falls silent in the middle of a download", a_proxy_falls_silent, ALL),
    *(Case(f"a name {what} has only its address", only_addresses_are_used, own_address(records)) for what, records in BAD.items()),
    Case("a name server never answers", nobody_answers),
    Case("an origin takes an Encrypted ClientHello", ech.the_name_is_encrypted),
    Case("an origin has replaced its key for an Encrypted ClientHello", ech.a_replaced_key_is_learned),
    Case("an origin takes no Encrypted ClientHello any more", ech.a_server_without_it_is_asked_again),
]
