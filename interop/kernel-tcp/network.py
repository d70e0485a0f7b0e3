"""A server, a router with a PEP and a client in network namespaces, with emulated links between them."""

import json
import os
import re
import signal
import subprocess
import tempfile
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from checks import expect

TANDEM, PROGRAMS = os.environ["TANDEM"], Path(os.environ["PROGRAMS"])
CONTROL = "tandem_mdcc"
SERVER, ROUTER, CLIENT = (f"{name}{os.getpid()}" for name in "src")  # unique names
PEP_ID = 42
TIMEOUT = 60  # seconds that any process may take for each step


def output(*command, timeout: float = TIMEOUT) -> str:
    """Runs a program to its end, and returns its output."""
    result = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, timeout=timeout, check=False
    )
    said = result.stderr[-500:] or result.stdout[-500:]
    expect(result.returncode == 0, f"{command[:4]} failed: {said}")
    return result.stdout


def inside(netns: str, *command) -> list:
    return ["ip", "netns", "exec", netns, *command]


def start(*command) -> subprocess.Popen:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, **pipes)


@contextmanager
def running(*command):
    """Runs a program that says when it is ready, and ends it when the context is left."""
    process = start(*command)
    try:
        said = ""
        while "ready" not in said:
            line = process.stderr.readline()
            expect(line != "", f"{command[:6]} ended: {said}")
            said += line
        yield process
    finally:
        end(process)


def end(process: subprocess.Popen) -> str:
    """Ends a program with SIGTERM if it still runs, and returns the rest of its output."""
    if process.stdout.closed:
        return ""
    if process.poll() is None:
        process.terminate()
    try:
        return process.communicate(timeout=TIMEOUT)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        return process.communicate()[0]


@dataclass
class Path3:
    """What lies between the server and the client. `wired` and `access` are flags of `tandem lab link`."""

    wired: list = field(default_factory=list)
    access: list = field(default_factory=list)
    ipv6: bool = False

    DELAYS = ("--delay", "5ms")


@dataclass
class Result:
    """What a transfer has shown."""

    goodput: float  # Mbit/s
    sent_again: int  # segments
    rtt: float  # ms, on average
    wired: dict  # counters of the link, in the direction of the data
    access: dict


class Network:
    """The three hosts. It exists while the context is entered."""

    def __init__(self, path: Path3):
        self.path = path
        network = ("fd7{}::/64", "fd7{}::{}") if path.ipv6 else ("10.7{}.0.0/30", "10.7{}.0.{}")
        self.networks = [network[0].format(number) for number in (8, 9)]
        self.server, self.router, self.router_to_client, self.client = (
            network[1].format(number, host) for number in (8, 9) for host in (1, 2)
        )
        self.stack = ExitStack()
        self.folder = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))

    def __enter__(self):
        try:
            self.wired = self.link(SERVER, ROUTER, self.networks[0], self.path.wired)
            self.access = self.link(ROUTER, CLIENT, self.networks[1], self.path.access)
            forwarding = ["net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"]
            output(*inside(ROUTER, "sysctl", "-qw", *forwarding))
            for netns, to, via in [
                (SERVER, self.networks[1], self.router),
                (CLIENT, self.networks[0], self.router_to_client),
            ]:
                output("ip", "-n", netns, "route", "add", to, "via", via)
            self.own_pep = self.new_pep("pep")
        except BaseException:
            self.stack.close()
            raise
        return self

    def __exit__(self, *_):
        self.stack.close()

    def link(self, near: str, far: str, network: str, flags: list) -> subprocess.Popen:
        link = [TANDEM, "lab", "link", "--near", near, "--far", far, "--network", network]
        command = ["chrt", "--fifo", "1", *link, *Path3.DELAYS, *flags]
        return self.stack.enter_context(running(*command))

    def new_pep(self, name: str, pep_id: int = PEP_ID) -> Path:
        """Writes a file with a PEP that has a key of its own."""
        file = self.folder / name
        file.write_text(f"{pep_id} {os.urandom(32).hex()}\n")
        return file

    def loader(self):
        """Runs the loader in the server."""
        program = [PROGRAMS / "tandem-mdcc", "--device", f"to-{ROUTER}"]
        return running(*inside(SERVER, *program, "--pep", self.own_pep, "--json"))

    def pep(self, pep: Path | None = None):
        """Runs a PEP in the router. Another one than that of the server is a forger."""
        program = [PROGRAMS / "pep-for-tests", "--server", self.server]
        command = inside(ROUTER, *program, "--pep", pep or self.own_pep)
        return running("chrt", "--fifo", "1", *command)

    @contextmanager
    def transfer(self, control: str, seconds: int, port: int = 5201):
        """Sends from the server to the client while the context is entered."""
        listen = inside(CLIENT, "iperf3", "-s", "-1", "-p", port)
        receiver = start(*listen)
        try:
            self.wait_for_port(port)
            send = ["iperf3", "-c", self.client, "-C", control, "-t", seconds, "-J", "-p", port]
            sender = start(*inside(SERVER, *send))
            try:
                yield sender
            finally:
                end(sender)
        finally:
            end(receiver)

    def wait_for_port(self, port: int) -> None:
        deadline = time.monotonic() + TIMEOUT
        while f":{port}" not in output(*inside(CLIENT, "ss", "-Hltn")):
            expect(time.monotonic() < deadline, "iperf3 does not listen")
            time.sleep(0.02)

    def finish(self, sender: subprocess.Popen, control: str) -> tuple[float, int, float]:
        """Waits for the end of a transfer. Returns Mbit/s, segments that were sent again, and the RTT in ms."""
        report = json.loads(sender.communicate(timeout=TIMEOUT)[0])
        expect("error" not in report, f"iperf3: {report.get('error')}")
        used = report["end"]["sender_tcp_congestion"]
        expect(used == control, f"the congestion control was {used}")
        sent = report["end"]["streams"][0]["sender"]
        goodput = report["end"]["sum_received"]["bits_per_second"] / 1e6
        return goodput, sent["retransmits"], sent["mean_rtt"] / 1e3

    def run(self, control: str, seconds: int) -> Result:
        """Sends for this time. The links have ended after it, since they count at their end."""
        with self.transfer(control, seconds) as sender:
            measured = self.finish(sender, control)
        return Result(*measured, *self.counters())

    def counters(self) -> tuple[dict, dict]:
        """Ends the links. Returns what they have counted in the direction of the data."""
        access, wired = (json.loads(end(link)) for link in (self.access, self.wired))
        for link in (access, wired):
            lost = [link[end] for end in ("near", "far")]
            missed = sum(side["missed_packets"] for side in lost)
            expect(not missed, f"the links have missed {missed} packets: this machine is too busy")
        return wired["to_target"], access["to_target"]


def dropped(link: dict) -> int:
    """The packets that a link has dropped."""
    return sum(count for key, count in link.items() if re.fullmatch(r"dropped_\w+_packets", key))


def controls() -> list[str]:
    return Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split()


def loaded_programs() -> list[dict]:
    """The BPF programs of this package that the kernel has."""
    programs = json.loads(output("bpftool", "prog", "show", "-j"))
    ours = re.compile(r"mdcc_|tandem_pep_in")
    return [program for program in programs if ours.match(program.get("name", ""))]


def counted(loader: subprocess.Popen) -> dict:
    """Ends the loader, and returns its counters."""
    loader.send_signal(signal.SIGINT)
    stdout, stderr = loader.communicate(timeout=TIMEOUT)
    expect(loader.returncode == 0, f"the loader's exit code is {loader.returncode}: {stderr}")
    return json.loads(stdout)
