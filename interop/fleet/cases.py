"""The cases: what happens to downloads when clients move and machines come and go."""

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from files import CA, CERT, KEY, LARGE, ROOT, sha256
from fleet.network import MACHINES, ORIGIN, PORT, SERVICE, Network, address
from namespaces import checked
from processes import Failure, Lab, Process, wait
from servers import TANDEM

DOWNLOADS = 8  # at the same time, so that each machine surely has some
ORIGIN_PORT = 4433


@dataclass(frozen=True)
class Case:
    """A check in a network of its own."""

    name: str
    check: Callable[["Fleet"], str]  # says what it measured

    def __str__(self) -> str:
        return self.name

    def run(self, lab: Lab) -> str:
        with Network() as network:
            return self.check(Fleet(lab, network))


class Fleet:
    """The running proxies, an origin, and clients of the service."""

    def __init__(self, lab: Lab, network: Network):
        self.lab, self.network = lab, network
        self.file = lab.logs / "fleet.toml"
        self.file.touch(mode=0o600)
        # Rules of nftables cannot decrypt.
        machines = [f"--machine={machine:04x}={address(machine)}:{PORT}" for machine in MACHINES]
        self.file.write_text(checked(TANDEM, "generate", "fleet", "--visible", *machines))
        origin = ("origin", "--listen", f"{ORIGIN}:{ORIGIN_PORT}", "--root", ROOT)
        self.start("origin", network.origin, *origin)
        self.proxies: dict[int, Process] = {}

    def start(self, name: str, host, *command) -> Process:
        command = (TANDEM, *command, "--cert", CERT, "--key", KEY)
        process = self.lab.start(name, *host.inside(*command))
        process.wait_for("listening on")
        return process

    def run_proxies(self, *machines: int) -> None:
        for machine in machines:
            own = ("--fleet-file", self.file, "--server-id", f"{machine:04x}", "--threads", "2")
            open_to = ("--allow-anyone", "--allow-target", f"{ORIGIN}/32", "--log-clients")
            command = ("proxy", "--listen", f"0.0.0.0:{PORT}", *own, *open_to)
            self.proxies[machine] = self.start(f"proxy{machine}", self.network.machines[machine], *command)

    def flows(self, machine: int) -> int:
        """Returns how many flows the machine has opened so far."""
        return self.proxies[machine].text().count("flow opened")

    def expect_flows(self, *machines: int) -> None:
        without = [machine for machine in machines if self.flows(machine) == 0]
        if without:
            raise Failure(f"machines without flows: {without}")

    def download(self, number: int) -> "Download":
        file = self.lab.logs / f"file{number}"
        via = ("--via", f"https://{SERVICE}:{PORT}", "--ca", CA, "--retry", "20s", "--json")
        url = f"https://{ORIGIN}:{ORIGIN_PORT}/{LARGE}"
        command = (TANDEM, "get", url, *via, "-o", file)
        return Download(self.lab.start(f"get{number}", *self.network.client.inside(*command)), file)

    def downloads(self, numbers: range = range(DOWNLOADS)) -> list["Download"]:
        """Starts downloads, and returns when all of them have begun."""
        downloads = [self.download(number) for number in numbers]
        for download in downloads:
            download.wait_until_begun()
        return downloads


@dataclass(frozen=True)
class Download:
    process: Process
    file: Path

    def wait_until_begun(self) -> None:
        part = self.file.with_name(f"{self.file.name}.tandem-part")
        deadline = time.monotonic() + 20
        while not (part.exists() and part.stat().st_size > 0):
            if self.process.popen.poll() is not None or time.monotonic() > deadline:
                raise Failure(f"{self.process.log.stem} did not begin: {self.process.text()[-300:]}")
            time.sleep(0.01)

    def is_over(self) -> bool:
        return self.process.popen.poll() is not None

    def finish(self) -> dict:
        """Waits for the end, compares the file, and returns the result."""
        code = self.process.popen.wait(90)
        if code != 0:
            raise Failure(f"{self.process.log.stem}: exit code {code}: {self.process.text()[-300:]}")
        if sha256(self.file) != sha256(ROOT / LARGE):
            raise Failure(f"{self.process.log.stem}: another file came")
        return json.loads(re.search(r"^\{.*\}$", self.process.text(), re.MULTILINE)[0])


def finish(downloads: list[Download]) -> list[dict]:
    return [download.finish() for download in downloads]


def all_run(downloads: list[Download]) -> None:
    over = [download.process.log.stem for download in downloads if download.is_over()]
    if over:
        raise Failure(f"these had ended before: {over}")


def clients_move(fleet: Fleet) -> str:
    fleet.run_proxies(1, 2)
    fleet.network.balance(known=(1, 2), new=(1, 2))
    downloads = fleet.downloads()
    all_run(downloads)
    fleet.network.move_client()
    results = finish(downloads)
    fleet.expect_flows(1, 2)
    flows = [fleet.flows(machine) for machine in (1, 2)]
    if sum(flows) != DOWNLOADS:
        raise Failure(f"tunnels were built again: {flows} flows for {DOWNLOADS} downloads")
    return f"{len(results)} downloads stayed with their machines: {flows}"


def a_machine_drains_and_another_joins(fleet: Fleet) -> str:
    fleet.run_proxies(1, 2)
    fleet.network.balance(known=(1, 2), new=(1, 2))
    downloads = fleet.downloads()
    all_run(downloads)
    fleet.run_proxies(3)
    fleet.network.balance(known=MACHINES, new=(2, 3))
    fleet.proxies[1].popen.terminate()
    later = fleet.downloads(range(DOWNLOADS, DOWNLOADS + 4))
    finish(downloads + later)
    fleet.expect_flows(1, 2, 3)
    return f"flows of the machines: {[fleet.flows(machine) for machine in MACHINES]}"


def a_machine_dies(fleet: Fleet) -> str:
    fleet.run_proxies(1, 2)
    fleet.network.balance(known=(1, 2), new=(1, 2))
    began = time.monotonic()
    downloads = fleet.downloads()
    to_begin = time.monotonic() - began
    all_run(downloads)
    fleet.expect_flows(1, 2)
    lost, before = fleet.flows(1), fleet.flows(2)
    fleet.proxies[1].popen.kill()
    died = time.monotonic()
    fleet.network.balance(known=(2,), new=(2,))
    # The other machine resets the connections that it does not know, so that no client waits for a timeout.
    wait(lambda: fleet.flows(2) == before + lost, "new flow for each lost one", 20)
    took = time.monotonic() - died
    finish(downloads)
    reset = sum(download.process.text().count("reset by peer") for download in downloads)
    if reset != lost:
        raise Failure(f"{reset} of the {lost} connections with the machine were reset")
    # After 0.9 s the other machine knows that this one is gone, by its timers. What follows is as slow as the downloads
    # were to begin, on a busy host.
    if took > max(2, 1 + to_begin):
        times = f"went on after {took:.1f} s, and had begun in {to_begin:.1f} s"
        raise Failure(f"the {lost} downloads of the machine {times}")
    return f"{lost} downloads went on through the other machine after {took:.2f} s"


def a_balancer_errs(fleet: Fleet) -> str:
    fleet.run_proxies(1, 2)
    fleet.network.balance(known=(1, 2), new=(1, 2))
    downloads = fleet.downloads()
    all_run(downloads)
    fleet.expect_flows(1, 2)
    # A machine that is there keeps its connections, whatever the other one gets of their packets.
    fleet.network.balance(known=(2,), new=(2,))
    time.sleep(3)
    fleet.network.balance(known=(1, 2), new=(1, 2))
    finish(downloads)
    flows = [fleet.flows(machine) for machine in (1, 2)]
    if sum(flows) != DOWNLOADS:
        raise Failure(f"connections were reset: {flows} flows for {DOWNLOADS} downloads")
    return f"{len(downloads)} downloads went on after 3 s in which the other machine got all packets: {flows}"


CASES = [
    Case("clients move to another address in the middle of downloads", clients_move),
    Case("a machine drains and another one joins in the middle of downloads", a_machine_drains_and_another_joins),
    Case("a machine dies in the middle of downloads", a_machine_dies),
    Case("a load balancer gives the packets of a machine that is there to another", a_balancer_errs),
]
