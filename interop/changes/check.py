"""Downloads through a proxy that changes. None may break, and their times are printed."""

import hashlib
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from checks import Failure, expect
from processes import Process, wait

TANDEM = os.environ["TANDEM"]
DOWNLOADS = 100
SIZE = 1_000_000  # bytes of each
RATE = "1Mbit/s"  # of each, so that it takes 8 s
TIMEOUT = 90  # seconds for each step
USERS = f'[default]\nrate-to-client = "{RATE}"\n'


class Server(Process):
    """A server, and the process that has taken over from it. Both are ended by their IDs."""

    def __init__(self, folder: Path, program: Path | str, *arguments: str):
        super().__init__(folder / f"{arguments[0]}.log", [program, *arguments], {**os.environ}, Path(os.devnull), folder)
        self.successor = None
        self.address = self.says(r"^listening on (\S+)")[1]

    def says(self, pattern: str) -> re.Match:
        return wait(lambda: re.search(pattern, self.text(), re.MULTILINE), f"{pattern!r} in {self.log}", TIMEOUT)

    def count(self, text: str) -> int:
        return self.text().count(text)

    def stop(self) -> None:
        self.popen.kill()
        self.popen.wait()
        if self.successor:
            try:
                os.kill(self.successor, signal.SIGKILL)
            except ProcessLookupError:
                pass


class Run:
    """An origin, a proxy and downloads."""

    def __init__(self, folder: Path):
        self.folder = folder
        (folder / "root").mkdir()
        body = os.urandom(SIZE)
        (folder / "root" / "file").write_bytes(body)
        self.expected = hashlib.sha256(body).hexdigest()
        self.write_tokens(DOWNLOADS)
        (folder / "users.toml").write_text(USERS)
        self.new_certificate()
        shutil.copy(folder / "ca.pem", folder / "first-ca.pem")
        shutil.copy(TANDEM, folder / "tandem")
        self.origin = Server(folder, TANDEM, "origin", "--listen", "127.0.0.1:0", "--root", "root",
                             "--write-ca", "origin.pem")
        self.proxy = Server(folder, folder / "tandem", "proxy", "--listen", "127.0.0.1:0",
                            "--allow-target", "127.0.0.1", "--cert", "cert.pem", "--key", "key.pem",
                            "--token-file", "tokens", "--users-file", "users.toml", "--usage-store",
                            "usage.db", "--threads", "2")
        self.times: list[float] = []
        self.errors: list[str] = []

    def write_tokens(self, number: int) -> None:
        file = self.folder / "tokens.new"
        file.touch(mode=0o600)
        file.write_text("".join(f"user-{index} token-of-user-{index:05}\n" for index in range(number)))
        file.rename(self.folder / "tokens")
        for index in range(number):
            (self.folder / f"token-{index}").write_text(f"token-of-user-{index:05}")

    def new_certificate(self) -> None:
        subprocess.run([TANDEM, "generate", "certificate", self.folder / "next"], check=True, capture_output=True)
        for file in (self.folder / "next").iterdir():
            file.rename(self.folder / file.name)
        (self.folder / "next").rmdir()

    def download(self, index: int, ca: str = "first-ca.pem") -> None:
        begin = time.monotonic()
        done = subprocess.run(
            [TANDEM, "get", f"https://{self.origin.address}/file", "--via", f"https://{self.proxy.address}",
             "--token-file", f"token-{index}", "--ca", ca, "--ca", "origin.pem", "-o", "-"],
            cwd=self.folder, capture_output=True, timeout=TIMEOUT,
        )
        self.times.append(time.monotonic() - begin)
        if done.returncode != 0 or hashlib.sha256(done.stdout).hexdigest() != self.expected:
            self.errors.append(f"{index}: {done.returncode} {done.stderr.decode()}")

    def downloads(self, changes: Callable) -> None:
        threads = [threading.Thread(target=self.download, args=(index,)) for index in range(DOWNLOADS)]
        for thread in threads:
            thread.start()
        wait(lambda: self.proxy.count("flow opened") >= DOWNLOADS, f"{DOWNLOADS} flows", TIMEOUT)
        changes()
        running = sum(thread.is_alive() for thread in threads)
        for thread in threads:
            thread.join()
        expect(not self.errors, f"downloads broke: {self.errors}")
        expect(running >= DOWNLOADS // 2, f"only {running} downloads ran when all had changed")
        opened = self.proxy.count("flow opened")
        expect(opened == DOWNLOADS, f"{opened} flows for {DOWNLOADS} downloads")

    def change(self) -> None:
        self.new_certificate()
        self.proxy.says("^renewed: ")
        self.write_tokens(DOWNLOADS + 1)
        (self.folder / "users.toml").write_text(USERS + '[user.user-100]\nconnections = 2\n')
        self.proxy.popen.send_signal(signal.SIGHUP)
        self.proxy.says("^reloaded: ")
        shutil.copy(TANDEM, self.folder / "new")
        (self.folder / "new").rename(self.folder / "tandem")
        self.proxy.popen.send_signal(signal.SIGUSR2)
        self.proxy.successor = int(self.proxy.says(r"^process (\d+) starts, to take over")[1])
        self.proxy.says("gets new connections from now on")

    def expect_all_changed(self) -> None:
        """The old process ends, and the new one has the new certificate and the new user."""
        expect(self.proxy.popen.wait(TIMEOUT) == 0, "the old process failed")
        self.proxy.says("has ended; this one has taken over")
        self.download(DOWNLOADS, "ca.pem")
        expect(not self.errors, f"the last download broke: {self.errors}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.proxy.stop()
        self.origin.stop()


def one_run(changes: bool) -> list[float]:
    with tempfile.TemporaryDirectory() as folder, Run(Path(folder)) as run:
        run.downloads(run.change if changes else lambda: None)
        times = sorted(run.times)
        if changes:
            run.expect_all_changed()
        return times


def row(name: str, times: list[float]) -> str:
    quantile = statistics.quantiles(times, n=20)
    return (f"| {name} | {times[0]:.2f} s | {statistics.median(times):.2f} s | {quantile[18]:.2f} s "
            f"| {times[-1]:.2f} s |")


def main() -> int:
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    passed = failed = 0
    print("| run | fastest | median | 95 % | slowest |\n| --- | --- | --- | --- | --- |", flush=True)
    for pair in range(pairs):
        medians = []
        for changes in (False, True):
            name = f"{pair + 1}, {'with' if changes else 'without'} changes"
            try:
                times = one_run(changes)
                medians.append(statistics.median(times))
                print(row(name, times), flush=True)
                passed += 1
            except (Failure, subprocess.SubprocessError, OSError) as error:
                print(f"FAIL  {name}: {error}", flush=True)
                failed += 1
        if len(medians) == 2:
            print(f"the median with changes is {medians[1] / medians[0] - 1:+.1%} of that without", flush=True)
    print(f"{passed} passed, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
