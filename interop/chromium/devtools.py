"""A headless Chromium, controlled with its DevTools protocol over pipes."""

import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path

TIMEOUT = 30  # seconds for each command
BASE = [
    "--headless=new",
    "--no-sandbox",  # root has none
    "--disable-gpu",
    "--remote-debugging-pipe",
    # It shall talk to nobody else.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
]


class Chromium:
    """The DevTools protocol: JSON, each message with a zero byte at its end."""

    def __init__(self, folder: Path, *options: str):
        # Chromium reads commands from descriptor 3 and writes answers to 4.
        commands, self.commands = os.pipe()
        self.answers, answers = os.pipe()
        command = ["sh", "-c", f'exec "$@" 3<&{commands} 4>&{answers}', "sh", "chromium"]
        options = [*BASE, f"--user-data-dir={folder / 'profile'}", *options]
        with (folder / "browser.log").open("w") as log:
            self.process = subprocess.Popen(
                [*command, *options], pass_fds=(commands, answers), stderr=log
            )
        self.folder = folder
        self.events: list[dict] = []
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
            self.events.append(answer)
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

    def open(self) -> str:
        """Opens an empty page, and returns its session."""
        target = self.command("Target.createTarget", url="about:blank")["targetId"]
        return self.command("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def end(self) -> None:
        if self.process.poll() is None:
            try:
                self.command("Browser.close")
                self.process.wait(10)
            except (ConnectionError, TimeoutError, OSError, subprocess.TimeoutExpired):
                self.process.kill()
                self.process.wait()
        shutil.rmtree(self.folder / "profile", ignore_errors=True)
