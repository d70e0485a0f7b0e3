"""A TCP connection through one hop: bulk in both directions, and round trips, with the CPU time of both ends.

    sender or receiver --- near end --- far end --- service
"""

import dataclasses
import getpass
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import time

import bed
from common import Failed, Processes, cpu_of_descendants, cpu_seconds, run_timed, start
from rounds import Part

CONTROLLER = pathlib.Path("/proc/sys/net/ipv4/tcp_congestion_control")
WORK = bed.BUILD / "tcp"
TOKEN = WORK / "token"
QUINN_TUNNEL = bed.BUILD / "release/quinn-tunnel"
TCP = bed.BUILD / "release/tcp"
WARM_UP_BYTES = 50_000_000
TIME_LIMIT = 60  # seconds of one connection
READY_LIMIT = 10  # seconds until a program without words listens
SETTLE = 0.1  # seconds in which the ends finish a connection
RATE = 2e9  # bit/s, an estimate
ROUND_TRIP = 0.0002  # seconds, likewise
HOST_KEY, USER_KEY, KNOWN_HOSTS = (WORK / name for name in ("host", "user", "known_hosts"))
# The cipher that all others have, too.
SSHD = f"""
ListenAddress 127.0.0.1
HostKey {HOST_KEY}
AuthorizedKeysFile {USER_KEY}.pub
Ciphers aes128-gcm@openssh.com
PermitRootLogin prohibit-password
PasswordAuthentication no
StrictModes no
UsePAM no
PidFile none
LogLevel ERROR
"""
HAPROXY = """
defaults
    mode tcp
    timeout connect 5s
    timeout client 60s
    timeout server 60s
listen relay
    bind {listen}
    server service {service}
"""


class Site(Processes):
    """The service, and the ends of a tunnel to it. `entrance` is what a program connects to."""

    far = near = None

    def __init__(self, contestant):
        super().__init__()
        self.contestant = contestant

    def set_up(self):
        _, self.service = self.serve([TCP, "serve"])
        self.entrance = self.service
        self.contestant.ends(self)
        for direction in ("up", "down"):
            self.connection(direction, WARM_UP_BYTES)

    def serve(self, command):
        """Starts a program that says where it listens."""
        process, (address,), _ = start(command, 1)
        self.processes.append(process)
        return process, address

    def serve_at(self, address, command):
        """Starts a program that does not."""
        said = subprocess.PIPE if os.environ.get("VERBOSE") else subprocess.DEVNULL
        process = subprocess.Popen(list(map(str, command)), stdin=subprocess.DEVNULL, stdout=said, stderr=None)
        self.processes.append(process)
        host, port = address.split(":")
        end = time.monotonic() + READY_LIMIT
        while time.monotonic() < end and process.poll() is None:
            try:
                socket.create_connection((host, int(port)), 1).close()
                return process
            except OSError:
                time.sleep(0.02)
        raise Failed(f"{' '.join(map(str, command))} does not listen")

    def connection(self, what, amount):
        _, out = run_timed([TCP, what, self.entrance, amount], TIME_LIMIT)
        return json.loads(out)

    def bulk(self, direction, length):
        before = self.spent()
        seconds = self.connection(direction, length)["seconds"]
        time.sleep(SETTLE)
        per_gb = {name: round((after - before[name]) / length * 1e9, 3) for name, after in self.spent().items()}
        return {"goodput_mbps": round(length * 8 / seconds / 1e6)} | per_gb

    def spent(self):
        ends = {"near_s_per_gb": self.near, "far_s_per_gb": self.far}
        return {name: cpu_seconds(end.pid) + cpu_of_descendants(end.pid) for name, end in ends.items() if end}


@dataclasses.dataclass
class Contestant(bed.Contestant):
    """`ends` starts both in a site."""

    ends: object = None


def contestant(name, ends):
    return Contestant(name, None, parts=("tcp",), ends=ends)


def of_tandem(one):
    """The two ways in which Tandem carries TCP. The second one has the options of the contestant."""

    def pair(site):
        keys = ["--cert", bed.CERT, "--key", bed.KEY, "--token-file", TOKEN]
        site.far, address = site.serve([one.program, "serve", "--listen", bed.ANY_PORT, "--dest", site.service, *keys])
        trust = ["--ca", bed.CA, "--token-file", TOKEN]
        site.near, site.entrance = site.serve([one.program, "connect", "--listen", bed.ANY_PORT, "--dest", address, *trust])

    def proxy(site):
        site.far, address = site.serve(one.proxy([]))
        command = [one.program, "client", "--via", f"https://{address}", "--ca", bed.CA, *one.options]
        site.near, site.entrance = site.serve([*command, "--tcp", f"{bed.ANY_PORT}={site.service}"])

    return [contestant(f"{one.name} serve/connect", pair)] * (not one.options) + [contestant(f"{one.name} proxy/client", proxy)]


def quinn_tunnel(site):
    keys = ["--cert", bed.CERT, "--key", bed.KEY]
    site.far, address = site.serve([QUINN_TUNNEL, "serve", "--listen", bed.ANY_PORT, "--dest", site.service, *keys])
    site.near, site.entrance = site.serve([QUINN_TUNNEL, "connect", "--listen", bed.ANY_PORT, "--dest", address, "--ca", bed.CA])


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def ssh(*kind):
    """OpenSSH with a server, keys and settings of its own. The server runs as this user, who logs in with a key."""

    def ends(site):
        port, local = free_port(), free_port()
        config = WORK / f"sshd-{port}"
        config.write_text(SSHD + f"Port {port}\n")
        site.far = site.serve_at(f"127.0.0.1:{port}", [shutil.which("sshd", path=SBIN), "-D", "-e", "-f", config])
        KNOWN_HOSTS.write_text(f"[127.0.0.1]:{port} {HOST_KEY.with_suffix('.pub').read_text()}")
        forward = f"127.0.0.1:{local}" + (f":{site.service}" if kind == ("-L",) else "")
        options = ["-N", "-F", "none", "-i", USER_KEY, "-o", f"UserKnownHostsFile={KNOWN_HOSTS}", "-o", "ExitOnForwardFailure=yes"]
        command = ["ssh", *options, "-p", port, *kind, forward, f"{getpass.getuser()}@127.0.0.1"]
        site.near = site.serve_at(f"127.0.0.1:{local}", command)
        site.entrance = f"127.0.0.1:{local}" + (f"={site.service}" if kind == ("-D",) else "")

    return ends


def haproxy(site):
    listen = f"127.0.0.1:{free_port()}"
    config = WORK / f"haproxy-{listen}"
    config.write_text(HAPROXY.format(listen=listen, service=site.service))
    site.near, site.entrance = site.serve_at(listen, [shutil.which("haproxy", path=SBIN), "-db", "-q", "-f", config]), listen


SBIN = os.environ["PATH"] + ":/usr/sbin:/sbin"


def contestants(tandems, peers):
    """Those of this part: Tandem's ways, and others, of which those are left out whose programs are not there."""
    found = [way for one in tandems for way in of_tandem(one)]
    if peers:
        found.append(contestant("quinn-tunnel", quinn_tunnel))
        for needed, more in (
            ("sshd", [contestant("ssh -L", ssh("-L")), contestant("ssh -D", ssh("-D"))]),
            ("haproxy", [contestant("haproxy", haproxy)]),
        ):
            if shutil.which(needed, path=SBIN):
                found += more
            else:
                print(f"{needed} is missing, and left out: apt-get install openssh-server haproxy", file=sys.stderr)
        found.append(contestant("no tunnel", lambda site: None))
    return found


def build(chosen):
    WORK.mkdir(parents=True, exist_ok=True)
    TOKEN.write_text("a-token-of-the-benchmark-which-is-no-secret\n")
    TOKEN.chmod(0o600)
    if any(one.ends is quinn_tunnel for one in chosen):
        bed.cargo_build("../tcp-over-quic/peers/quinn-tunnel", bed.BUILD)
    for key in (HOST_KEY, USER_KEY):
        if not key.exists() and shutil.which("ssh-keygen"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    if os.getuid() == 0:
        pathlib.Path("/run/sshd").mkdir(exist_ok=True)  # where sshd locks itself in, which it wants to exist


class Tcp(Part):
    name = "tcp"
    site = Site

    def __init__(self, given):
        controller = CONTROLLER.read_text().strip()
        cases = [{"kind": kind, "bytes": given.tcp_bytes, "congestion": controller} for kind in ("up", "down")]
        super().__init__(given.rounds, [*cases, {"kind": "echo", "bytes": 100, "congestion": controller}])
        self.echoes = 4 * given.echoes

    def takes(self, contestant, case):
        return self.name in contestant.parts

    def seconds(self, contestant, case):
        return self.echoes * ROUND_TRIP if case["kind"] == "echo" else case["bytes"] * 8 / RATE + SETTLE

    def run(self, site, case):
        if case["kind"] == "echo":
            return site.connection("echo", self.echoes)
        return site.bulk(case["kind"], case["bytes"])
