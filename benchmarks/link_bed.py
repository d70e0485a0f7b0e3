"""Three network namespaces in a row, with `tandem lab link` between them, for commands beside this file.

    NEAR 10.78.0.1 --- access link --- 10.78.0.2 MID 10.78.1.1 --- 50 ms --- 10.78.1.2 FAR

Needs root and /dev/net/tun. What is started here ends here.
"""

import os
import pathlib
import signal
import subprocess
import sys

REPOSITORY = pathlib.Path(__file__).resolve().parents[1]
TANDEM = os.environ.get("TANDEM") or str(REPOSITORY / "target/release/tandem")
NEAR, MID, FAR = "tl-near", "tl-mid", "tl-far"
ORIGIN, PROXY = "10.78.1.2:4433", "10.78.0.2:4433"

signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends what was started, too


class Processes:
    """Ends what it started, last first."""

    def __init__(self):
        self.started = []

    def start(self, *command, ready):
        """Returns when a line on standard error has the word. Nobody reads on after that."""
        command = [*map(str, command)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.started.append(process)
        for line in process.stderr:
            if ready in line:
                return process
        raise SystemExit(f"{' '.join(command)} ended before it was ready")

    def stop(self):
        while self.started:
            process = self.started.pop()
            process.terminate()
            process.communicate()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


def inside(namespace, *command):
    return ["ip", "netns", "exec", namespace, *map(str, command)]


def start_links(processes, seed, *access):
    """The two links and the routes over them. `access`: flags of the one next to the client."""
    link = ["chrt", "--fifo", "1", TANDEM, "lab", "link", "--seed", seed]
    near = ["--near", NEAR, "--far", MID, "--network", "10.78.0.0/30", "--delay", "20ms"]
    far = ["--near", MID, "--far", FAR, "--network", "10.78.1.0/30", "--delay", "50ms"]
    processes.start(*link, *near, *access, ready="ready:")
    processes.start(*link, *far, ready="ready:")
    for command in [
        inside(NEAR, "ip", "link", "set", "lo", "up"),
        inside(MID, "sysctl", "-qw", "net.ipv4.ip_forward=1"),
        inside(NEAR, "ip", "route", "add", "10.78.1.0/30", "via", "10.78.0.2"),
        inside(FAR, "ip", "route", "add", "10.78.0.0/30", "via", "10.78.1.1"),
    ]:
        subprocess.run(command, check=True)


def start_proxy(processes, ca, *flags):
    """A proxy in the middle; its CA is written to the file `ca`."""
    processes.start(
        *inside(MID, TANDEM, "proxy", "--listen", PROXY, "--allow-anyone"),
        "--allow-target", "10.78.1.0/30", "--name", "10.78.0.2", "--write-ca", ca, *flags,
        ready="listening",
    )  # fmt: skip
