"""What all cases of TCP share: sites, and `tandem client` with `tandem proxy`."""

import re
import sys
from pathlib import Path

import servers
from files import CA, CERT, KEY, ROOT, sha256
from processes import Failure, Lab
from servers import HERE, TANDEM, Server, listening

INSIDE = HERE / "tcp/inside"


class Tunnel:
    """`tandem client` with one listener, and `tandem proxy` or another one."""

    def __init__(self, lab: Lab, *listener: str, proxy: Server | None = None):
        self.proxy = proxy or servers.tandem_proxy(lab)
        self.client = listening(
            lab.start("tandem-client", TANDEM, "client", *listener, *via(self.proxy))
        )

    @property
    def address(self) -> str:
        """The address of the listener."""
        return self.client.address

    @property
    def port(self) -> int:
        """The port of the listener."""
        return self.client.port


def via(proxy: Server) -> tuple:
    """Returns the options with which a client uses the proxy."""
    return ("--via", proxy.url(), "--ca", CA)


def site(lab: Lab, tls: bool = False, root: Path = ROOT) -> Server:
    """Starts a site on TCP."""
    identity = (CERT, KEY) if tls else ()
    name = "site-tls" if tls else "site"
    return listening(lab.start(name, sys.executable, INSIDE / "site.py", root, *identity))


def ends(lab: Lab) -> Server:
    """Starts a TCP server that logs how its connections end."""
    return listening(lab.start("ends", sys.executable, INSIDE / "ends.py"))


def check_carried(
    proxy: Server, target: Server, up: int = 0, down: int = 0, is_named: bool = True
) -> None:
    """Checks that at least this number of bytes of TCP passed through our proxy to the target and from it.
    Ends the proxy first, so that it logs all flows. `is_named`: its log says where flows lead."""
    proxy.process.stop()
    destination = f"destination={re.escape(target.address)} " if is_named else ""
    closed = (
        rf"flow closed.* {destination}.*protocol=\"tcp\" .*"
        r"to_target_bytes=(\d+) to_client_bytes=(\d+)"
    )
    flows = re.findall(closed, proxy.process.text())
    carried = [sum(int(flow[way]) for flow in flows) for way in (0, 1)]
    if not flows or carried[0] < up or carried[1] < down:
        raise Failure(f"only {carried[0]} and {carried[1]} bytes passed in {len(flows)} flows")


def check_equal(found: Path, wanted: Path) -> None:
    """Checks that two files have the same bytes."""
    check(f"SHA-256 of {found.name}", sha256(found), sha256(wanted))


def check(what: str, found, wanted) -> None:
    """Checks that a value is the wanted one."""
    if found != wanted:
        raise Failure(f"{what} is {found!r}, not {wanted!r}")


def check_has(what: str, text: str, pattern: str) -> None:
    """Checks that a text has a pattern."""
    if not re.search(pattern, text, re.MULTILINE):
        raise Failure(f"{what} has no {pattern!r}: {text[-300:]!r}")
