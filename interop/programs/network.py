"""Three hosts in a row: home, proxy and far. The links between them have an MTU of 1500 bytes, and
the one at home has a rate, as an Internet access has."""

import os
import subprocess
from dataclasses import dataclass

from processes import Failure

RATE = 50_000_000  # bit/s of the link between home and proxy
PROXY_ADDRESS, FAR_ADDRESS = "10.79.1.2", "10.79.2.2"


@dataclass(frozen=True)
class Host:
    """A network namespace."""

    namespace: str

    def inside(self, *command) -> tuple:
        """Returns the command that runs this command on the host."""
        return ("ip", "netns", "exec", self.namespace, *command)

    def ip(self, *words: str) -> str:
        return ip("-n", self.namespace, *words)


class Network:
    """The hosts exist while the context is open. They can reach their neighbours only, so that
    whatever passes between home and far went through the proxy."""

    def __init__(self):
        names = (f"{name}{os.getpid()}" for name in ("home", "proxy", "far"))
        self.home, self.proxy, self.far = (Host(name) for name in names)
        self.made: list[Host] = []

    def __enter__(self):
        try:
            self.make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for host in self.made:
            ip("netns", "delete", host.namespace)

    def make(self) -> None:
        for host in (self.home, self.proxy, self.far):
            ip("netns", "add", host.namespace)
            self.made.append(host)
            host.ip("link", "set", "lo", "up")
        connect(self.home, "10.79.1.1", self.proxy, PROXY_ADDRESS)
        connect(self.proxy, "10.79.2.1", self.far, FAR_ADDRESS)
        for host, device in ((self.home, "to-proxy"), (self.proxy, "to-home")):
            shape(host, device)


def connect(left: Host, left_address: str, right: Host, right_address: str) -> None:
    """Connects two hosts by a pair of devices, each with the name of the other end."""
    left_device, right_device = device_to(right), device_to(left)
    peer = ("peer", "name", right_device, "netns", right.namespace)
    left.ip("link", "add", left_device, "type", "veth", *peer)
    for host, device, address in (
        (left, left_device, left_address),
        (right, right_device, right_address),
    ):
        host.ip("address", "add", f"{address}/24", "dev", device)
        host.ip("link", "set", device, "up", "mtu", "1500")
        receive_in_order(host, device)


def receive_in_order(host: Host, device: str) -> None:
    """Lets one processor handle all packets that a device receives. Packets otherwise wait at the processor on which
    their sender ran, and overtake each other if one of the processors is held up."""
    processors = f"/sys/class/net/{device}/queues/rx-0/rps_cpus"
    checked(*host.inside("sh", "-c", f"echo 1 > {processors}"))


def device_to(host: Host) -> str:
    return "to-" + host.namespace.rstrip("0123456789")


def shape(host: Host, device: str) -> None:
    """Limits what leaves through the device to the rate, with a queue of 50 ms."""
    bucket = ("tbf", "rate", f"{RATE}bit", "burst", "16kb", "latency", "50ms")
    checked("tc", "-n", host.namespace, "qdisc", "add", "dev", device, "root", *bucket)


def ip(*words: str) -> str:
    return checked("ip", *words)


def checked(*command: str) -> str:
    """Runs a program that ends at once, and returns its output."""
    result = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    if result.returncode != 0:
        raise Failure(f"{' '.join(command)}: {result.stderr.strip()}")
    return result.stdout
