"""From a fresh user to the first byte through a proxy, with the commands that a user types."""

import os
import subprocess
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import checks
from checks import expect
from namespaces import Hosts, connect
from packages.machines import leave_the_network, mount, output

TANDEM = os.environ["TANDEM"]
TOKEN = "0123456789abcdef"
PAGE = "It came through the tunnel.\n"
# Addresses that nobody has, and that are not private, so that they are reached through the tunnel.
PROXY, SITE = "192.0.2.1", "192.0.2.2"
URL = "http://www.example:8080/page"
USER = 4711  # a user whom this machine does not know

COMMANDS_MAX = 2
SECONDS_MAX = 60

# What of systemd's tool a user needs: it starts what the unit says, and ends it.
SYSTEMCTL = """#!/bin/sh
case "$*" in
    *restart*)
        sh -c "exec $(sed -n 's/^ExecStart=//p' "$HOME/.config/systemd/user/tandem-up.service")" >"$HOME/log" 2>&1 &
        echo $! >"$HOME/pid" ;;
    *is-active*) kill -0 "$(cat "$HOME/pid")" ;;
esac
"""


class World:
    """A proxy, a site, and names for both."""

    def __init__(self, folder: Path, stack: ExitStack):
        self.folder, self.stack = folder, stack
        folder.chmod(0o755)
        for address in (PROXY, SITE):
            output("ip", "address", "add", f"{address}/32", "dev", "lo")
        hosts = folder / "hosts"
        hosts.write_text(f"127.0.0.1 localhost\n{PROXY} proxy.example\n{SITE} www.example\n")
        output("mount", "--bind", hosts, "/etc/hosts")
        stack.callback(output, "umount", "/etc/hosts")
        output(TANDEM, "generate", "certificate", folder / "dev", "--name", "proxy.example")
        (folder / "dev/ca.pem").chmod(0o644)
        (folder / "dev").chmod(0o755)
        (folder / "tokens").write_text(f"alice {TOKEN}\n")
        (folder / "tokens").chmod(0o600)
        (folder / "www").mkdir()
        (folder / "www/page").write_text(PAGE)
        self.start("site", "python3", "-u", "-m", "http.server", "8080", "--bind", SITE, "--directory", folder / "www")
        files = ("--cert", folder / "dev/cert.pem", "--key", folder / "dev/key.pem", "--token-file", folder / "tokens")
        listen = ("--listen", f"{PROXY}:443", "--allow-target", f"{SITE}/32", "--log-flows", "targets")
        self.proxy = self.start("proxy", TANDEM, "proxy", *listen, *files)
        wait_for("the proxy", lambda: "listening on" in self.proxy.read_text())

    def start(self, name: str, *command, **options) -> Path:
        """Starts a program that runs until the world ends, and returns its log."""
        log = self.folder / f"{name}.log"
        with log.open("w") as file:
            options = {"stdin": subprocess.DEVNULL} | options
            process = subprocess.Popen([str(word) for word in command], stdout=file, stderr=file, **options)
        self.stack.callback(process.wait, 20)
        self.stack.callback(process.terminate)
        return log


class FreshUser:
    """A user with an empty home, who has the program and nothing else."""

    def __init__(self, world: World, name: str, has_systemd: bool):
        self.world, self.name = world, name
        self.home = world.folder / f"home-{name}"
        self.commands: list[str] = []
        self.path = "/usr/bin:/bin"
        self.environment = {"HOME": str(self.home)}
        for folder in (self.home, self.home / "run", self.home / "bin"):
            folder.mkdir()
            os.chown(folder, USER, USER)
        if has_systemd:
            tool = self.home / "bin/systemctl"
            tool.write_text(SYSTEMCTL)
            tool.chmod(0o755)
            self.path = f"{self.home}/bin:{self.path}"
            self.environment["XDG_RUNTIME_DIR"] = str(self.home / "run")
        self.environment["PATH"] = self.path
        # The CA of the test stands for one that every machine trusts.
        self.environment["SSL_CERT_FILE"] = str(world.folder / "dev/ca.pem")
        self.begin = time.monotonic()

    def words(self, *command) -> tuple:
        self.commands.append(" ".join(map(str, command)))
        program = (TANDEM if command[0] == "tandem" else command[0], *command[1:])
        return ("setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", *program)

    def types(self, *command, line: str = "") -> str:
        """Runs a command to its end, with a line that the user types."""
        options = {"env": self.environment, "cwd": self.home}
        if not line:
            return output(*self.words(*command), **options)
        return output(*self.words(*command), input=line + "\n", stdin=None, **options)

    def leaves_running(self, ready: str, *command) -> None:
        """Runs a command in another terminal, until it says that it is ready."""
        log = self.world.start(self.name, *self.words(*command), env=self.environment, cwd=self.home)
        wait_for(ready, lambda: ready in log.read_text())

    def gets_the_page(self) -> None:
        """The last command. Checks what it took to come here."""
        curl = ("curl", "--silent", "--show-error", "--fail", "--proxy", "socks5h://127.0.0.1:1080", URL)
        page = self.types(*curl)
        seconds = time.monotonic() - self.begin
        expect(page == PAGE, f"another page came: {page}")
        flows = self.world.proxy.read_text().count(f"user=alice destination={SITE}:8080")
        expect(flows > 0, f"it did not come through the proxy: {self.world.proxy.read_text()[-600:]}")
        print(f"       {len(self.commands)} commands, {seconds:.1f} s: {'; '.join(self.commands)}")
        expect(len(self.commands) <= COMMANDS_MAX, "there are too many commands")
        expect(seconds <= SECONDS_MAX, "it took too long")


def wait_for(what: str, condition) -> None:
    for _ in range(400):
        if condition():
            return
        time.sleep(0.05)
    expect(False, f"{what}: nothing within 20 s")


@contextmanager
def world():
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        leave_the_network()
        yield World(Path(folder), stack)


def link(around: World) -> str:
    """The link of a user, with the fingerprint of the certificate, as its operator makes it."""
    files = ("--token-file", around.folder / "tokens", "--cert", around.folder / "dev/cert.pem")
    file = around.folder / "link"
    output(TANDEM, "generate", "profile", "tandem", "--via", f"https://{PROXY}", "--user", "alice", *files, "-o", file)
    return file.read_text().strip()


def a_name_and_a_token_with_a_systemd_take_two_commands() -> None:
    with world() as around:
        user = FreshUser(around, "name", has_systemd=True)
        try:
            said = user.types("tandem", "up", "proxy.example", line=TOKEN)
            expect("is up, as tandem-up.service" in said, said)
            user.gets_the_page()
        finally:
            os.kill(int((user.home / "pid").read_text()), 15)


def a_link_without_a_domain_and_without_a_systemd_takes_two_commands() -> None:
    with world() as around:
        user = FreshUser(around, "link", has_systemd=False)
        user.environment.pop("SSL_CERT_FILE")
        user.leaves_running("tunnel up", "tandem", "up", link(around))
        user.gets_the_page()


class TwoHosts(Hosts):
    """A server with a range of ports, behind a network that lets nothing through to port 443, and a client."""

    RANGE = """table ip tandem {
        chain blocked { type filter hook prerouting priority raw; udp dport 443 drop; }
        chain range { type nat hook prerouting priority dstnat; udp dport 20000-20100 redirect to :443; }
    }"""
    # What comes from another port than the one that was asked is lost, as at a NAT.
    ASKED = "table ip asked { chain input { type filter hook input priority 0; udp sport != 20050 drop; }; }"

    def __init__(self):
        super().__init__("server", "client")
        self.server, self.client = self.all

    def make(self) -> None:
        connect(self.server, "198.51.100.1", self.client, "198.51.100.2")
        self.server.rules(self.RANGE)


def a_range_of_ports_is_one_proxy() -> None:
    with ExitStack() as stack:
        mount(stack, Path("/run/netns"), "-t", "tmpfs", "tmpfs")
        hosts = stack.enter_context(TwoHosts())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        programs = stack.enter_context(ExitStack())
        start = World.start.__get__(type("Place", (), {"folder": folder, "stack": programs})())
        output(TANDEM, "generate", "certificate", folder / "dev", "--name", "198.51.100.1")
        token = folder / "token"
        token.write_text(f"alice {TOKEN}\n")
        token.chmod(0o600)
        files = ("--cert", folder / "dev/cert.pem", "--key", folder / "dev/key.pem", "--token-file", token)
        listen = ("--listen", "198.51.100.1:443", "--allow-target", "198.51.100.1/32")
        proxy = start("proxy", *hosts.server.inside(TANDEM, "proxy", *listen, *files))
        wait_for("the proxy", lambda: "listening on" in proxy.read_text())
        ask = hosts.client.inside(TANDEM, "ping", "--ca", folder / "dev/ca.pem", "--token-file", folder / "own")
        (folder / "own").write_text(f"{TOKEN}\n")
        (folder / "own").chmod(0o600)
        for port in (20000, 20050, 20100):
            output(*ask, "--count", "2", "--interval", "50ms", "--via", f"https://198.51.100.1:{port}")
        # Nothing comes from the blocked port. Outside of the range, the server itself refuses.
        for port, code in ((443, 124), (20101, 1)):
            output("timeout", "2", *ask, "--count", "1", "--via", f"https://198.51.100.1:{port}", code=code)
        # A client that is given a blocked port and another one takes the other one.
        both = "https://198.51.100.1:443,https://198.51.100.1:20001"
        said = output(*ask, "--count", "1", "--via", both)
        expect("1 answered" in said and "198.51.100.1:20001" in said, f"the client did not choose: {said}")
        # A tunnel by one port stays up while its client gets another address.
        hosts.client.rules(TwoHosts.ASKED)
        hosts.client.set("net.ipv4.conf.all.promote_secondaries", 1)
        words = (TANDEM, "ping", *ask[ask.index("--ca") :], "--count", "40", "--interval", "100ms")
        log = start("ping", *hosts.client.inside(*words, "--via", "https://198.51.100.1:20050"))
        wait_for("five answers", lambda: "\n5: " in log.read_text())
        hosts.client.ip("address", "add", "198.51.100.3/24", "dev", "to-server")
        hosts.client.ip("address", "del", "198.51.100.2/24", "dev", "to-server")
        wait_for("the end", lambda: "\n40: " in log.read_text())
        said = log.read_text()
        expect("40 answered, 0 failed" in said, f"the tunnel did not stay up: {said[-700:]}")
        expect("retry" not in said and "again" not in said, f"the tunnel was built again: {said[-700:]}")


if __name__ == "__main__":
    checks.main(
        [
            a_name_and_a_token_with_a_systemd_take_two_commands,
            a_link_without_a_domain_and_without_a_systemd_takes_two_commands,
            a_range_of_ports_is_one_proxy,
        ]
    )
