"""The contestants, what they are built of, and a tunnel of each through which the load generator sends."""

import dataclasses
import functools
import json
import os
import pathlib
import queue
import shutil
import signal
import subprocess
import sys
import threading

from common import Failed, Processes, start

HERE = pathlib.Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR") or REPOSITORY / "target").absolute()
BUILD = TARGET / "data-path"
LOAD, RELAY, CLIENT, LIMIT = (BUILD / "release" / name for name in ("load", "relay", "client", "limit"))
MASQUE_GO, SING = BUILD / "masque-go", BUILD / "sing-hysteria2"
TOKIO_QUICHE_BUILD = BUILD / "tokio-quiche"
TOKIO_QUICHE = TOKIO_QUICHE_BUILD / "release/data-path-tokio-quiche"
CERTIFICATES = BUILD / "certificates"
CA, CERT, KEY = (CERTIFICATES / name for name in ("ca.pem", "cert.pem", "key.pem"))
GENERATOR_CPU, SINK_CPU = 0, 1  # the client shares the first one, the proxy the second one
ANY_PORT = "127.0.0.1:0"
ANSWER_TIMEOUT = 120  # seconds

signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends what was started, too


@dataclasses.dataclass
class Contestant:
    """`proxy` makes a command line from the targets, and `client` from the proxy's address, the targets, and a number of
    connections, of which some clients have one only."""

    name: str
    proxy: object
    protocol: str = ""  # the one in which CLIENT can speak to the proxy
    client: object = None
    program: str = ""
    is_tandem: bool = False
    options: tuple = ()  # of both ends, besides those that all have
    parts: tuple = ()  # those that it takes part in, if not all: it is a bound, or another contestant with one setting changed

    def own_client(self, address, targets):
        return self.client(address, targets) if self.client else self.any_client(address, targets, 1)

    def any_client(self, address, targets, connections):
        """The same client for all, where it knows the protocol."""
        if not self.protocol:
            return self.client(address, targets, connections)
        return self.shared_client(address, "carry", connections, *forwards(targets))

    def shared_client(self, address, *words):
        return [CLIENT, self.protocol, address, CA, *words]


def forwards(targets):
    return [f"{ANY_PORT}={target}" for target in targets]


def tandem(name, program, options=(), parts=()):
    def proxy(_, threads=None):
        bounded = ["--threads", threads] if threads else []
        keys = ["--cert", CERT, "--key", KEY]
        allowed = ["--allow-target", "127.0.0.0/8", "--drain", "0s"]
        return [program, "proxy", "--listen", ANY_PORT, *keys, *allowed, *bounded, *options]

    def client(address, targets):
        # What does not fit a datagram is dropped, so that the largest payload is one that fits.
        udp = [word for forward in forwards(targets) for word in ("--udp", forward)]
        return [program, "client", "--via", f"https://{address}", "--ca", CA, "--oversize", "drop", *udp, *options]

    return Contestant(name, proxy, "connect-udp", client, program, True, tuple(options), parts)


def tandems(given):
    """One for each [NAME=]FILE, or the build of profile dist."""
    default = os.environ.get("TANDEM") or str(TARGET / "dist/tandem")
    found = []
    for number, words in enumerate(given or [default], 1):
        name, separator, file = words.rpartition("=")
        name = name if separator else "tandem" if number == 1 else f"tandem-{number}"
        found.append(tandem(name, str(pathlib.Path(file).absolute())))
    return found


def without_pause(contestants):
    """Each Tandem that can pause, as it is when it never does."""
    for one in contestants:
        words = [one.program, "proxy", "--help"]
        is_there = os.access(one.program, os.X_OK)  # a plan needs no program
        if not is_there or "--pause" in subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout:
            yield tandem(f"{one.name}-no-pause", one.program, ("--pause", "off"), ("packets", "echo", "downloads"))


def relay(name, *options, parts=()):
    def client(address, targets):
        return [CLIENT, *options, "relay", address, CA, "carry", 1, *forwards(targets)]

    return Contestant(name, lambda targets: [RELAY, *options, ANY_PORT, CERT, KEY, *targets], "relay", client, parts=parts)


def limit(name, *options, parts):
    def client(address, targets, connections=1):
        return [LIMIT, *options, "client", address, connections, *forwards(targets)]

    return Contestant(name, lambda targets: [LIMIT, *options, "relay", ANY_PORT, *targets], "", client, parts=parts)


def sing_client(address, targets, connections=1):
    return [SING, "connect-udp", "-server", address, "-ca", CA, "-connections", connections, *forwards(targets)]


PAUSE_US = 100  # as Tandem's own
QUINN = relay("quinn")
QUINN_PAUSE = relay("quinn-pause", "--pause", PAUSE_US, parts=("packets", "echo"))
THE_LIMIT = limit("limit", parts=("packets", "echo", "connections"))
LIMIT_PAUSE = limit("limit-pause", "--pause", PAUSE_US, parts=("packets", "echo"))
MASQUE = Contestant(
    "masque-go",
    lambda _: [MASQUE_GO, "proxy", ANY_PORT, CERT, KEY],
    "connect-udp",
    lambda address, targets: [MASQUE_GO, "client", address, CA, *forwards(targets)],
)
HYSTERIA = Contestant(
    "sing-hysteria2", lambda _: [SING, "serve", "-listen", ANY_PORT, "-cert", CERT, "-key", KEY], "", sing_client
)
QUICHE = Contestant("tokio-quiche", lambda _: [TOKIO_QUICHE, ANY_PORT, CERT, KEY], "connect-udp")
PEERS = {one.name: one for one in (QUINN, THE_LIMIT, MASQUE, HYSTERIA, QUICHE)}
PAUSING = {"quinn": QUINN_PAUSE, "limit": LIMIT_PAUSE}


def need(program, advice):
    if shutil.which(program) is None:
        raise SystemExit(f"{program} is missing: {advice}")


def cargo_build(folder, target, *options):
    manifest = ["--manifest-path", HERE / folder / "Cargo.toml", "--target-dir", target]
    subprocess.run(["cargo", "build", "--quiet", "--release", "--locked", *manifest, *options], check=True)


def build(peers, tandems):
    """Builds what the run needs, and checks that the rest is there."""
    if (os.cpu_count() or 1) < 2:
        raise SystemExit("this needs two CPUs")
    need("cargo", "install a stable Rust toolchain, see https://rustup.rs")
    for one in tandems:
        if not os.access(one.program, os.X_OK):
            raise SystemExit(f"{one.program} is missing: run cargo build --profile dist, or name another file with --tandem")
    cargo_build("tools", BUILD)
    for peer, file, folder in ((MASQUE, MASQUE_GO, "masque-go"), (HYSTERIA, SING, "../tcp-over-quic/peers/sing-hysteria2")):
        if peer in peers:
            need("go", "install Go 1.25 or newer (apt-get install golang, or https://go.dev), or use --peers quinn")
            subprocess.run(["go", "build", "-o", file, "."], cwd=HERE / folder, check=True)
    if QUICHE in peers:
        need("cmake", "apt-get install cmake g++ clang, for BoringSSL")
        print("building tokio-quiche and BoringSSL, which takes long at the first time", file=sys.stderr)
        cargo_build("tokio-quiche", TOKIO_QUICHE_BUILD)
    make = [tandems[0].program, "generate", "certificate", CERTIFICATES]
    if not CERT.exists():
        subprocess.run(make, check=True, stdout=subprocess.DEVNULL)


class Tunnel(Processes):
    """A client and a proxy, the load generator before them, and its targets behind them."""

    proxy_cpu = SINK_CPU
    connections = 1

    def __init__(self, contestant):
        super().__init__()
        self.contestant = contestant

    def proxy_command(self):
        return self.contestant.proxy(self.targets)

    def client_command(self):
        return self.contestant.own_client(self.address, self.targets)

    def set_up(self):
        command = [str(word) for word in (LOAD, GENERATOR_CPU, SINK_CPU)]
        self.load = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        self.processes.append(self.load)
        self.answers = queue.Queue()
        threading.Thread(target=self.listen, args=(self.load, self.answers), daemon=True).start()
        self.targets = self.answer().split()
        self.proxy, (self.address,) = self.serve(self.proxy_command(), 1, self.proxy_cpu)
        client, entrances = self.serve(self.client_command(), len(self.targets), GENERATOR_CPU)
        self.ask("through", *entrances, self.proxy.pid, client.pid)
        self.warm_up()

    def warm_up(self):
        """Congestion windows grow, and packets find their size, on each connection before anything is measured."""
        for direction in ("up", "down"):
            flows = max(4, self.connections)
            each = 64 if flows <= 1000 else 16
            self.ask("packets", direction, flows, 1200, 20_000, 16, max(8_000, flows * each))

    def serve(self, command, addresses, cpu):
        process, found, _ = start(command, addresses, cpu)
        self.processes.append(process)
        return process, found

    @staticmethod
    def listen(load, answers):
        for line in load.stdout:
            answers.put(line)
        answers.put("")

    def answer(self):
        try:
            line = self.answers.get(timeout=ANSWER_TIMEOUT)
        except queue.Empty:
            line = ""
        if not line:
            raise Failed(f"the load generator for {self.contestant.name} does not answer")
        return line

    def ask(self, *words):
        """Has the load generator do something. Returns its answer."""
        try:
            self.load.stdin.write(" ".join(map(str, words)) + "\n")
        except BrokenPipeError:
            raise Failed(f"the load generator for {self.contestant.name} has ended") from None
        answer = json.loads(self.answer())
        if "error" in answer:
            raise Failed(f"{self.contestant.name}: {answer['error']}")
        return answer

    @functools.cached_property
    def largest(self):
        """The largest payload that fits a datagram of this tunnel."""
        return self.ask("largest", 1200, TOO_LARGE)["bytes"]


TOO_LARGE = 2001  # bytes; the buffers of the small peers have 2048


@functools.cache
def memory_of_page():
    return os.sysconf("SC_PAGE_SIZE")


def resident(pid):
    """The memory of a process in RAM, in bytes."""
    return int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]) * memory_of_page()
