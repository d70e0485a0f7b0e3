"""Cases with QUIC: an origin that hears PEP-ACKs, and servers that do not know them."""

import os
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from files import BIN
from pep.network import CLIENT, PORT, SERVER, SERVER_IPV6, TANDEM, Network, Pep, keys_of
from processes import Failure, Lab, Process

LENGTH = 30_000_000  # bytes of a file, which takes 5 s
PYTHON = sys.executable
AIOQUIC_ORIGIN = Path(__file__).parent.parent / "aioquic/origin.py"
PROBE = Path(__file__).parent / "inside/probe.py"
# What a server could answer to a PEP-ACK: Version Negotiation, which has version 0, or an ICMP error.
ANSWERS = """table inet pep {
    counter versions {}
    counter errors {}
    chain output {
        type filter hook output priority 0
        udp sport 4433 @th,64,8 & 0x80 == 0x80 @th,72,32 0x0 counter name versions
        icmp type != echo-reply counter name errors
    }
}"""
Check = Callable[[Lab, Network], str]


class Files:
    """What the servers serve, and by which certificate."""

    def __init__(self, lab: Lab, length: int = LENGTH):
        self.root = lab.logs / "www"
        self.root.mkdir()
        (self.root / "file").write_bytes(os.urandom(length))
        names = ("--name", SERVER, "--name", SERVER_IPV6)
        lab.run("certificate", TANDEM, "generate", "certificate", lab.logs / "tls", *names)
        self.ca, self.cert, self.key = (
            lab.logs / "tls" / name for name in ("ca.pem", "cert.pem", "key.pem")
        )


def origin(lab: Lab, network: Network, files: Files, address: str) -> Process:
    """Starts Tandem's origin, which follows PEPs."""
    listen = f"[{address}]:{PORT}" if ":" in address else f"{address}:{PORT}"
    peps = ("--controller", "mdcc", "--peps", keys_of(lab))
    command = ("--listen", listen, "--root", files.root, "--cert", files.cert, "--key", files.key)
    process = lab.start("origin", *network.server.inside(TANDEM, "origin", *command, *peps))
    process.wait_for("listening on")
    return process


def getting(lab: Lab, network: Network, files: Files, address: str) -> Process:
    host = f"[{address}]" if ":" in address else address
    output = lab.logs / "file"
    command = (TANDEM, "get", f"https://{host}:{PORT}/file", "--ca", files.ca, "-o", output)
    return lab.start("get", *network.client.inside(*command))


def expect_file(lab: Lab, files: Files, client: Process) -> None:
    """Waits for the client's end, when it must have the whole file."""
    if client.popen.wait(60) != 0:
        raise Failure(f"the client failed: {client.text()[-300:]}")
    if (lab.logs / "file").read_bytes() != (files.root / "file").read_bytes():
        raise Failure("the file that arrived is another one")


def origin_hears(family: str) -> Check:
    def check(lab: Lab, network: Network) -> str:
        address = SERVER if family == "ipv4" else SERVER_IPV6
        files = Files(lab)
        server = origin(lab, network, files, address)
        pep = Pep(lab, network, "--user", "nobody")
        expect_file(lab, files, getting(lab, network, files, address))
        counted = pep.end()
        shown = server.wait_for(r"what a PEP on the path has shown.*").string
        line = next(line for line in shown.splitlines() if "has shown" in line)
        line = re.sub(r"\x1b\[\d*m", "", line)
        found = {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)\b", line)}
        if "authentic=true" not in line or found["pep"] != 7:
            raise Failure(f"the origin says: {line}")
        if found["pep_acks"] < 0.9 * counted["pep_acks"] or counted["pep_acks"] < 1000:
            raise Failure(f"the origin says: {line}; the PEP sent {counted['pep_acks']}")
        lost = network.overflows(network.client)
        if found["lost_wired"] or found["lost_access"] > lost:
            raise Failure(f"{lost} packets were lost at the client, but the origin says: {line}")
        return f"the origin heard {found['pep_acks']} of {counted['pep_acks']} PEP-ACKs"

    return check


def goes_on(lab: Lab, network: Network) -> str:
    files = Files(lab)
    origin(lab, network, files, SERVER)
    pep = Pep(lab, network)
    client = getting(lab, network, files, SERVER)
    time.sleep(2)
    counted = pep.end()
    if client.popen.poll() is not None:
        raise Failure("the download ended before the PEP")
    expect_file(lab, files, client)
    return f"the PEP ended after {counted['pep_acks']} PEP-ACKs"


def not_listed(lab: Lab, network: Network) -> str:
    files = Files(lab)
    server = origin(lab, network, files, SERVER)
    pep = Pep(lab, network, server=f"{SERVER}:{PORT + 1},{SERVER_IPV6},203.0.113.0/24")
    expect_file(lab, files, getting(lab, network, files, SERVER))
    counted = pep.end()
    time.sleep(0.5)
    if any(counted.values()) or "has shown" in server.text():
        raise Failure(f"the PEP counted {counted}")
    return "no packet was seen"


@dataclass(frozen=True)
class Stack:
    """A server and a client that know nothing of PEPs."""

    length: int
    serve: Callable[[Files, str], tuple]
    get: Callable[[Files, str, Path], tuple]


QUIC_GO = Stack(
    LENGTH,
    lambda files, listen: (
        (BIN / "quic-go-origin", "-root", files.root, "-cert", files.cert, "-key", files.key)
        + ("-listen", listen)
    ),
    lambda files, url, output: ("env", f"SSL_CERT_FILE={files.ca}", BIN / "quic-go-get", "-o", output, url),
)
AIOQUIC = Stack(
    8_000_000,  # it is slow
    lambda files, listen: (PYTHON, AIOQUIC_ORIGIN, files.root, files.cert, files.key, listen),
    lambda files, url, output: (PYTHON, AIOQUIC_ORIGIN.parent / "get.py", files.ca, url, output),
)


def ignores(stack: Stack) -> Check:
    def check(lab: Lab, network: Network) -> str:
        files = Files(lab, stack.length)
        server = lab.start("server", *network.server.inside(*stack.serve(files, f"{SERVER}:{PORT}")))
        server.wait_for("listening")
        network.server.rules(ANSWERS)
        pep = Pep(lab, network)
        url, output = f"https://{SERVER}:{PORT}/file", lab.logs / "file"
        get = network.client.inside(*stack.get(files, url, output))
        expect_file(lab, files, lab.start("client", *get))
        counted = pep.end()
        answers = {name: network.counted(network.server, name) for name in ("versions", "errors")}
        if any(answers.values()) or counted["pep_acks"] < 500:
            raise Failure(f"{answers} for {counted['pep_acks']} PEP-ACKs")
        # Whoever sends an unknown version that is well-formed gets an answer, which the rule finds.
        lab.run("probe", *network.client.inside("python3", PROBE, CLIENT, SERVER, str(PORT)))
        if network.counted(network.server, "versions") != 1:
            raise Failure("the rule does not find Version Negotiation")
        return f"{counted['pep_acks']} PEP-ACKs, no answer"

    return check
