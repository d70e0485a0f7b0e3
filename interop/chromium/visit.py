"""Performs downloads with a headless Chromium: visit.py PLAN FOLDER

PLAN is JSON. It has the port of the origin, the fingerprint of its key, and the files, and the address of a SOCKS5 port
if Chromium uses one, in which case the origin is a site on TCP. The DevTools protocol controls Chromium."""

import json
import signal
import sys
from pathlib import Path

from devtools import Chromium

DOWNLOAD = """
(async () => {
  const hex = bytes => Array.from(bytes, byte => byte.toString(16).padStart(2, "0")).join("");
  const answer = await fetch(FILE, { cache: "no-store" });
  return hex(new Uint8Array(await crypto.subtle.digest("SHA-256", await answer.arrayBuffer())));
})()
"""
HYBRID = "X25519MLKEM768"  # what our origin and Chromium have in common first
PROTOCOLS = """
performance.getEntries().filter(entry => "nextHopProtocol" in entry)
  .map(entry => entry.nextHopProtocol)
"""


def flags(plan: dict) -> list[str]:
    if "socks" in plan:
        return [
            f"--proxy-server=socks5://{plan['socks']}",
            "--proxy-bypass-list=<-loopback>",  # so that it uses the proxy for 127.0.0.1 too
            f"--ignore-certificate-errors-spki-list={plan['key']}",
        ]
    return [
        # Chromium can learn of HTTP/3 neither from DNS nor from a response over TCP.
        f"--origin-to-force-quic-on=127.0.0.1:{plan['origin']}",
        # Over HTTP/3 it trusts only public CAs, and keys that are named here.
        f"--ignore-certificate-errors-spki-list={plan['key']}",
    ]


def visit(chromium: Chromium, plan: dict) -> list[str]:
    url = f"https://127.0.0.1:{plan['origin']}/page.html"
    session = chromium.open()
    chromium.command("Network.enable", session)
    hashes = []
    for file in plan["files"]:
        # Chromium loads the page before each transfer.
        failure = chromium.command("Page.navigate", session, url=url).get("errorText")
        if failure:
            sys.exit(f"the page does not load: {failure}")
        hashes.append(chromium.evaluate(session, DOWNLOAD.replace("FILE", json.dumps(file))))
        protocols = chromium.evaluate(session, PROTOCOLS)
        print(chromium.evaluate(session, "document.title"), protocols, file=sys.stderr)
        wanted = "http/1.1" if "socks" in plan else "h3"
        if set(protocols) != {wanted}:
            sys.exit(f"a transfer did not use {wanted}: {protocols}")
    responses = [event["params"]["response"] for event in chromium.events if event.get("method") == "Network.responseReceived"]
    groups = {response["securityDetails"]["keyExchangeGroup"] for response in responses}
    if "socks" not in plan and groups != {HYBRID}:
        sys.exit(f"keys were agreed on by {groups}, not by {HYBRID}")
    return hashes


def main(plan: dict, folder: Path) -> None:
    chromium = Chromium(folder, *flags(plan))
    try:
        hashes = visit(chromium, plan)
    finally:
        chromium.end()
    print("hashes:", *hashes)


signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # this also ends Chromium
main(json.loads(sys.argv[1]), Path(sys.argv[2]))
