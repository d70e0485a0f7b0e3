"""Hosts that are network namespaces, and what connects them. All of this needs root."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from processes import Failure


@dataclass(frozen=True)
class Host:
    """A network namespace."""

    namespace: str

    def inside(self, *command) -> tuple:
        """Returns the command that runs this command on the host."""
        return ("ip", "netns", "exec", self.namespace, *command)

    def ip(self, *words: str) -> str:
        return ip("-n", self.namespace, *words)

    def set(self, name: str, value: int | str) -> None:
        """Sets a parameter of the host's kernel."""
        checked(*self.inside("sysctl", "-qw", f"{name}={value}"))

    def rules(self, rules: str) -> None:
        """Gives the host rules of nftables."""
        file = Path(f"/tmp/{self.namespace}.nft")
        file.write_text(rules)
        try:
            checked(*self.inside("nft", "-f", str(file)))
        finally:
            file.unlink()


class Hosts:
    """Hosts that exist while the context is open. Subclasses connect them in `make`."""

    def __init__(self, *names: str):
        self.all = [Host(f"{name}{os.getpid()}") for name in names]
        self.made: list[Host] = []

    def __enter__(self):
        try:
            for host in self.all:
                ip("netns", "add", host.namespace)
                self.made.append(host)
                host.ip("link", "set", "lo", "up")
            self.make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for host in self.made:
            ip("netns", "delete", host.namespace)

    def make(self) -> None:
        raise NotImplementedError


def connect(left: Host, left_address: str, right: Host, right_address: str) -> None:
    """Connects two hosts by a pair of devices with an MTU of 1500 bytes, each with the name of the other end."""
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


def shape(host: Host, device: str, rate: str, *bound: str) -> None:
    """Limits what leaves through the device to the rate. `bound` is that of the queue, such as `latency 50ms`."""
    bucket = ("tbf", "rate", rate, "burst", "16kb", *bound)
    checked("tc", "-n", host.namespace, "qdisc", "add", "dev", device, "root", *bucket)


def ip(*words: str) -> str:
    return checked("ip", *words)


def checked(*command: str) -> str:
    """Runs a program that ends at once, and returns its output."""
    result = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    if result.returncode != 0:
        raise Failure(f"{' '.join(command)}: {result.stderr.strip()}")
    return result.stdout
