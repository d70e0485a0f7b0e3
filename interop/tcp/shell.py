"""ssh and scp with `tandem client --stdio` as their ProxyCommand, to an sshd of the test."""

import getpass
import os
import shlex
import shutil
import socket
import subprocess
from pathlib import Path

import servers
from files import LARGE, MEDIUM, ROOT, sha256
from processes import END_TIMEOUT, Lab, free_port, wait
from servers import TANDEM, Server
from tcp.tunnel import check, check_carried, check_equal, via

REMOTE_EXIT = 37  # any code that neither ssh nor tandem has of its own


class Shell:
    """An sshd, a proxy, and the options with which ssh and scp reach the one through the other."""

    def __init__(self, lab: Lab):
        self.lab = lab
        self.proxy = servers.tandem_proxy(lab)
        self.keys = lab.logs / "keys"
        self.keys.mkdir()
        self.port = self.start_sshd()

    def start_sshd(self) -> int:
        """Starts an sshd with its own keys and settings, which permits only the key of the case."""
        for name in ("host", "user"):
            make = ("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.keys / name)
            subprocess.run(make, check=True)
        shutil.copy(self.keys / "user.pub", self.keys / "authorized")
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd needs it if it has privileges
        port = free_port(socket.SOCK_STREAM)
        settings = {
            "ListenAddress": f"127.0.0.1:{port}",
            "HostKey": self.keys / "host",
            "AuthorizedKeysFile": self.keys / "authorized",
            "PidFile": "none",
            "StrictModes": "no",  # the folder may be below one that others can write to
            "UsePAM": "no",
            "PasswordAuthentication": "no",
            "KbdInteractiveAuthentication": "no",
            "PermitRootLogin": "prohibit-password",
            "PrintMotd": "no",
            "Subsystem": "sftp internal-sftp",
        }
        config = self.keys / "sshd_config"
        config.write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
        program = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
        sshd = self.lab.start("sshd", program, "-D", "-e", "-f", config)
        sshd.wait_for(r"Server listening on 127\.0\.0\.1")
        host = (self.keys / "host.pub").read_text()
        (self.keys / "known").write_text(f"[127.0.0.1]:{port} {host}")
        return port

    def options(self) -> list[str]:
        through = [TANDEM, "client", *map(str, via(self.proxy)), "--stdio", "%h:%p"]
        settings = {
            "ProxyCommand": shlex.join(through),
            "IdentityFile": self.keys / "user",
            "IdentitiesOnly": "yes",
            "UserKnownHostsFile": self.keys / "known",
            "GlobalKnownHostsFile": os.devnull,
            "StrictHostKeyChecking": "yes",
            "BatchMode": "yes",
            "Port": self.port,
            "User": getpass.getuser(),
        }
        options = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
        return ["-F", os.devnull, *options]

    def ssh(self, command: str, **options) -> str:
        """Runs a command, and returns its output and what ssh and tandem have printed."""
        log = self.lab.run("ssh", "ssh", *self.options(), "127.0.0.1", command, **options)
        return log.read_text().split("\n", 1)[1]

    def scp(self, *files) -> None:
        self.lab.run("scp", "scp", "-q", *self.options(), *files)

    def check_carried(self, up: int = 0, down: int = 0) -> None:
        # The sshd is no `Server` of the matrix, but its address is in the same form.
        check_carried(self.proxy, Server(self.proxy.process, self.port), up, down)


def commands(lab: Lab) -> None:
    """Runs remote commands. Their output, exit code, and the end of their input must arrive."""
    shell = Shell(lab)
    check("the output of `echo`", shell.ssh("echo it came"), "it came\n")
    shell.ssh(f"exit {REMOTE_EXIT}", expect=REMOTE_EXIT)
    file = ROOT / MEDIUM
    found = shell.ssh("sha256sum", stdin=file)  # it answers after the end of its input
    check("what `sha256sum` has read", found.split()[0], sha256(file))
    (lines := lab.logs / "lines").write_text("one\ntwo\n")
    check("the output of `cat`", shell.ssh("cat", stdin=lines), "one\ntwo\n")
    shell.check_carried(up=file.stat().st_size)


def copies(lab: Lab) -> None:
    """Copies a file there and back."""
    shell = Shell(lab)
    there, back = lab.logs / "there", lab.logs / "back"
    shell.scp(ROOT / LARGE, f"127.0.0.1:{there}")
    check_equal(there, ROOT / LARGE)
    shell.scp(f"127.0.0.1:{there}", back)
    check_equal(back, ROOT / LARGE)
    length = there.stat().st_size
    shell.check_carried(up=length, down=length)


def refused(lab: Lab) -> None:
    """Connects to a port at which nothing listens. ssh must fail, and tandem must say why."""
    shell = Shell(lab)
    shell.port = free_port(socket.SOCK_STREAM)
    log = lab.run("ssh", "ssh", *shell.options(), "127.0.0.1", "true", expect=255)
    # ssh does not wait for its ProxyCommand.
    wait(lambda: "connection refused" in log.read_text(), "cause on the screen", END_TIMEOUT)


SSH_CASES = [
    ("ProxyCommand --stdio, commands, exit code, half-close", commands),
    ("ProxyCommand --stdio, scp of 20 MB there and back", copies),
    ("ProxyCommand --stdio, a port that is closed", refused),
]
