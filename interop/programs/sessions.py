"""Programs that hold a session of their own: mosh, and DNS over QUIC."""

import os
import re
import signal
import sys

from files import CA, CERT, KEY
from processes import Failure, Lab
from programs.network import FAR_ADDRESS, Network
from programs.tunnel import HOME_END, INSIDE, PORT, tunnel

QUERIES = 5


def mosh(lab: Lab, network: Network, mode: str) -> str:
    """Types into a session of mosh, and waits until the answers are on the screen."""
    tunnel(lab, network, mode)
    shell = ("sh", "-c", "while read -r line; do echo heard:$line; done")
    server = ("mosh-server", "new", "-i", FAR_ADDRESS, "-p", PORT, "--", *shell)
    environment = ("env", "LC_ALL=C.UTF-8", "MOSH_SERVER_NETWORK_TMOUT=60")
    log = lab.run("mosh-server", *network.far.inside(*environment, *server)).read_text()
    key = re.search(rf"MOSH CONNECT {PORT} (\S+)", log)[1]
    try:
        client = (sys.executable, INSIDE / "mosh.py", HOME_END, PORT, key)
        return lab.run("mosh-client", *network.home.inside(*client)).read_text().splitlines()[-1]
    finally:
        end(int(re.search(r"detached, pid = (\d+)", log)[1]))


def end(pid: int) -> None:
    """Ends a server that has left its terminal, unless it has ended with its session."""
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        pass


def dns_over_quic(lab: Lab, network: Network, mode: str) -> str:
    """Asks a server of DNS over QUIC, each time in a new connection."""
    tunnel(lab, network, mode)
    server = (sys.executable, INSIDE / "doq_server.py", CERT, KEY, FAR_ADDRESS, PORT)
    lab.start("doq-server", *network.far.inside(*server)).wait_for("listening on")
    tls = (f"+tls-ca={CA}", "+tls-hostname=origin.test")
    # The options of TLS choose DNS over TLS if they come last.
    kdig = ("kdig", f"@{HOME_END}", "-p", PORT, *tls, "+quic", "+short", "example.test", "A")
    for _ in range(QUERIES):
        log = lab.run("kdig", *network.home.inside(*kdig)).read_text()
        if "\n192.0.2.1\n" not in log:
            raise Failure(f"no answer: {log}")
    return f"answered: {QUERIES}"
