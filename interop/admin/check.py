"""Checks what `--admin` shows, while a download runs through a proxy."""

import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent / "chromium"))
from devtools import Chromium

TANDEM = os.environ["TANDEM"]
TIMEOUT = 30  # seconds for each step
SIZE = 2_000_000_000  # bytes, which is more than is downloaded in the time of the checks
CARRIED = """
(() => ({
  tile: document.querySelector(".tile .value").textContent,
  points: document.querySelector("polyline.a").getAttribute("points"),
  sent: document.querySelector(".scroll tbody td:nth-last-child(2)")?.textContent ?? null,
  user: document.querySelector(".scroll tbody td.text")?.textContent ?? null,
  notice: document.getElementById("notice").textContent,
}))()
"""


class Failure(Exception):
    """A check failed; the text is the reason."""


def expect(condition: object, reason: str) -> None:
    if not condition:
        raise Failure(reason)


def wait(find: Callable, what: str):
    deadline = time.monotonic() + TIMEOUT
    while not (found := find()):
        expect(time.monotonic() < deadline, f"no {what}")
        time.sleep(0.05)
    return found


class Server:
    """A running proxy or origin with an admin listener."""

    def __init__(self, folder: Path, role: str, *flags: str):
        self.log = folder / f"{role}.log"
        command = [TANDEM, role, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", *flags]
        with self.log.open("w") as file:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
        self.admin = self.says(r"admin page at (http://\S+)/")
        self.address = self.says(r"^listening on (\S+)")

    def says(self, pattern: str) -> str:
        return wait(lambda: re.search(pattern, self.log.read_text(), re.MULTILINE), pattern)[1]


def get(url: str) -> str:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=TIMEOUT) as answer:
        return answer.read().decode()


def check_metrics(servers: list[Server], _folder: Path) -> None:
    """promtool finds nothing to object to."""
    for server in servers:
        text = get(f"{server.admin}/metrics")
        lint = subprocess.run(
            ["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=TIMEOUT
        )
        expect(lint.returncode == 0 and not lint.stderr, f"promtool: {lint.stderr}")


def check_users(servers: list[Server], _folder: Path) -> None:
    """The user has series of its own, which grow."""
    of_alice = r'^tandem_user_bytes_total\{user="alice",direction="to_client"\} ([1-9]\d*)$'
    seen = set()

    def has_grown() -> bool:
        found = re.search(of_alice, get(f"{servers[0].admin}/metrics"), re.MULTILINE)
        if found:
            seen.add(int(found[1]))
        return len(seen) > 2

    wait(has_grown, "series of the user")
    expect('user="other users"' in get(f"{servers[0].admin}/metrics"), "no series of the others")


def check_page(servers: list[Server], folder: Path) -> None:
    """Chromium shows numbers that move, and no error."""
    url = f"{servers[0].admin}/"
    chromium = Chromium(folder)
    try:
        session = chromium.open()
        for domain in ("Runtime", "Log", "Network"):
            chromium.command(f"{domain}.enable", session)
        failure = chromium.command("Page.navigate", session, url=url).get("errorText")
        expect(not failure, f"the page does not load: {failure}")
        seen = []

        def has_moved() -> bool:
            if chromium.evaluate(session, "document.readyState") == "complete":
                seen.append(chromium.evaluate(session, CARRIED))
            moving = [it for it in seen if it["user"] == "alice" and "bit/s" in it["tile"]]
            return all(len({it[key] for it in moving}) > 2 for key in ("points", "sent"))

        wait(has_moved, f"numbers that move: {seen[-1:]}")
        expect(not seen[-1]["notice"], seen[-1]["notice"])
        for event in chromium.events:
            method, parameters = event.get("method"), event.get("params", {})
            is_error = method in ("Runtime.exceptionThrown", "Log.entryAdded", "Network.loadingFailed")
            is_error |= method == "Runtime.consoleAPICalled"
            expect(not is_error, f"{method}: {parameters}")
            if method == "Network.requestWillBeSent":
                asked = parameters["request"]["url"]
                expect(asked.startswith((url, "data:")), f"the page asks {asked}")
    finally:
        chromium.end()


def main() -> int:
    checks = [check_metrics, check_users, check_page]
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "www").mkdir()
        with (folder / "www/file").open("wb") as file:
            file.truncate(SIZE)
        token = folder / "token"
        token.write_text("alice 0123456789abcdef\n")
        token.chmod(0o600)
        shown = folder / "shown"
        shown.write_text("0123456789abcdef\n")
        shown.chmod(0o600)
        processes = []
        try:
            origin = Server(folder, "origin", "--root", str(folder / "www"))
            processes.append(origin.process)
            proxy = Server(
                folder, "proxy", "--allow-target", "127.0.0.0/8", "--token-file", str(token)
            )
            processes.append(proxy.process)
            get_file = [TANDEM, "get", f"https://{origin.address}/file", "--insecure"]
            via = ["--via", f"https://{proxy.address}", "--token-file", str(shown), "--mode", "rmdt"]
            command = [*get_file, *via, "--quiet", "-o", os.devnull]
            processes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL))
            for check in checks:
                try:
                    check([proxy, origin], folder)
                    print(f"ok: {check.__doc__}")
                except (Failure, OSError, RuntimeError, subprocess.SubprocessError) as error:
                    failed += 1
                    print(f"FAILED: {check.__doc__} {error}")
        finally:
            for process in reversed(processes):
                process.terminate()
                process.wait()
    print(f"{len(checks) - failed} passed, {failed} failed")
    return failed


sys.exit(main() > 0)
