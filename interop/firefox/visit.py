"""Performs transfers with a headless Firefox through a MASQUE proxy: visit.py PLAN FOLDER

PLAN is JSON. It has the ports of proxy and origin, the CA in PEM, the protocol of the origin, for each transfer the file
and whether it is an upload, and if Firefox gets another add-on than that of this folder its file and name. This program controls Firefox with its remote protocol, Marionette."""

import base64
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

START_TIMEOUT = 30  # seconds
SCRIPT_TIMEOUT = 30_000  # milliseconds
EXTENSION = Path(__file__).parent / "extension"
EXTENSION_ID = "masque@interop.test"  # as in its manifest

TRUST = """
const base64 = arguments[0].replace(/-----[^-]*-----|\\s/g, "");
const certificates = Cc["@mozilla.org/security/x509certdb;1"].getService(Ci.nsIX509CertDB);
certificates.addCertFromBase64(base64, "C,,");
"""
EXTENSION_RUNS = """
return WebExtensionPolicy.getByID(arguments[0])?.extension.backgroundState === "running";
"""
TRANSFER = """
const [path, upload, done] = arguments;
const hex = bytes => Array.from(bytes, byte => byte.toString(16).padStart(2, "0")).join("");
(async () => {
  const options = { cache: "no-store" };
  if (upload) {
    const file = await (await fetch(path, options)).arrayBuffer();
    const answer = await fetch(path, { method: "POST", body: file });
    return (await answer.text()).trim();
  }
  const answer = await fetch(path, options);
  return hex(new Uint8Array(await crypto.subtle.digest("SHA-256", await answer.arrayBuffer())));
})().then(done, error => done(String(error)));
"""
PROTOCOLS = """
return performance.getEntries().filter(entry => "nextHopProtocol" in entry)
  .map(entry => entry.nextHopProtocol);
"""


class Marionette:
    """Firefox's remote protocol: JSON arrays, each after its length and a colon."""

    def __init__(self, port: int):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.settimeout(SCRIPT_TIMEOUT / 1000 + 10)
        self.file = self.socket.makefile("rb")
        self.read()  # this reads Firefox's greeting

    def read(self):
        length = b""
        while (byte := self.file.read(1)) != b":":
            if not byte:
                raise ConnectionError("Firefox ended")
            length += byte
        return json.loads(self.file.read(int(length)))

    def command(self, name: str, **parameters):
        message = json.dumps([0, 1, name, parameters]).encode()
        self.socket.sendall(b"%d:%s" % (len(message), message))
        _, _, error, result = self.read()
        if error:
            raise RuntimeError(f"{name}: {error['message']}")
        return result

    def script(self, script: str, *arguments, form: str = "ExecuteScript"):
        return self.command(f"WebDriver:{form}", script=script, args=arguments)["value"]


def preferences(plan: dict) -> dict:
    mapping = f"proxy.test;h3=:{plan['proxy']}"
    if plan["protocol"] == "h3":
        mapping = f"127.0.0.1;h3=:{plan['origin']},{mapping}"
    return {
        "marionette.port": 0,  # Firefox chooses a port and writes it to a file
        "network.dns.localDomains": "proxy.test",
        # Firefox can learn of HTTP/3 neither from DNS nor from a response over TCP.
        "network.http.http3.alt-svc-mapping-for-testing": mapping,
        "nimbus.rollouts.enabled": False,
        "network.http.http3.disable_when_third_party_roots_found": False,
        "network.proxy.allow_hijacking_localhost": True,
    }


def start(folder: Path, plan: dict) -> subprocess.Popen:
    profile = folder / "profile"
    profile.mkdir()
    lines = [
        f"user_pref({json.dumps(name)}, {json.dumps(value)});\n"
        for name, value in preferences(plan).items()
    ]
    (profile / "user.js").write_text("".join(lines))
    command = ("firefox-esr", "--headless", "--no-remote", "--profile", profile)
    marionette = ("--marionette", "--remote-allow-system-access")
    return subprocess.Popen([*command, *marionette], env={**os.environ, "HOME": str(profile)})


def extension(folder: Path, plan: dict) -> Path:
    """Returns the add-on of the plan, or a copy of this folder's with the proxy's port."""
    if "add-on" in plan:
        return Path(plan["add-on"])
    copy = folder / "extension"
    shutil.copytree(EXTENSION, copy)
    script = copy / "background.js"
    script.write_text(script.read_text().replace("PROXY_PORT", str(plan["proxy"])))
    return copy


def wait(condition):
    deadline = time.monotonic() + START_TIMEOUT
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError("Firefox does not start")
        time.sleep(0.05)
    return value


def port_of(profile: Path) -> int | None:
    file = profile / "MarionetteActivePort"
    return int(file.read_text() or 0) if file.exists() else None


def visit(firefox: Marionette, plan: dict, extension: Path) -> list[str]:
    firefox.command("WebDriver:NewSession", timeouts={"script": SCRIPT_TIMEOUT})
    firefox.command("Marionette:SetContext", value="chrome")
    firefox.script(TRUST, base64.b64decode(plan["ca"]).decode())
    firefox.command("Addon:Install", path=str(extension), temporary=True)
    wait(lambda: firefox.script(EXTENSION_RUNS, plan.get("id", EXTENSION_ID)))
    firefox.command("Marionette:SetContext", value="content")
    hashes = []
    for file, upload in plan["transfers"]:
        # Firefox loads the page before each transfer.
        firefox.command("WebDriver:Navigate", url=f"https://127.0.0.1:{plan['origin']}/page.html")
        hashes.append(firefox.script(TRANSFER, file, upload, form="ExecuteAsyncScript"))
        protocols = firefox.script(PROTOCOLS)
        print(firefox.command("WebDriver:GetTitle")["value"], protocols, file=sys.stderr)
        if set(protocols) != {plan["protocol"]}:
            sys.exit(f"a transfer used another protocol than {plan['protocol']}: {protocols}")
    return hashes


def main(plan: dict, folder: Path) -> None:
    process = start(folder, plan)
    try:
        port = wait(lambda: port_of(folder / "profile"))
        firefox = Marionette(port)
        hashes = visit(firefox, plan, extension(folder, plan))
        firefox.command("Marionette:Quit", flags=["eForceQuit"])
        process.wait(10)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        shutil.rmtree(folder / "profile", ignore_errors=True)
    print("hashes:", *hashes)


signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # this also ends Firefox
main(json.loads(sys.argv[1]), Path(sys.argv[2]))
