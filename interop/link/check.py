"""Checks `tandem lab link`. Each check has its own processes and prints one line."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from functools import wraps
from pathlib import Path

import checks
from checks import expect

TANDEM = os.environ["TANDEM"]
HOSTS = Path(__file__).parent / "hosts.py"
NEAR, FAR = f"n{os.getpid()}", f"f{os.getpid()}"  # these names of namespaces are unique
FAR_ADDRESS = "10.77.0.2"
TIMEOUT = 60  # seconds that any process may take for each step
PACKETS = 20_000


class Link:
    """A running `tandem lab link`."""

    def __init__(self, log: Path, *flags: str):
        self.log = log
        # With a realtime priority it takes packets in time, also on a busy machine.
        link = [TANDEM, "lab", "link", "--near", NEAR, "--far", FAR, *flags]
        command = ["chrt", "--fifo", "1", *link]
        with log.open("w") as stderr:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr
            )

    def wait_until_ready(self) -> str:
        """Waits until the link is ready, and returns its output up to then."""
        deadline = time.monotonic() + TIMEOUT
        while not re.search(r"^ready: ", text := self.log.read_text(), re.MULTILINE):
            expect(self.process.poll() is None, f"the link ended: {text}")
            expect(time.monotonic() < deadline, f"the link is not ready: {text}")
            time.sleep(0.02)
        return text

    def end(self) -> dict:
        """Ends the link and returns its counters."""
        self.process.terminate()
        stdout, _ = self.process.communicate(timeout=TIMEOUT)
        expect(self.process.returncode == 0, f"exit code {self.process.returncode}")
        counters = json.loads(stdout)
        for direction in (counters["to_target"], counters["to_client"]):
            into = direction["entered_packets"] + direction["duplicated_packets"]
            out = sum(
                value
                for key, value in direction.items()
                if re.fullmatch(r"(delivered|held|dropped_\w+)_packets", key)
            )
            expect(into == out, f"{into} packets entered, {out} are accounted for: {direction}")
        for end in (counters["near"], counters["far"]):
            expect(not any(end.values()), f"packets were lost outside the link: {end}")
        return counters

    def kill(self) -> None:
        """Ends the link so that it cannot remove its namespaces."""
        self.process.kill()
        self.process.communicate()


@contextmanager
def link(folder: Path, *flags: str):
    """Runs a link, which is ready when the context begins and has ended when it is left."""
    running = Link(folder / "link.log", *flags)
    try:
        running.wait_until_ready()
        yield running
    finally:
        if running.process.poll() is None:
            running.kill()


def with_folder(check):
    """Gives a check a folder that is removed after it."""

    @wraps(check)
    def checked() -> None:
        with tempfile.TemporaryDirectory() as folder:
            check(Path(folder))

    return checked


@with_folder
def ping_passes(folder: Path) -> None:
    before = host_network()
    with link(folder, "--delay", "2ms") as running:
        expect(host_network() == before, "the host's own network has changed")
        answered = int(output(NEAR, "python3", HOSTS, "ping", FAR_ADDRESS, "20"))
        expect(answered == 20, f"{answered} of 20 echo requests were answered")
        counters = running.end()
    for direction in ("to_target", "to_client"):
        entered = counters[direction]["entered_packets"]
        expect(entered == 20, f"{direction}: {entered} packets entered; another program sends too")
    expect(not namespaces() & {NEAR, FAR}, "namespaces are left")
    expect(host_network() == before, "the host's own network has changed")


@with_folder
def loss_is_what_was_asked_for(folder: Path) -> None:
    with link(folder, "--rate", "100Mbit/s", "--delay", "5ms", "--loss", "5%") as running:
        received = received_of(PACKETS, FAR_ADDRESS)
        counters = running.end()["to_target"]
    lost = counters["dropped_loss_packets"]
    expect(counters["entered_packets"] == PACKETS, f"of {PACKETS} packets: {counters}")
    expect(counters["delivered_packets"] == received, f"{received} packets arrived: {counters}")
    expect(lost + received == PACKETS, f"{received} packets arrived, {lost} were lost")
    mean, deviation = PACKETS * 0.05, (PACKETS * 0.05 * 0.95) ** 0.5
    expect(abs(lost - mean) <= 4 * deviation, f"{lost} packets were lost, not about {mean:.0f}")


@with_folder
def ipv6_passes(folder: Path) -> None:
    with link(folder, "--network", "fd77::/64") as running:
        received = received_of(1000, "fd77::2")
        running.end()
    expect(received == 1000, f"{received} of 1000 packets arrived")


def received_of(count: int, address: str) -> int:
    """Sends `count` packets to the far end, and returns the number of those that arrived."""
    with background(FAR, "python3", HOSTS, "count", address) as receiver:
        expect(receiver.stdout.readline() == "ready\n", "the receiver did not start")
        output(NEAR, "python3", HOSTS, "send", address, str(count))
        return int(receiver.stdout.readline())


@with_folder
def a_file_passes(folder: Path) -> None:
    root, ca, file = folder / "www", folder / "ca.pem", folder / "file"
    root.mkdir()
    (root / "file").write_bytes(random.randbytes(3_000_000))
    listen = f"{FAR_ADDRESS}:4433"
    origin = ["origin", "--listen", listen, "--root", root, "--name", FAR_ADDRESS, "--write-ca", ca]
    flags = ["--rate", "50Mbit/s", "--delay", "10ms", "--loss", "1%"]
    with link(folder, *flags) as running, background(FAR, TANDEM, *origin) as server:
        expect(any("listening" in line for line in server.stderr), "the origin did not start")
        output(NEAR, TANDEM, "get", f"https://{listen}/file", "--ca", ca, "-o", file)
        counters = running.end()
    expect(file.read_bytes() == (root / "file").read_bytes(), "the received file differs")
    delivered = counters["to_client"]["delivered_bytes"]
    expect(delivered > 3_000_000, f"{delivered} bytes passed the link")
    expect(counters["to_client"]["dropped_loss_packets"] > 0, "nothing was lost")


@with_folder
def a_crash_is_tidied_up_by_the_next_start(folder: Path) -> None:
    with link(folder) as running:
        running.kill()
    expect(namespaces() >= {NEAR, FAR}, "there is nothing to tidy up")
    with link(folder) as running:
        said = running.log.read_text()
        expect(said.count("was left by an earlier run") == 2, f"it said: {said}")
        running.end()
    expect(not namespaces() & {NEAR, FAR}, "namespaces are left")


@with_folder
def a_foreign_namespace_is_kept(folder: Path) -> None:
    ip("netns", "add", NEAR)
    try:
        with link(folder) as running:
            said = running.log.read_text()
            expect(f"{NEAR} exists and was not made by tandem" in said, f"it said: {said}")
            running.end()
        expect(namespaces() & {NEAR, FAR} == {NEAR}, f"there are {namespaces()}")
        devices = ip("-n", NEAR, "-o", "link", "show", "type", "tun")
        expect(not devices, f"devices are left: {devices}")
    finally:
        ip("netns", "delete", NEAR)


@with_folder
def two_links_between_the_same_ends_are_refused(folder: Path) -> None:
    with link(folder) as running:
        second = Link(folder / "second.log")
        stdout, _ = second.process.communicate(timeout=TIMEOUT)
        said = second.log.read_text()
        expect(second.process.returncode == 1, f"exit code {second.process.returncode}: {said}")
        expect(not stdout and "another link" in said, f"it said: {said}")
        running.end()
    expect(not namespaces() & {NEAR, FAR}, "namespaces are left")


@with_folder
def a_device_that_is_removed_ends_it(folder: Path) -> None:
    with link(folder) as running:
        ip("-n", NEAR, "link", "delete", f"to-{FAR}")
        running.process.communicate(timeout=TIMEOUT)
        said = running.log.read_text()
        expect(running.process.returncode == 1, f"exit code {running.process.returncode}")
        expect("was a device or a namespace removed?" in said, f"it said: {said}")
    expect(not namespaces() & {NEAR, FAR}, "namespaces are left")


CHECKS = [
    ping_passes,
    loss_is_what_was_asked_for,
    ipv6_passes,
    a_file_passes,
    a_crash_is_tidied_up_by_the_next_start,
    a_foreign_namespace_is_kept,
    two_links_between_the_same_ends_are_refused,
    a_device_that_is_removed_ends_it,
]


def ip(*words: str) -> str:
    result = subprocess.run(
        ["ip", *words], capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    expect(result.returncode == 0, f"ip {' '.join(words)}: {result.stderr}")
    return result.stdout


def namespaces() -> set[str]:
    return {line.split()[0] for line in ip("netns", "list").splitlines()}


def host_network() -> list[str]:
    """Returns the devices, addresses and routes of this host."""
    links = re.sub(r"qlen \d+", "", ip("-o", "link"))
    return [links, ip("-br", "address"), ip("route"), ip("-6", "route")]


def output(netns: str, *command) -> str:
    """Runs a program in a namespace to its end, and returns its output."""
    result = subprocess.run(
        ["ip", "netns", "exec", netns, *command],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    expect(result.returncode == 0, f"{command[:2]} failed: {result.stderr[-500:]}")
    return result.stdout


@contextmanager
def background(netns: str, *command):
    """Runs a program in a namespace, which has ended when the context is left."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(["ip", "netns", "exec", netns, *command], **pipes)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.communicate(timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def left() -> str | None:
    """Removes the namespaces that are left, and names them."""
    names = namespaces() & {NEAR, FAR}
    for namespace in names:
        ip("netns", "delete", namespace)
    return f"{', '.join(names)} is left" if names else None


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # this also ends the running processes
    checks.main(CHECKS, left)
