"""Checks the packages. Each check has a machine of its own and prints one line."""

import os
import re
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import checks
from checks import expect

PROJECT = Path(__file__).resolve().parents[2]
VERSIONS = ("0.1.0", "0.2.0")
TOKEN = "0123456789abcdef"
UNITS = ("tandem-proxy.service", "tandem-pep.service")
# What a package calls after an upgrade. A proxy whose unit is of another type could not be taken over from.
ASKS = "show --property=Type --value tandem-proxy.service"
RESTARTS = ("try-restart tandem-proxy.service", "try-restart tandem-pep.service")
TAKES_OVER = "kill --kill-who=main --signal=SIGUSR2 tandem-proxy.service"
# Tenths of what `systemd-analyze security` says. A unit without any restriction has 96. The PEP needs three privileges.
EXPOSURE_MAX = {"tandem-proxy.service": 17, "tandem-pep.service": 22}
OK_FILES = ("usr/bin/tandem", "usr/share/man/man1/tandem-proxy.1.gz", "usr/lib/systemd/system/tandem-proxy.service")


def output(*command, code: int = 0, **options) -> str:
    """Runs a program to its end, and returns all that it printed."""
    options = {"stdin": subprocess.DEVNULL, "timeout": 300} | options
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    result = subprocess.run([str(word) for word in command], check=False, **pipes, **options)
    said = f"{' '.join(map(str, command))}: exit code {result.returncode}: {result.stdout[-600:]}"
    expect(result.returncode == code, said)
    return result.stdout


class Machine:
    """This machine's file system, on which all that is written goes to memory."""

    def __init__(self, root: Path):
        self.root = root

    def path(self, name: str) -> Path:
        return self.root / name.lstrip("/")

    def run(self, *command, **options) -> str:
        return output("chroot", self.root, *command, **options)

    def has(self, *names: str) -> bool:
        return all(self.path(name).exists() for name in names)

    def called(self) -> list[str]:
        """Returns how systemctl was called, and forgets it."""
        log = self.path("systemctl.log")
        calls = log.read_text().splitlines() if log.exists() else []
        log.write_text("")
        return calls


@contextmanager
def machine():
    """A new machine, on which systemd seems to run."""
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        output("mount", "-t", "tmpfs", "-o", "size=2g", "tmpfs", base)
        try:
            upper, work, root = (base / name for name in ("upper", "work", "root"))
            for made in (upper, work, root):
                made.mkdir()
            layers = f"lowerdir=/,upperdir={upper},workdir={work}"
            output("mount", "-t", "overlay", "overlay", "-o", layers, root)
            try:
                made = Machine(root)
                made.path("run/systemd/system").mkdir(parents=True, exist_ok=True)
                systemctl = made.path("usr/bin/systemctl")
                systemctl.unlink(missing_ok=True)  # it may be a link
                systemctl.write_text('#!/bin/sh\necho "$*" >>/systemctl.log\ncase "$*" in show*) cat /service-type 2>/dev/null || true ;; esac\n')
                systemctl.chmod(0o755)
                for name in ("dev", "proc"):
                    output("mount", "--bind", f"/{name}", root / name)
                try:
                    yield made
                finally:
                    output("umount", root / "dev", root / "proc")
            finally:
                output("umount", root)
        finally:
            output("umount", base)


def package(machine: Machine, version: str, kind: str) -> str:
    """Puts a package into a machine, and returns its path there."""
    (file,) = (f for f in PACKAGES.glob(f"*.{kind}") if version in f.name)
    machine.path(f"/tmp/{file.name}").write_bytes(file.read_bytes())
    return f"/tmp/{file.name}"


def configure(machine: Machine) -> None:
    """What an operator does after the installation."""
    machine.run("tandem", "generate", "certificate", "/etc/tandem/dev")
    for name, made in (("chain.pem", "cert.pem"), ("key.pem", "key.pem"), ("ca.pem", "ca.pem")):
        machine.run("install", "-g", "tandem", "-m", "640", f"/etc/tandem/dev/{made}", f"/etc/tandem/{name}")
    machine.path("/etc/tandem/tokens.txt").write_text(f"alice {TOKEN}\n")
    machine.run("chgrp", "tandem", "/etc/tandem/tokens.txt")
    machine.path("/etc/tandem/tokens.txt").chmod(0o640)
    config = machine.path("/etc/tandem/proxy.toml")
    text = config.read_text().replace('listen = "[::]:443"', 'listen = "127.0.0.1:8443"')
    config.write_text(text + 'allow-target = ["127.0.0.0/8"]\n')


def a_deb_is_installed_upgraded_removed_and_purged() -> None:
    with machine() as host:
        host.run("dpkg", "-i", package(host, VERSIONS[0], "deb"))
        expect(host.has(*OK_FILES, "etc/tandem/proxy.toml"), "files are missing")
        expect("nologin" in host.run("getent", "passwd", "tandem"), "the user may log in")
        expect(host.called() == [ASKS, "daemon-reload", *RESTARTS], "other calls of systemctl")
        said = host.run("tandem", "proxy", "--config", "/etc/tandem/proxy.toml", "--check", code=2)
        expect("/etc/tandem/chain.pem" in said, f"the default configuration needs no certificate: {said}")
        configure(host)
        before = host.path("/etc/tandem/proxy.toml").read_text()
        host.run("dpkg", "-i", package(host, VERSIONS[1], "deb"))
        expect(VERSIONS[1] in host.run("dpkg-query", "-W", "tandem"), "it was not upgraded")
        expect(host.path("/etc/tandem/proxy.toml").read_text() == before, "the configuration was replaced")
        calls = host.called()
        expect(calls[-2:] == list(RESTARTS), f"a running service was not restarted: {calls}")
        host.run("tandem", "proxy", "--config", "/etc/tandem/proxy.toml", "--check")
        host.run("dpkg", "-r", "tandem")
        expect(host.called()[0] == f"disable --now {' '.join(UNITS)}", "the services were not stopped")
        expect(not host.has("usr/bin/tandem"), "the program is left")
        kept = ("etc/tandem/key.pem", "etc/tandem/tokens.txt", "etc/tandem/proxy.toml")
        expect(host.has(*kept), "files of the operator are gone")
        host.run("dpkg", "-P", "tandem")
        expect(host.has(*kept[:2]) and not host.has(kept[2]), "purging left the wrong files")


def the_service_runs_with_the_privileges_of_its_unit() -> None:
    with machine() as host:
        host.run("dpkg", "-i", package(host, VERSIONS[0], "deb"))
        configure(host)
        host.path("/srv/www").mkdir(parents=True)
        host.path("/srv/www/page").write_text("through the tunnel\n")
        unit = host.path("/usr/lib/systemd/system/tandem-proxy.service").read_text()
        (start,) = re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)
        user = ("setpriv", "--reuid", "tandem", "--regid", "tandem", "--clear-groups", "--no-new-privs")
        origin = ("tandem", "origin", "--listen", "127.0.0.1:4433", "--root", "/srv/www")
        certificate = ("--cert", "/etc/tandem/chain.pem", "--key", "/etc/tandem/key.pem")
        with running(host, *user, *start.split()), running(host, *user, *origin, *certificate):
            host.path("/tmp/token").write_text(TOKEN)
            via = ("--via", "https://127.0.0.1:8443", "--token-file", "/tmp/token", "--ca", "/etc/tandem/ca.pem")
            url = "https://127.0.0.1:4433/page"
            host.run("tandem", "get", url, *via, "--retry", "10s", "-o", "/tmp/page")
            expect(host.path("/tmp/page").read_text() == "through the tunnel\n", "another page came")


def the_commands_of_the_operating_page_work() -> None:
    """Those that neither build the program nor need another machine."""
    page = (PROJECT / "docs/guide/operating.md").read_text()
    commands = [line[2:].split("  #")[0] for line in page.splitlines() if line.startswith("$ ")]
    expect(len(commands) == 10, f"{len(commands)} commands")
    as_tandem = "setpriv --reuid tandem --regid tandem --clear-groups --no-new-privs "
    with machine() as host:
        host.run("dpkg", "-i", package(host, VERSIONS[0], "deb"))
        host.called()
        for command in commands[2:8]:
            said = host.run("sh", "-c", command.replace("sudo -u tandem ", as_tandem).replace("sudo ", ""))
            if "--check" in command:
                expect(all(word in said for word in ("acme-domain", "usage-store", "users-file")), f"settings are missing: {said}")
        expect(host.called() == ["enable --now tandem-proxy"], "the service was not started")


@contextmanager
def running(host: Machine, *command):
    log = tempfile.TemporaryFile("w+")
    process = subprocess.Popen(["chroot", str(host.root), *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        time.sleep(0.2)
        log.seek(0)
        expect(process.poll() is None, f"{command} ended: {log.read()[-400:]}")
        yield process
    finally:
        process.terminate()
        process.wait(20)


def the_units_are_valid_and_hardened() -> None:
    with machine() as host:
        host.run("dpkg", "-i", package(host, VERSIONS[0], "deb"))
        for unit in UNITS:
            file = f"/usr/lib/systemd/system/{unit}"
            said = host.run("systemd-analyze", "verify", file)
            expect(unit not in said, f"{unit}: {said}")
            threshold = ("--offline=yes", f"--threshold={EXPOSURE_MAX[unit]}")
            said = host.run("systemd-analyze", "security", *threshold, file)
            print(f"       {said.strip().splitlines()[-1]}")


def an_rpm_is_installed_upgraded_and_removed() -> None:
    with machine() as host:
        # Debian's programs are no packages of RPM.
        host.run("rpm", "-i", "--nodeps", package(host, VERSIONS[0], "rpm"))
        expect(host.has(*OK_FILES, "etc/tandem/proxy.toml"), "files are missing")
        configure(host)
        before = host.path("/etc/tandem/proxy.toml").read_text()
        host.path("/service-type").write_text("notify\n")
        host.called()
        host.run("rpm", "-U", "--nodeps", package(host, VERSIONS[1], "rpm"))
        expect(host.path("/etc/tandem/proxy.toml").read_text() == before, "the configuration was replaced")
        calls = host.called()
        expect(TAKES_OVER in calls and RESTARTS[0] not in calls, f"the new program does not take over: {calls}")
        expect(not any("disable" in call for call in calls), f"an upgrade has stopped services: {calls}")
        host.run("rpm", "-e", "tandem")
        expect(f"disable --now {' '.join(UNITS)}" in host.called(), "the services were not stopped")
        expect(not host.has("usr/bin/tandem") and host.has("etc/tandem/key.pem"), "the wrong files are left")


CHECKS = [
    a_deb_is_installed_upgraded_removed_and_purged,
    the_service_runs_with_the_privileges_of_its_unit,
    the_commands_of_the_operating_page_work,
    the_units_are_valid_and_hardened,
    an_rpm_is_installed_upgraded_and_removed,
]


def main() -> None:
    for version in VERSIONS:
        environment = {**os.environ, "VERSION": version}
        output(PROJECT / "deploy/package.sh", PACKAGES, env=environment, timeout=500)
    checks.main(CHECKS)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        PACKAGES = Path(folder)
        main()
