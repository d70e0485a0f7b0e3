"""Checks packages and releases. Each check has a machine of its own and prints one line."""

import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import checks
import documents
import made
import releases
from checks import expect
from machines import Machine, machine_with_systemd, running, wait_for

TOKEN = "0123456789abcdef"
SERVERS = ("proxy", "serve", "origin")
UNITS = tuple(f"tandem-{name}.service" for name in (*SERVERS, "client", "pep"))
# What a package calls after an upgrade. A server whose unit is of another type could not be taken over from.
ASKS = [f"show --property=Type --value tandem-{name}.service" for name in SERVERS]
RESTARTS = [f"try-restart {unit}" for unit in UNITS]
TAKE_OVER = [f"kill --kill-who=main --signal=SIGUSR2 tandem-{name}.service" for name in SERVERS]
# Tenths of what `systemd-analyze security` says. A unit without any restriction has 96. The PEP needs three privileges.
EXPOSURE_MAX = dict(zip(UNITS, (17, 16, 17, 14, 22), strict=True))
OK_FILES = (
    "usr/bin/tandem",
    "usr/share/man/man1/tandem-proxy.1.gz",
    *(f"usr/lib/systemd/system/{unit}" for unit in UNITS),
    *(f"etc/tandem/{unit[len('tandem-') : -len('.service')]}.toml" for unit in UNITS),
)


def package(machine: Machine, version: str, kind: str) -> str:
    """Puts a package into a machine, and returns its path there."""
    (file,) = ({made.OLD: made.FOLDER / "old", made.NEW: made.RELEASE}[version]).glob(f"*{version}*.{kind}")
    machine.path(f"/tmp/{file.name}").write_bytes(file.read_bytes())
    return f"/tmp/{file.name}"


def configure(machine: Machine) -> None:
    """What an operator does after the installation."""
    machine.run("tandem", "generate", "certificate", "/etc/tandem/dev")
    for name, generated in (("chain.pem", "cert.pem"), ("key.pem", "key.pem"), ("ca.pem", "ca.pem")):
        machine.run("install", "-g", "tandem", "-m", "640", f"/etc/tandem/dev/{generated}", f"/etc/tandem/{name}")
    machine.path("/etc/tandem/tokens.txt").write_text(f"alice {TOKEN}\n")
    machine.run("chgrp", "tandem", "/etc/tandem/tokens.txt")
    machine.path("/etc/tandem/tokens.txt").chmod(0o640)
    config = machine.path("/etc/tandem/proxy.toml")
    text = config.read_text().replace('listen = "[::]:443"', 'listen = "127.0.0.1:8443"')
    config.write_text(text + 'allow-target = ["127.0.0.0/8"]\n')


def a_deb_is_installed_upgraded_removed_and_purged() -> None:
    with machine_with_systemd() as host:
        host.run("dpkg", "-i", package(host, made.OLD, "deb"))
        expect(host.has(*OK_FILES), "files are missing")
        expect("nologin" in host.run("getent", "passwd", "tandem"), "the user may log in")
        expect(host.called() == [*ASKS, "daemon-reload", *RESTARTS], "other calls of systemctl")
        said = host.run("tandem", "proxy", "--config", "/etc/tandem/proxy.toml", "--check", code=2)
        expect("/etc/tandem/chain.pem" in said, f"the default configuration needs no certificate: {said}")
        configure(host)
        before = host.path("/etc/tandem/proxy.toml").read_text()
        host.run("dpkg", "-i", package(host, made.NEW, "deb"))
        expect(made.NEW in host.run("dpkg-query", "-W", "tandem"), "it was not upgraded")
        expect(host.path("/etc/tandem/proxy.toml").read_text() == before, "the configuration was replaced")
        calls = host.called()
        expect(calls[-len(UNITS) :] == RESTARTS, f"a running service was not restarted: {calls}")
        host.run("tandem", "proxy", "--config", "/etc/tandem/proxy.toml", "--check")
        host.run("dpkg", "-r", "tandem")
        expect(host.called()[0] == f"disable --now {' '.join(UNITS)}", "the services were not stopped")
        expect(not host.has("usr/bin/tandem"), "the program is left")
        kept = ("etc/tandem/key.pem", "etc/tandem/tokens.txt", "etc/tandem/proxy.toml")
        expect(host.has(*kept), "files of the operator are gone")
        host.run("dpkg", "-P", "tandem")
        expect(host.has(*kept[:2]) and not host.has(kept[2]), "purging left the wrong files")


def change(machine: Machine, name: str, **settings: str) -> None:
    """Changes settings of an example in /etc/tandem, and leaves the others as they are."""
    file = machine.path(f"/etc/tandem/{name}.toml")
    text = file.read_text()
    for key, value in settings.items():
        line = rf"^{key} = (\[?)[^#\n]*?(\]?)(\s*#.*)?$"
        text, found = re.subn(line, rf'{key} = \1"{value}"\2', text, flags=re.MULTILINE)
        expect(found == 1, f"{file.name} sets {key} {found} times")
    file.write_text(text)


@contextmanager
def service(host: Machine, name: str):
    """Starts the service of a unit, with the user and the privileges that it names."""
    unit = host.path(f"/usr/lib/systemd/system/tandem-{name}.service").read_text()
    (start,) = re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)
    user = ("setpriv", "--reuid", "tandem", "--regid", "tandem", "--clear-groups", "--no-new-privs")
    with running(host, *user, *start.split()):
        yield


def the_services_run_with_the_privileges_of_their_units() -> None:
    with machine_with_systemd() as host:
        host.run("dpkg", "-i", package(host, made.NEW, "deb"))
        configure(host)
        host.path("/srv/www").mkdir(parents=True)
        host.path("/srv/www/page").write_text("through the tunnel\n")
        change(host, "origin", listen="127.0.0.1:4433")
        via = ("--via", "https://127.0.0.1:8443", "--token-file", "/tmp/token", "--ca", "/etc/tandem/ca.pem")
        host.path("/tmp/token").write_text(TOKEN)
        with service(host, "proxy"), service(host, "origin"):
            url = "https://127.0.0.1:4433/page"
            host.run("tandem", "get", url, *via, "--retry", "10s", "-o", "/tmp/page")
            expect(host.path("/tmp/page").read_text() == "through the tunnel\n", "another page came")
            client_and_serve_carry_tcp(host)


def client_and_serve_carry_tcp(host: Machine) -> None:
    host.run("install", "-o", "tandem", "-m", "600", "/tmp/token", "/etc/tandem/client-token.txt")
    change(host, "client", via="https://127.0.0.1:8443", proxy="127.0.0.1:1081")
    with host.path("/etc/tandem/client.toml").open("a") as config:
        config.write('ca = ["/etc/tandem/ca.pem"]\n')
    # systemd makes it (StateDirectory=).
    host.run("install", "-d", "-o", "tandem", "-g", "tandem", "-m", "700", "/var/lib/tandem")
    change(host, "serve", listen="127.0.0.1:4434", dest=made.URL.removeprefix("http://"))
    notes = (made.RELEASE / "NOTES.md").read_text()
    ask = ("curl", "--silent", "--show-error", "--fail", "--retry", "20", "--retry-connrefused", "--retry-delay", "1")
    with service(host, "client"):
        page = host.run(*ask, "--proxy", "socks5h://127.0.0.1:1081", f"{made.URL}/release/NOTES.md")
        expect(page == notes, f"another page came through the client: {page[:80]}")
    connect = ("connect", "--dest", "127.0.0.1:4434", "--listen", "127.0.0.1:4435")
    pair = "/var/lib/tandem/pair/client.pem"
    with service(host, "serve"):
        wait_for("test", "-s", host.path(pair))
        with running(host, "tandem", *connect, "--pair", pair):
            page = host.run(*ask, "http://127.0.0.1:4435/release/NOTES.md")
            expect(page == notes, f"another page came through serve: {page[:80]}")


def the_units_are_valid_and_hardened() -> None:
    with machine_with_systemd() as host:
        host.run("dpkg", "-i", package(host, made.NEW, "deb"))
        for unit in UNITS:
            file = f"/usr/lib/systemd/system/{unit}"
            said = host.run("systemd-analyze", "verify", file)
            expect(unit not in said, f"{unit}: {said}")
            threshold = ("--offline=yes", f"--threshold={EXPOSURE_MAX[unit]}")
            said = host.run("systemd-analyze", "security", *threshold, file)
            print(f"       {said.strip().splitlines()[-1]}")


def an_rpm_is_installed_upgraded_and_removed() -> None:
    with machine_with_systemd() as host:
        # Debian's programs are no packages of RPM.
        host.run("rpm", "-i", "--nodeps", package(host, made.OLD, "rpm"))
        expect(host.has(*OK_FILES), "files are missing")
        configure(host)
        before = host.path("/etc/tandem/proxy.toml").read_text()
        host.path("/service-type").write_text("notify\n")
        host.called()
        host.run("rpm", "-U", "--nodeps", package(host, made.NEW, "rpm"))
        expect(host.path("/etc/tandem/proxy.toml").read_text() == before, "the configuration was replaced")
        calls = host.called()
        restarted = set(RESTARTS[: len(SERVERS)]) & set(calls)
        expect(set(TAKE_OVER) <= set(calls) and not restarted, f"the new program does not take over: {calls}")
        expect(not any("disable" in call for call in calls), f"an upgrade has stopped services: {calls}")
        host.run("rpm", "-e", "tandem")
        expect(f"disable --now {' '.join(UNITS)}" in host.called(), "the services were not stopped")
        expect(not host.has("usr/bin/tandem") and host.has("etc/tandem/key.pem"), "the wrong files are left")


# A script of interop/ whose program says where its machine is, and waits to be killed.
WAITING = """
. ./setup.sh
in_own_namespaces 60 python3 -c '
import sys, time
sys.path.append("packages")
from machines import machine
with machine("/") as host:
    print(host.root, flush=True)
    time.sleep(60)'
"""


def what_is_killed_leaves_no_mount_and_no_process() -> None:
    mounts = Path("/proc/self/mounts").read_text()
    script = subprocess.Popen(["bash", "-c", WAITING], stdout=subprocess.PIPE, text=True, cwd=made.PROJECT / "interop")
    root = Path(script.stdout.readline().strip())
    expect(root.name == "root", f"there is no machine: {root}")
    script.kill()
    script.wait(20)
    # The pipe ends when all processes have ended that have it.
    expect(script.stdout.read() == "", "it said more")
    expect(Path("/proc/self/mounts").read_text() == mounts, "other file systems are mounted than before")
    left = [path.name for path in root.parent.iterdir()]
    expect(left == [], f"files are left: {left}")
    root.parent.rmdir()


CHECKS = [
    what_is_killed_leaves_no_mount_and_no_process,
    a_deb_is_installed_upgraded_removed_and_purged,
    the_services_run_with_the_privileges_of_their_units,
    the_units_are_valid_and_hardened,
    an_rpm_is_installed_upgraded_and_removed,
]


def main() -> None:
    # Whoever ends this, ends programs and unmounts file systems too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    made.make()
    every = CHECKS + documents.CHECKS + releases.CHECKS
    checks.main([check for check in every if all(word in check.__name__ for word in sys.argv[1:])])


if __name__ == "__main__":
    main()
