"""The tunnel of a case: `tandem proxy` on the proxy's host, `tandem client --udp` at home."""

from pathlib import Path

from files import CA
from processes import Lab, Process
from programs.network import FAR_ADDRESS, PROXY_ADDRESS, Network
from servers import IDENTITY, TANDEM

INSIDE = Path(__file__).parent / "inside"  # the programs that run on the hosts
PORT = "5201"  # of the program on the far host, and of the tunnel's end at home
HOME_END = "127.0.0.1"


def tunnel(lab: Lab, network: Network, mode: str, *options: str) -> Process:
    """Starts a proxy and a client, and returns the client."""
    permit = ("--allow-anyone", "--allow-target", FAR_ADDRESS)
    listen = ("--listen", f"{PROXY_ADDRESS}:4433", *permit, "--drain", "0s")
    proxy = network.proxy.inside(TANDEM, "proxy", *listen, *IDENTITY)
    lab.start("tandem-proxy", *proxy).wait_for(r"listening on ")
    udp = f"{HOME_END}:{PORT}={FAR_ADDRESS}:{PORT}"
    via = ("--via", f"https://{PROXY_ADDRESS}:4433", "--ca", CA, "--mode", mode)
    client = lab.start(
        "tandem-client", *network.home.inside(TANDEM, "client", "--udp", udp, *via, *options)
    )
    client.wait_for(r"listening on ")
    return client
