"""The clients of chains. Each performs one transfer in a mode, and tells how much of it was inside the tunnels.

For `tandem get`, its report tells this. For a program it is told by the qlogs of the tunnels' connections, since
`tandem client --json` says nothing of packets beside them."""

import contextlib
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from clients import Transfer, via
from files import BIN, CA, ROOT, sha256
from processes import Failure, Lab
from servers import HERE, TANDEM, Server, listening

# Performs a transfer in a mode, with these proxies and this origin. Returns the SHA-256 of what arrived, and
# the bytes on the connection of each tunnel, in the direction of the file.
Chained = Callable[[Lab, list[Server], Server, str, Transfer], tuple[str, list[int]]]
# Runs a program with a URL, and a file for the answer.
Program = Callable[[Lab, str, Path, Transfer], None]

DOWNLOADS_AT_A_TIME = 12
DOWNLOADS_TIMEOUT = 20  # seconds


def get(lab, proxies, origin, mode, transfer) -> tuple[str, list[int]]:
    """Runs `tandem get`."""
    answer = lab.logs / "answer"
    command = (TANDEM, "get", "--json", origin.url(transfer.file), "-o", answer)
    log = lab.run("tandem-get", *command, *settings(proxies, mode))
    found = sha256(answer)
    answer.unlink()
    report = last_object(log.read_text())
    if report["granted"] != [mode] * len(proxies):
        raise Failure(f"the proxies granted {report['granted']}")
    return found, [hop["received"]["bytes"] for hop in report["connections"][:-1]]


def forwarded(program: Program) -> Chained:
    """Runs a program through `tandem client --udp`."""

    def client(lab, proxies, origin, mode, transfer):
        answer, qlog = lab.logs / "answer", lab.logs / "qlog"
        qlog.mkdir()
        udp = ("--udp", f"127.0.0.1:0={origin.address}")
        command = (TANDEM, "client", *udp, "--json", *settings(proxies, mode))
        forwarder = listening(lab.start("tandem-client", *command, "--qlog-dir", qlog))
        program(lab, forwarder.url(transfer.file), answer, transfer)
        found = answer.read_text().strip() if transfer.upload else sha256(answer)
        answer.unlink()
        forwarder.process.stop()
        last_object(forwarder.process.text())  # so that it has ended well
        way = "sent" if transfer.upload else "received"
        # The time at which a connection began is in its file's name.
        return found, [bytes_of(file.read_text(), way) for file in sorted(qlog.iterdir())]

    return client


def settings(proxies: list[Server], mode: str) -> tuple:
    return (*via(proxies), "--ca", CA, "--mode", mode, "--require-mode")


def last_object(text: str) -> dict:
    """Returns the JSON object that a program has printed at its end."""
    objects = [line for line in text.splitlines() if line.startswith("{")]
    if not objects:
        raise Failure("tandem did not report at its end")
    return json.loads(objects[-1])


def bytes_of(qlog: str, way: str) -> int:
    """Returns the bytes of the QUIC packets that were `sent` or `received`."""
    lengths = re.findall(rf'"name":"(?:quic|tandem):packet_{way}".*?"length":(\d+)', qlog)
    return sum(map(int, lengths))


def quic_go(*options: str) -> Program:
    def program(lab: Lab, url: str, answer: Path, transfer: Transfer) -> None:
        upload = ("-upload", ROOT / transfer.file) if transfer.upload else ()
        lab.run("quic-go-get", BIN / "quic-go-get", "-o", answer, *upload, *options, url)

    return program


def aioquic(*options: str, says: str = "", times: int = 0) -> Program:
    """Runs aioquic, which must say this so often at least."""

    def program(lab: Lab, url: str, answer: Path, _transfer: Transfer) -> None:
        command = (sys.executable, HERE / "aioquic/get.py", CA, url, answer, *options)
        text = lab.run("aioquic-get", *command).read_text()
        if times and text.count(says) < times:
            raise Failure(f"aioquic said {says!r} {text.count(says)} times only")

    return program


def quic_go_together(lab: Lab, url: str, answer: Path, transfer: Transfer) -> None:
    """Runs several downloads of quic-go at a time. The file for the answer is that of the last one."""
    deadline = time.monotonic() + DOWNLOADS_TIMEOUT
    others = [lab.logs / f"answer-{number}" for number in range(1, DOWNLOADS_AT_A_TIME)]
    command = (BIN / "quic-go-get", "-o")
    started = [lab.start("quic-go-get", *command, file, url) for file in (*others, answer)]
    for process in started:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.popen.wait(max(0, deadline - time.monotonic()))
    unfinished = sum(process.popen.returncode != 0 for process in started)
    if unfinished:
        took = f"failed or took more than {DOWNLOADS_TIMEOUT} s"
        raise Failure(f"{unfinished} of {DOWNLOADS_AT_A_TIME} downloads {took}")
    for file in others:
        if sha256(file) != sha256(ROOT / transfer.file):
            raise Failure(f"{file.name} has other bytes than the origin's file")
        file.unlink()
