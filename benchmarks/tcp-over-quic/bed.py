"""The contestants, and the places in which they run.

    sender or receiver -> client of the tunnel ---- link ---- server of the tunnel -> service

A place is the loopback of this host, or two network namespaces with `tandem lab link` between them
(root, /dev/net/tun). What is started here ends here.
"""

import dataclasses
import json
import os
import pathlib
import queue
import resource
import signal
import subprocess
import sys
import threading
import time

from common import stop

HERE = pathlib.Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
BUILD = pathlib.Path(os.environ.get("CARGO_TARGET_DIR") or REPOSITORY / "target").absolute()
WORK = BUILD / "tcp-over-quic"
TANDEM = os.environ.get("TANDEM") or str(BUILD / "release/tandem")
QUINN = str(WORK / "cargo/release/quinn-tunnel")
HYSTERIA = str(WORK / "sing-hysteria2")
CERTIFICATES = WORK / "certificates"
CA, CERT, KEY = (CERTIFICATES / name for name in ("ca.pem", "cert.pem", "key.pem"))
TOKEN = WORK / "token"
PAIR = WORK / "pair"
NEAR, FAR = "toq-near", "toq-far"
FAR_ADDRESS = "10.79.0.2"
TUNNEL_PORT, LOCAL_PORT, SERVICE_PORT = 14433, 15001, 15002
START_TIMEOUT = 30  # seconds

signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends what was started, too


class Failed(Exception):
    """A run that came to nothing. The others go on."""


@dataclasses.dataclass
class Place:
    near: list  # what to put before a command
    far: list
    server: str  # address of the far end
    flow: str  # the folder for what the receivers write

    def service(self):
        """Where the service listens: the plain TCP of the kernel reaches it over the link."""
        return f"0.0.0.0:{SERVICE_PORT}"

    def tunnel(self):
        return f"{self.server}:{TUNNEL_PORT}"


LOCAL = f"127.0.0.1:{LOCAL_PORT}"
TARGET = f"127.0.0.1:{SERVICE_PORT}"  # as the server of a tunnel sees the service


@dataclasses.dataclass
class Contestant:
    """`server` and `client` make the command lines of the two ends from (place, Mbit/s of the link)."""

    label: str
    server: object = None  # none: plain TCP
    client: object = None
    controller: str = "cubic"  # of the TCP connection that is measured
    only: tuple = ("q1", "q2", "q3", "q4", "loopback", "connect")
    wide: bool = False  # with large limits for the buffers of TCP
    needs: tuple = ()  # a subcommand, and a flag in its help


def quinn(controller, *flags):
    def server(place, _):
        return [QUINN, "serve", "--listen", place.tunnel(), "--dest", TARGET, "--cert", CERT,
                "--key", KEY, "--controller", controller, "--streams", 2000, *flags]  # fmt: skip

    def client(place, _):
        return [QUINN, "connect", "--listen", LOCAL, "--dest", place.tunnel(), "--ca", CA,
                "--controller", controller, *flags]  # fmt: skip

    return server, client


def hysteria(brutal):
    def server(place, mbps):
        return [HYSTERIA, "serve", "-listen", place.tunnel(), "-cert", CERT, "-key", KEY,
                "-mbps", mbps if brutal else 0]  # fmt: skip

    def client(place, mbps):
        return [HYSTERIA, "connect", "-listen", LOCAL, "-server", place.tunnel(), "-dest", TARGET,
                "-ca", CA, "-mbps", mbps if brutal else 0]  # fmt: skip

    return server, client


def tandem_proxy(place, _):
    return [TANDEM, "proxy", "--listen", place.tunnel(), "--cert", CERT, "--key", KEY,
            "--token-file", TOKEN, "--allow-target", "127.0.0.0/8"]  # fmt: skip


def tandem_client(place, _):
    return [TANDEM, "client", "--via", f"https://{place.tunnel()}", "--ca", CA, "--token-file",
            TOKEN, "--tcp", f"{LOCAL}={TARGET}"]  # fmt: skip


def tandem_serve(place, _):
    """Its first start makes the folder with the file for the other end."""
    return [TANDEM, "serve", "--listen", place.tunnel(), "--dest", TARGET, "--pair", PAIR]


def tandem_connect(place, _):
    return [TANDEM, "connect", "--listen", LOCAL, "--dest", place.tunnel(), "--pair",
            PAIR / "client.pem"]  # fmt: skip


LINKS = ("q1", "q2", "q3", "q4")
CONTESTANTS = {
    "tandem": Contestant("Tandem, client and proxy", tandem_proxy, tandem_client,
                         needs=("client", "--tcp")),
    "tandem-pair": Contestant("Tandem, connect and serve", tandem_serve, tandem_connect,
                              needs=("connect", "--pair")),
    "tcp-cubic": Contestant("plain TCP, CUBIC"),
    "tcp-bbr": Contestant("plain TCP, BBR", controller="bbr", only=(*LINKS,)),
    "tcp-bbr-wide": Contestant("plain TCP, BBR, 64 MB buffers", controller="bbr", wide=True,
                               only=("q3",)),
    "quinn-cubic": Contestant("quinn tunnel, CUBIC", *quinn("cubic")),
    "quinn-bbr": Contestant("quinn tunnel, BBR", *quinn("bbr"), only=(*LINKS, "loopback")),
    "quinn-bbr-wide": Contestant("quinn tunnel, BBR, 64 MB windows",
                                 *quinn("bbr", "--window", 64_000_000), only=("q3",)),
    "hysteria-bbr": Contestant("sing-quic Hysteria 2, BBR", *hysteria(False)),
    "hysteria-brutal": Contestant("sing-quic Hysteria 2, Brutal at the link's rate",
                                  *hysteria(True), only=(*LINKS,)),
}  # fmt: skip


def there(name):
    """Whether this contestant can be run: an older tandem has no TCP."""
    needs = CONTESTANTS[name].needs
    if not needs:
        return True
    command, flag = needs
    shown = subprocess.run([TANDEM, command, "--help"], capture_output=True, text=True)
    return shown.returncode == 0 and flag in shown.stdout


def prepare():
    """Builds the programs that are missing, and makes certificates for all tunnels."""
    WORK.mkdir(parents=True, exist_ok=True)
    if "TANDEM" not in os.environ:
        build(["cargo", "build", "--release", "--bin", "tandem"], REPOSITORY)
    build(["cargo", "build", "--release", "--locked", "--target-dir", WORK / "cargo"],
          HERE / "peers/quinn-tunnel")  # fmt: skip
    build(["go", "build", "-o", HYSTERIA, "."], HERE / "peers/sing-hysteria2")
    if not KEY.exists():
        names = ["--name", FAR_ADDRESS]
        subprocess.run([TANDEM, "generate", "certificate", CERTIFICATES, *names], check=True)
    TOKEN.write_text("a-token-of-the-benchmark-which-is-no-secret\n")
    TOKEN.chmod(0o600)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # 1000 connections need them


def build(command, folder):
    print("building in", folder, file=sys.stderr)
    subprocess.run([*map(str, command)], cwd=folder, check=True)


class Processes:
    """Ends what it started, last first."""

    def __init__(self):
        self.started = []

    def start(self, *command, ready, stdout=subprocess.DEVNULL):
        """Returns when a line on standard error has the word. The lines after it are read and dropped."""
        process = subprocess.Popen(
            [*map(str, command)], stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        self.started.append(process)
        lines = queue.Queue()
        threading.Thread(target=read, args=(process.stderr, lines), daemon=True).start()
        said, end = [], time.monotonic() + START_TIMEOUT
        while (left := end - time.monotonic()) > 0:
            try:
                line = lines.get(timeout=left)
            except queue.Empty:
                break
            if line is None:
                break
            said.append(line.strip())
            if ready in line:
                return process
        raise Failed(f"not ready: {' '.join(process.args)}: {' / '.join(said[:3])}")

    def stop(self):
        stop(self.started)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


def read(pipe, lines):
    """Keeps a few lines for the one who waits, and drops the others, so that the pipe never fills."""
    for line in pipe:
        if lines.qsize() < 100:
            lines.put(line)
    lines.put(None)


def inside(namespace):
    return ["ip", "netns", "exec", namespace]


def set_up_namespaces(wide):
    """The link has made them. Buffers are as large as the host allows, unless `wide`.

    A route names CUBIC for the short TCP connections between a tunnel's ends and what they serve;
    a namespace may not have it as its default where the host does not allow it for all users.
    """
    settings = ["net.ipv4.tcp_no_metrics_save=1"]
    if wide:
        settings += [
            "net.ipv4.tcp_rmem=4096 131072 67108864", "net.ipv4.tcp_wmem=4096 16384 67108864",
        ]  # fmt: skip
    local = "route replace local 127.0.0.1 dev lo table local src 127.0.0.1 congctl cubic"
    for namespace in (NEAR, FAR):
        for command in [
            ["ip", "link", "set", "lo", "up"],
            ["ip", *local.split()],
            *(["sysctl", "-qw", setting] for setting in settings),
        ]:
            try:
                subprocess.run(inside(namespace) + command, check=True, capture_output=True, text=True)
            except subprocess.CalledProcessError as error:
                raise Failed(f"{' '.join(command)}: {error.stderr.strip()}") from None


def flow(place, *arguments):
    return [*place.near, sys.executable, str(HERE / "flow.py"), *map(str, arguments)]


class Bed:
    """One contestant with its two ends, and the service behind it."""

    def __init__(self, processes, place, contestant, mbps):
        self.place, self.contestant = place, contestant
        self.ends = []
        self.address = f"{place.server}:{SERVICE_PORT}"
        processes.start(*place.far, sys.executable, HERE / "flow.py", "serve", place.service(),
                        place.flow, ready="listening")  # fmt: skip
        if contestant.server:
            self.address = LOCAL
            self.ends = [
                processes.start(*place.far, *contestant.server(place, mbps), ready="listening"),
                processes.start(*place.near, *contestant.client(place, mbps), ready="listening"),
            ]

    def ask(self, *arguments, timeout=120):
        """Runs a short command of flow.py, which prints JSON."""
        try:
            out = subprocess.run(flow(self.place, arguments[0], self.address, *arguments[1:]),
                                 capture_output=True, text=True, timeout=timeout)  # fmt: skip
        except subprocess.TimeoutExpired:
            raise Failed(f"{arguments[0]} took more than {timeout} s") from None
        if out.returncode:
            raise Failed(f"{arguments[0]}: {out.stderr.strip().splitlines()[-1:]}")
        return json.loads(out.stdout)

    def carry(self, direction, seconds, name, streams=1):
        """Returns the bytes of each 100 ms that the receiver counted, and the CPU time of both ends."""
        folder = pathlib.Path(self.place.flow)
        command = [direction, self.address, seconds, name, self.contestant.controller, streams]
        before = self.cpu()
        sender = subprocess.Popen(
            flow(self.place, *command, *([folder] if direction == "down" else [])),
            stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        files = [folder / f"{name}-{number}.json" for number in range(streams)]
        try:
            end = time.monotonic() + seconds + 60
            while time.monotonic() < end and not all(file.exists() for file in files):
                time.sleep(0.02)
            after = self.cpu()
        finally:
            sender.kill()
            sender.wait()
        if not all(file.exists() for file in files):
            raise Failed("the receiver has counted nothing")
        counted = [json.loads(file.read_text()) for file in files]
        return [sum(bins) for bins in zip(*counted)], [b - a for a, b in zip(before, after)]

    def cpu(self):
        """CPU seconds of each end, with those of threads that have ended."""
        ticks = os.sysconf("SC_CLK_TCK")
        stats = (pathlib.Path(f"/proc/{end.pid}/stat").read_text() for end in self.ends)
        return [sum(map(int, s.rsplit(")", 1)[1].split()[11:13])) / ticks for s in stats]

    def memory(self):
        """Resident bytes of each end."""
        pages = (pathlib.Path(f"/proc/{end.pid}/statm").read_text() for end in self.ends)
        return [int(text.split()[1]) * os.sysconf("SC_PAGE_SIZE") for text in pages]
