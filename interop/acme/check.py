"""Checks that a proxy gets, uses and renews certificates from Pebble, and survives its errors."""

import functools
import hashlib
import json
import os
import re
import socket
import ssl
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

import checks
from checks import Failure, expect
from processes import Process, free_port, wait

TANDEM, PEBBLE = os.environ["TANDEM"], os.environ["PEBBLE"]
TIMEOUT = 60  # seconds for each step
LIFE = 30  # seconds that a certificate is valid; the proxy renews it after 20
ISSUED = "has issued a certificate for localhost"


class Program(Process):
    """A program of whose log a line can be asked for a second time."""

    def __init__(self, log: Path, *command, env: dict | None = None):
        super().__init__(log, [*command], {**os.environ, **(env or {})}, Path(os.devnull), None)

    def says(self, pattern: str, times: int = 1) -> re.Match:
        def find():
            found = list(re.finditer(pattern, self.text(), re.MULTILINE))
            return found[times - 1] if len(found) >= times else None

        try:
            return wait(find, f"{pattern!r} ({times})", TIMEOUT, self)
        except Exception as failure:
            raise Failure(f"{failure}: {self.text()}") from None


class Scene:
    """Pebble, an origin, and the folder of all."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.programs: list[Program] = []
        self.api, self.management, self.proof = (free_port(socket.SOCK_STREAM) for _ in range(3))
        self.run("generate", "certificate", folder / "api")
        (folder / "root").mkdir()
        (folder / "root" / "file").write_bytes(os.urandom(100_000))
        origin = self.start("origin", "origin", "--listen", "127.0.0.1:0", "--root", folder / "root",
                            "--write-ca", folder / "origin.pem")
        self.origin = origin.says(r"^listening on (\S+)")[1]
        self.pebble = None

    def run(self, *arguments) -> subprocess.CompletedProcess:
        return subprocess.run([TANDEM, *map(str, arguments)], capture_output=True, text=True, timeout=TIMEOUT)

    def start(self, name: str, *arguments) -> Program:
        program = Program(self.folder / f"{name}.log", TANDEM, *arguments)
        self.programs.append(program)
        return program

    def start_pebble(self, life: int) -> None:
        config = {
            "listenAddress": f"127.0.0.1:{self.api}",
            "managementListenAddress": f"127.0.0.1:{self.management}",
            "certificate": str(self.folder / "api" / "cert.pem"),
            "privateKey": str(self.folder / "api" / "key.pem"),
            "httpPort": self.proof,
            "tlsPort": free_port(socket.SOCK_STREAM),
            "domainBlocklist": ["blocked.example"],
            "retryAfter": {"authz": 1, "order": 1},
            "keyAlgorithm": "ecdsa",
            "profiles": {"default": {"description": "the only one", "validityPeriod": life}},
        }
        file = self.folder / "pebble.json"
        file.write_text(json.dumps({"pebble": config}))
        environment = {"PEBBLE_VA_NOSLEEP": "1", "PEBBLE_WFE_NONCEREJECT": "5"}
        self.pebble = Program(self.folder / "pebble.log", PEBBLE, "-config", file, env=environment)
        self.programs.append(self.pebble)
        self.pebble.says("ACME directory available|Listening on: 127")
        wait(self.load_root, "root certificate of Pebble", TIMEOUT, self.pebble)

    def load_root(self) -> bool:
        context = ssl.create_default_context(cafile=str(self.folder / "api" / "ca.pem"))
        try:
            url = f"https://localhost:{self.management}/roots/0"
            with urllib.request.urlopen(url, context=context, timeout=5) as answer:
                (self.folder / "root.pem").write_bytes(answer.read())
            return True
        except OSError:
            return False

    def proxy(self, name: str, domain: str = "localhost", folder: str = "state") -> Program:
        return self.start(
            name, "proxy", "--listen", "127.0.0.1:0", "--allow-target", "127.0.0.0/8",
            "--acme-domain", domain, "--acme-folder", self.folder / folder,
            "--acme-directory", f"https://localhost:{self.api}/dir",
            "--acme-ca", self.folder / "api" / "ca.pem", "--acme-listen", f"[::]:{self.proof}",
            "--acme-contact", "admin@proxy.example",
        )

    def get(self, proxy: Program) -> subprocess.CompletedProcess:
        port = proxy.says(r"^listening on \S+:(\d+)")[1]
        return self.run("get", f"https://{self.origin}/file", "--via", f"https://localhost:{port}",
                        "--ca", self.folder / "root.pem", "--ca", self.folder / "origin.pem",
                        "-o", self.folder / "got")

    def expect_get(self, proxy: Program) -> None:
        got = self.get(proxy)
        expect(got.returncode == 0, f"{got.stderr} {proxy.text()}")


def a_proxy_without_a_certificate_gets_uses_and_renews_one(scene: Scene) -> None:
    scene.start_pebble(LIFE)
    proxy = scene.proxy("first")
    proxy.says("there is no certificate in .* yet")
    proxy.says(ISSUED)
    proxy.says("renewed: ")
    scene.expect_get(proxy)
    file = scene.folder / "state" / "certificate.pem"
    first = hashlib.sha256(file.read_bytes()).hexdigest()
    proxy.says(ISSUED, times=2)
    proxy.says("renewed: ", times=2)
    expect(hashlib.sha256(file.read_bytes()).hexdigest() != first, "the certificate is the same")
    scene.expect_get(proxy)
    for path in (scene.folder / "state").iterdir():
        expect(path.stat().st_mode & 0o777 == 0o600, f"{path} has {path.stat().st_mode:o}")
    expect((scene.folder / "state").stat().st_mode & 0o777 == 0o700, "others can list the folder")
    proxy.stop()


def a_proxy_whose_authority_does_not_answer_serves_with_what_it_has(scene: Scene) -> None:
    scene.pebble.stop()
    proxy = scene.proxy("second")
    # The certificate of the check before is due within its life.
    proxy.says("error: no certificate for localhost from localhost: ")
    expect("there is no certificate" not in proxy.text(), "the certificate was not kept")
    port = proxy.says(r"^listening on \S+:(\d+)")[1]
    got = scene.run("get", f"https://{scene.origin}/file", "--via", f"https://localhost:{port}",
                    "--insecure", "-o", scene.folder / "got")
    expect(got.returncode == 0, got.stderr)
    expect(proxy.popen.poll() is None, "the proxy has ended")
    proxy.stop()


def a_proxy_that_starts_again_orders_nothing_and_keeps_its_account(scene: Scene) -> None:
    (scene.folder / "state" / "certificate.pem").unlink()
    account = (scene.folder / "state" / "account.json").read_bytes()
    (scene.folder / "state" / "account.json").unlink()  # this Pebble does not know it
    scene.start_pebble(90 * 24 * 60 * 60)
    for name in ("third", "fourth"):
        proxy = scene.proxy(name)
        if name == "third":
            proxy.says(ISSUED)
            proxy.says("renewed: ")
            account = (scene.folder / "state" / "account.json").read_bytes()
        scene.expect_get(proxy)
        time.sleep(3)
        expected = int(name == "third")
        expect(proxy.text().count(ISSUED) == expected, f"{name}: {proxy.text()}")
        expect((scene.folder / "state" / "account.json").read_bytes() == account, "another account")
        proxy.stop()
    # Another name needs another certificate, from the same account.
    kept = (scene.folder / "state" / "certificate.pem").read_bytes()
    proxy = scene.proxy("fifth", domain="blocked.example")
    refusal = proxy.says("error: no certificate for blocked.example from localhost: .*")[0]
    expect("blocked.example" in refusal and "asks again in 1 min" in refusal, refusal)
    scene.expect_get(proxy)
    expect((scene.folder / "state" / "certificate.pem").read_bytes() == kept, "another certificate")
    expect((scene.folder / "state" / "account.json").read_bytes() == account, "another account")
    proxy.stop()


def a_proxy_that_cannot_answer_the_authority_says_why(scene: Scene) -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", scene.proof))
        taken.listen()
        proxy = scene.proxy("sixth", folder="other")
        proxy.says("error: no certificate for localhost from localhost: cannot listen at .*acme-listen")
        proxy.says("^listening on ")
        proxy.stop()


CHECKS = [
    a_proxy_without_a_certificate_gets_uses_and_renews_one,
    a_proxy_whose_authority_does_not_answer_serves_with_what_it_has,
    a_proxy_that_starts_again_orders_nothing_and_keeps_its_account,
    a_proxy_that_cannot_answer_the_authority_says_why,
]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        scene = Scene(Path(folder))
        try:
            checks.main([functools.update_wrapper(functools.partial(check, scene), check) for check in CHECKS])
        finally:
            for program in scene.programs:
                program.stop()
