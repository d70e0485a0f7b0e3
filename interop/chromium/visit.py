"""Performs downloads with a headless Chromium: visit.py PLAN FOLDER

PLAN is JSON. It has the port of the origin, the fingerprint of its key, and the files. This program
controls Chromium with its DevTools protocol over pipes."""

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

TIMEOUT = 30  # seconds for each command
DOWNLOAD = """
(async () => {
  const hex = bytes => Array.from(bytes, byte => byte.toString(16).padStart(2, "0")).join("");
  const answer = await fetch(FILE, { cache: "no-store" });
  return hex(new Uint8Array(await crypto.subtle.digest("SHA-256", await answer.arrayBuffer())));
})()
"""
PROTOCOLS = """
performance.getEntries().filter(entry => "nextHopProtocol" in entry)
  .map(entry => entry.nextHopProtocol)
"""


class Chromium:
    """The DevTools protocol: JSON, each message with a zero byte at its end."""

    def __init__(self, folder: Path, plan: dict):
        # Chromium reads commands from descriptor 3 and writes answers to 4.
        commands, self.commands = os.pipe()
        self.answers, answers = os.pipe()
        command = ["sh", "-c", f'exec "$@" 3<&{commands} 4>&{answers}', "sh", "chromium"]
        options = flags(folder, plan)
        self.process = subprocess.Popen([*command, *options], pass_fds=(commands, answers))
        os.close(commands)
        os.close(answers)
        self.received = b""
        self.number = 0

    def command(self, method: str, session: str | None = None, **parameters) -> dict:
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self.commands, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + TIMEOUT
        while (answer := self.read(deadline)).get("id") != self.number:
            pass  # it is an event
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def read(self, deadline: float) -> dict:
        while b"\0" not in self.received:
            if not select.select([self.answers], [], [], max(0, deadline - time.monotonic()))[0]:
                raise TimeoutError("Chromium does not answer")
            if not (data := os.read(self.answers, 65536)):
                raise ConnectionError("Chromium ended")
            self.received += data
        message, self.received = self.received.split(b"\0", 1)
        return json.loads(message)

    def evaluate(self, session: str, script: str):
        options = {"awaitPromise": True, "returnByValue": True}
        result = self.command("Runtime.evaluate", session, expression=script, **options)
        if "exceptionDetails" in result:
            raise RuntimeError(json.dumps(result["exceptionDetails"]))
        return result["result"]["value"]


def flags(folder: Path, plan: dict) -> list[str]:
    return [
        "--headless=new",
        "--no-sandbox",  # root has none
        "--disable-gpu",
        "--remote-debugging-pipe",
        f"--user-data-dir={folder / 'profile'}",
        # Chromium can learn of HTTP/3 neither from DNS nor from a response over TCP.
        f"--origin-to-force-quic-on=127.0.0.1:{plan['origin']}",
        # Over HTTP/3 it trusts only public CAs, and keys that are named here.
        f"--ignore-certificate-errors-spki-list={plan['key']}",
        # It shall talk to nobody else.
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
        "--disable-background-networking",
        "--disable-component-update",
        "--no-first-run",
    ]


def visit(chromium: Chromium, plan: dict) -> list[str]:
    url = f"https://127.0.0.1:{plan['origin']}/page.html"
    target = chromium.command("Target.createTarget", url="about:blank")["targetId"]
    attached = chromium.command("Target.attachToTarget", targetId=target, flatten=True)
    session = attached["sessionId"]
    hashes = []
    for file in plan["files"]:
        # Chromium loads the page before each transfer.
        failure = chromium.command("Page.navigate", session, url=url).get("errorText")
        if failure:
            sys.exit(f"the page does not load: {failure}")
        hashes.append(chromium.evaluate(session, DOWNLOAD.replace("FILE", json.dumps(file))))
        protocols = chromium.evaluate(session, PROTOCOLS)
        print(chromium.evaluate(session, "document.title"), protocols, file=sys.stderr)
        if set(protocols) != {"h3"}:
            sys.exit(f"a transfer did not use HTTP/3: {protocols}")
    return hashes


def main(plan: dict, folder: Path) -> None:
    chromium = Chromium(folder, plan)
    try:
        hashes = visit(chromium, plan)
        chromium.command("Browser.close")
        chromium.process.wait(10)
    finally:
        if chromium.process.poll() is None:
            chromium.process.kill()
            chromium.process.wait()
        shutil.rmtree(folder / "profile", ignore_errors=True)
    print("hashes:", *hashes)


signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # this also ends Chromium
main(json.loads(sys.argv[1]), Path(sys.argv[2]))
