"""The processes of a case. Each has a log, and is ended by its own process ID."""

import errno
import os
import random
import re
import socket
import subprocess
import time
from pathlib import Path

from checks import Failure
from files import CA

START_TIMEOUT = 10  # seconds until a server listens
CLIENT_TIMEOUT = 60  # seconds that a client may take
END_TIMEOUT = 10  # seconds from SIGTERM to SIGKILL
# Without settings of the machine that concern proxies, since the cases have proxies of their own.
INHERITED = {name: text for name, text in os.environ.items() if not name.lower().endswith("_proxy")}
ENVIRONMENT = {**INHERITED, "NO_COLOR": "1", "SSL_CERT_FILE": str(CA)}


class Process:
    """A program that runs until it is stopped."""

    def __init__(self, log: Path, command: list, env: dict, stdin: Path, cwd: Path | None):
        self.log = log
        with log.open("w") as file, stdin.open("rb") as given:
            file.write(f"$ {' '.join(map(str, command))}\n")
            file.flush()
            self.popen = subprocess.Popen(
                command, stdin=given, stdout=file, stderr=file, env=env, cwd=cwd
            )

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_for(self, pattern: str, timeout: float = START_TIMEOUT) -> re.Match:
        """Waits until the log has the pattern."""
        return wait(lambda: re.search(pattern, self.text()), f"{pattern!r}", timeout, self)

    def wait_for_port(self, port: int) -> None:
        """Waits until a UDP socket has the port, for servers that do not report their start."""
        suffix = f":{port:04X} "
        sockets = Path("/proc/net/udp")
        wait(lambda: suffix in sockets.read_text(), f"port {port}", START_TIMEOUT, self)

    def stop(self) -> None:
        self.popen.terminate()
        try:
            self.popen.wait(END_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()


class Lab:
    """The processes of one case. All of them have ended when the context is left."""

    def __init__(self, logs: Path):
        self.logs = logs
        self.running: list[Process] = []
        self.names: list[str] = []

    def __enter__(self):
        self.logs.mkdir(parents=True)
        return self

    def __exit__(self, *_):
        for process in reversed(self.running):
            process.stop()

    def start(
        self,
        name: str,
        *command,
        env: dict[str, str] | None = None,
        stdin: Path = Path(os.devnull),
        cwd: Path | None = None,
    ) -> Process:
        """Starts a program whose log is called `name`."""
        environment = {**ENVIRONMENT, **(env or {})}
        process = Process(self.log(name), [*command], environment, stdin, cwd)
        self.running.append(process)
        return process

    def run(self, name: str, *command, expect: int = 0, **options) -> Path:
        """Runs a program, which must end with the expected exit code, and returns its log."""
        process = self.start(name, *command, **options)
        try:
            code = process.popen.wait(CLIENT_TIMEOUT)
        except subprocess.TimeoutExpired:
            raise Failure(f"{name} did not end within {CLIENT_TIMEOUT} s") from None
        if code != expect:
            raise Failure(f"{name}: exit code {code}: {last_line(process.text())}")
        return process.log

    def log(self, name: str) -> Path:
        """Returns a new log file for a process."""
        self.names.append(name)
        number = self.names.count(name)
        return self.logs / (f"{name}.log" if number == 1 else f"{name}-{number}.log")


def free_port(kind: socket.SocketKind = socket.SOCK_DGRAM) -> int:
    """Returns a free port, of UDP unless told otherwise, for servers that do not support port 0. It is none of those
    that the kernel gives to sockets that do not ask for one, so that no other program gets it before the server."""
    while True:
        with socket.socket(socket.AF_INET, kind) as probe:
            try:
                probe.bind(("127.0.0.1", port := random.randrange(10_000, 32_768)))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
            else:
                return port


def wait(condition, what: str, timeout: float, process: Process | None = None):
    """Waits until the condition holds, and returns its value."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        if process and process.popen.poll() is not None:
            raise Failure(f"{process.log.stem} ended: {last_line(process.text())}")
        if time.monotonic() > deadline:
            raise Failure(f"no {what} within {timeout:.0f} s")
        time.sleep(0.02)
    return value


def last_line(text: str) -> str:
    return text.strip().rsplit("\n", 1)[-1][-300:]
