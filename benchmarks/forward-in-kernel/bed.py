"""Three network namespaces, and one forwarder in them."""

import dataclasses
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import time

from common import Failed, cpu_seconds, start, stop

HERE = pathlib.Path(__file__).resolve().parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", HERE.parents[1] / "target"))
BUILD = TARGET / "forward-in-kernel"
TANDEM = TARGET / "dist/tandem"
ADMIN = BUILD / "admin.socket"
CLANGS = ["clang-19", "clang-18", "clang-17", "clang-16", "clang"]

# The client has a device fk-c, whose peer is fk-pc of the proxy; so do proxy and target.
CLIENT, PROXY, TARGET_HOST = "fk-client", "fk-proxy", "fk-target"
CLIENT_IP, PROXY_TO_CLIENT, PROXY_TO_TARGET, TARGET_IP = "10.78.1.1", "10.78.1.2", "10.78.2.2", "10.78.2.1"
CLIENT_PORT, TUNNEL_PORT, FLOW_PORT, TARGET_PORT, LOCAL_PORT = 4000, 4433, 5001, 6000, 5000
DEVICES = {"fk-c": CLIENT, "fk-pc": PROXY, "fk-pt": PROXY, "fk-t": TARGET_HOST}
ENDS_CPU, PROXY_CPU = 0, 1

LEN = 1200
# Connection IDs: those of the two ends, and those by which the proxy replaces them.
CLIENT_ID, TARGET_ID = bytes.fromhex("c1c1c1c1c1c1c1c1"), bytes.fromhex("7a7a7a7a7a7a7a7a")
VIRTUAL_CLIENT_ID, VIRTUAL_TARGET_ID = bytes.fromhex("cc01020304050607"), bytes.fromhex("dd01020304050607")
KEY = bytes(range(32))
UNLIMITED = 10**12
TRIES = 5

FIELDS = [
    "forwarder", "direction", "rate", "burst", "sent", "late", "received", "cpu_us", "bpf_us", "load_average",
]  # fmt: skip

signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends what was started, too


@dataclasses.dataclass
class Forwarder:
    program: str = ""  # tc or xdp
    cipher: str = ""  # of scramble-dt
    merges: bool = False  # whether sockets of the proxy let the kernel merge packets before tc sees them


FORWARDERS = {
    "tandem": Forwarder(),
    "none": Forwarder(),  # the sink is in the proxy's namespace: what sender and sink cost without a forwarder
    "route": Forwarder(),  # the kernel forwards, and rewrites nothing
    "tc": Forwarder("tc"),
    "tc-merged": Forwarder("tc", merges=True),
    "tc-scramble": Forwarder("tc", "ecb(aes)"),
    "tc-scramble-tables": Forwarder("tc", "ecb(aes-generic)"),
    "xdp": Forwarder("xdp"),
    "xdp-scramble-tables": Forwarder("xdp", "ecb(aes-generic)"),
}


def build():
    clang = next(filter(shutil.which, CLANGS), None)
    for program in (clang or "clang-16", "gcc", "ip", "tc", "ethtool", "openssl"):
        if not shutil.which(program):
            raise Failed(f"{program} is not installed")
    BUILD.mkdir(parents=True, exist_ok=True)
    source = HERE / "src"
    include = f"-I/usr/include/{os.uname().machine}-linux-gnu"
    bpf = [clang, "-O2", "-g", "-target", "bpf", "-mcpu=v3", "-Wall", "-Werror", include]
    run(*bpf, "-c", source / "forward.bpf.c", "-o", BUILD / "forward.bpf.o")
    run("gcc", "-O2", "-Wall", "-Werror", source / "load.c", "-lbpf", "-o", BUILD / "load")
    run("gcc", "-O2", "-Wall", "-Werror", source / "ends.c", "-o", BUILD / "ends")


def run(*command, **options):
    return subprocess.run([*map(str, command)], check=True, capture_output=True, text=True, **options).stdout


def inside(namespace, cpu, *command):
    # All programs here come before others of the machine, and take turns where one polls.
    return ["ip", "netns", "exec", namespace, "chrt", "--fifo", "1", "taskset", "-c", str(cpu), *map(str, command)]


def packet(id):
    """A packet with a short header and this ID."""
    return b"\x4b" + id + random.Random(1).randbytes(LEN - 1 - len(id))


def scrambled(plain, id):
    """What scramble-dt makes of a packet that gets this ID (draft-ietf-masque-quic-proxy-08 §6.3.2)."""
    at = 1 + len(id)
    first, iv, rest = plain[:1], plain[at : at + 16], plain[at + 16 :]
    counter, blocks = int.from_bytes(iv), -(-(1 + len(rest)) // 16)
    counters = b"".join(((counter + i) % 2**128).to_bytes(16) for i in range(blocks))
    stream = bytes(a ^ b for a, b in zip(first + rest, encrypted(KEY[:16], counters)))
    return bytes([stream[0] & 0x7F]) + id + encrypted(KEY[16:], iv) + stream[1:]


def encrypted(key, blocks):
    command = ["openssl", "enc", "-aes-128-ecb", "-nopad", "-K", key.hex()]
    return subprocess.run(command, input=blocks, check=True, capture_output=True).stdout


def long_header(source):
    """A packet as of a handshake, of which only the Source Connection ID counts."""
    return (b"\xe0\x00\x00\x00\x01\x08" + bytes(8) + bytes([len(source)]) + source).ljust(LEN, b"\0")


class Bed:
    """A forwarder in its namespaces. `straight`: the kernel receives in the sender's system calls, not in threads."""

    def __init__(self, name, tandem=TANDEM, straight=False):
        self.name, self.forwarder, self.tandem, self.straight = name, FORWARDERS[name], tandem, straight
        self.processes, self.loader, self.proxy = [], None, None
        self.flow_port = FLOW_PORT

    def __enter__(self):
        self.remove()
        try:
            self.make_namespaces()
            if self.name == "tandem":
                self.start_tandem()
            elif self.forwarder.program:
                self.load(UNLIMITED)
                if self.forwarder.merges:
                    self.start(PROXY, PROXY_CPU, BUILD / "ends", "merge", PROXY_TO_CLIENT, TUNNEL_PORT)
                    self.start(PROXY, PROXY_CPU, BUILD / "ends", "merge", PROXY_TO_TARGET, FLOW_PORT)
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *_):
        self.remove()

    def remove(self):
        self.unload()
        stop(self.processes)
        for namespace in [CLIENT, PROXY, TARGET_HOST]:
            if pathlib.Path("/run/netns", namespace).exists():
                run("ip", "netns", "del", namespace)

    def make_namespaces(self):
        for namespace in [CLIENT, PROXY, TARGET_HOST]:
            run("ip", "netns", "add", namespace)
            run("ip", "-n", namespace, "link", "set", "lo", "up")
        for end, device, ip, proxy_ip in [
            ("fk-c", "fk-pc", CLIENT_IP, PROXY_TO_CLIENT),
            ("fk-t", "fk-pt", TARGET_IP, PROXY_TO_TARGET),
        ]:
            peer = ["peer", "name", device, "netns", PROXY]
            run("ip", "link", "add", end, "netns", DEVICES[end], "type", "veth", *peer)
            for name, address in [(end, ip), (device, proxy_ip)]:
                run("ip", "-n", DEVICES[name], "addr", "add", f"{address}/24", "dev", name)
                run("ip", "-n", DEVICES[name], "link", "set", name, "up")
            # Next hops are known from the beginning, as they are where a proxy has other traffic.
            for name, address, other in [(end, proxy_ip, device), (device, ip, end)]:
                shown = run("ip", "-br", "-n", DEVICES[other], "link", "show", other)
                neighbour = [address, "lladdr", shown.split()[2], "dev", name, "nud", "permanent"]
                run("ip", "-n", DEVICES[name], "neigh", "replace", *neighbour)
            run("ip", "-n", DEVICES[end], "route", "add", "default", "via", proxy_ip)
        run(*inside(PROXY, PROXY_CPU, "sysctl", "-q", "net.ipv4.ip_forward=1"))
        for device, namespace in DEVICES.items():
            # Packets arrive one by one, as from a network card, and the kernel merges what belongs together.
            # Without TSO: else veth hands packets over without the thread that receives them, and without merging.
            features = ["gro", "on", "tso", "off"]
            if namespace != PROXY:
                features += ["tx-udp-segmentation", "off"]
                if self.forwarder.program == "xdp":
                    features += ["tx", "off"]  # XDP sees checksums as they are on a wire
            run(*inside(namespace, PROXY_CPU, "ethtool", "-K", device, *features))
            if self.straight:
                continue
            # A thread of its own receives for each device, so that the time of the proxy's kernel can be told from
            # that of the ends, and has the proxy's CPU.
            threaded = f"echo 1 > /sys/class/net/{device}/threaded"
            run(*inside(namespace, PROXY_CPU, "sh", "-c", threaded))
            for pid in self.receivers(device):
                run("taskset", "-p", "-c", PROXY_CPU if namespace == PROXY else ENDS_CPU, pid)
                run("chrt", "--fifo", "-p", 2, pid)  # as interrupts, which they stand for

    @staticmethod
    def receivers(*devices):
        """The kernel's threads that receive for these devices."""
        names = tuple(f"napi/{device}-" for device in devices)
        found = []
        for comm in pathlib.Path("/proc").glob("[0-9]*/comm"):
            try:
                if comm.read_text().startswith(names):
                    found.append(int(comm.parent.name))
            except OSError:
                pass  # it has ended
        if len(found) < len(devices):
            raise Failed(f"the kernel has no threads that receive for {devices}")
        return found

    def start(self, namespace, cpu, *command, stdin=None):
        words = inside(namespace, cpu, *command)
        process = subprocess.Popen(words, stdin=stdin or subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        self.processes.append(process)
        return process

    def start_tandem(self):
        if not self.tandem.exists():
            raise Failed(f"{self.tandem} does not exist: cargo build --profile dist")
        ADMIN.unlink(missing_ok=True)
        listen = f"{PROXY_TO_CLIENT}:{TUNNEL_PORT}"
        allowed = ["--allow-anyone", "--allow-target", "10.78.0.0/16", "--threads", "1", "--admin", f"unix:{ADMIN}"]
        self.proxy, *_ = start(inside(PROXY, PROXY_CPU, self.tandem, "proxy", "--listen", listen, *allowed), 1)
        self.processes.append(self.proxy)
        flow = f"127.0.0.1:{LOCAL_PORT}={TARGET_IP}:{TARGET_PORT}"
        way = ["--via", f"https://{listen}", "--insecure", "--mode", "forward", "--udp", flow]
        self.processes.append(start(inside(CLIENT, ENDS_CPU, self.tandem, "client", *way), 1)[0])
        # Both ends show their IDs, as in a handshake.
        answer = [BUILD / "ends", "answer", TARGET_IP, TARGET_PORT, long_header(TARGET_ID).hex()]
        target = self.start(TARGET_HOST, ENDS_CPU, *answer)
        time.sleep(0.2)
        run(*inside(CLIENT, ENDS_CPU, *self.sender("up", long_header(CLIENT_ID), 1, 1, 1)))
        try:
            self.flow_port = int(target.communicate(timeout=5)[0])
        except subprocess.TimeoutExpired:
            raise Failed("no packet comes through the tunnel") from None
        time.sleep(0.5)

    def load(self, rate):
        """Loads the programs, with this limit of the user in bytes/s."""
        one = self.forwarder
        lines = [f"user 0 {rate} {max(rate // 50, 1 << 16)}"]
        transforms = (0, 0)
        if one.cipher:
            transforms = (1, 2)
            lines += [f"cipher {at} {one.cipher} {KEY[16 * (at % 2) :][:16].hex()}" for at in range(4)]
        up = [CLIENT_IP, CLIENT_PORT, TUNNEL_PORT, VIRTUAL_TARGET_ID.hex()]
        up += [PROXY_TO_TARGET, FLOW_PORT, TARGET_IP, TARGET_PORT, TARGET_ID.hex(), 0, transforms[0], 0, "fk-pt"]
        down = [TARGET_IP, TARGET_PORT, FLOW_PORT, CLIENT_ID.hex()]
        down += [PROXY_TO_CLIENT, TUNNEL_PORT, CLIENT_IP, CLIENT_PORT, VIRTUAL_CLIENT_ID.hex(), 0, transforms[1], 1]
        down += ["fk-pc"]
        lines += [" ".join(map(str, ["rule", *words])) for words in (up, down)]
        command = [BUILD / "load", BUILD / "forward.bpf.o", one.program, "fk-pc", "fk-pt"]
        self.loader = self.start(PROXY, PROXY_CPU, *command, stdin=subprocess.PIPE)
        if self.tell(*lines, "go") != "ready":
            raise Failed("the programs cannot be loaded")

    def unload(self):
        if self.loader:
            self.loader.stdin.close()
            self.loader.wait(10)
            self.loader = None

    def tell(self, *lines):
        self.loader.stdin.write("".join(f"{line}\n" for line in lines))
        self.loader.stdin.flush()
        return self.loader.stdout.readline().strip()

    def counters(self):
        """Packets, bytes, refused packets; nanoseconds and runs of the program."""
        return [*map(int, self.tell("count").split())]

    def sender(self, direction, content, rate, burst, seconds):
        ends = (
            [CLIENT_IP, CLIENT_PORT, PROXY_TO_CLIENT, TUNNEL_PORT]
            if direction == "up"
            else [TARGET_IP, TARGET_PORT, PROXY_TO_TARGET, self.flow_port]
        )
        if self.name == "route":
            ends[2:] = [TARGET_IP, TARGET_PORT] if direction == "up" else [CLIENT_IP, CLIENT_PORT]
        elif self.name == "tandem" and direction == "up":
            ends = ["127.0.0.1", CLIENT_PORT, "127.0.0.1", LOCAL_PORT]
        return [BUILD / "ends", "send", *ends, rate, burst, seconds, content.hex()]

    def packets(self, direction):
        """What is sent, and what has to arrive."""
        if self.name in ("none", "route"):
            return (packet(TARGET_ID),) * 2
        if self.name == "tandem":  # whose client has the virtual IDs
            return (packet(TARGET_ID if direction == "up" else CLIENT_ID),) * 2
        change = scrambled if self.forwarder.cipher else lambda plain, id: plain[:1] + id + plain[1 + len(id) :]
        if direction == "up":
            return change(packet(TARGET_ID), VIRTUAL_TARGET_ID), packet(TARGET_ID)
        return packet(CLIENT_ID), change(packet(CLIENT_ID), VIRTUAL_CLIENT_ID)

    def carry(self, direction, rate, burst, seconds):
        """Sends for this time. Returns how many packets were sent and how many bursts left late, the sender's CPU time
        in nanoseconds, and how many packets arrived."""
        content, expected = self.packets(direction)
        from_, to = (CLIENT, TARGET_HOST) if direction == "up" else (TARGET_HOST, CLIENT)
        at = [TARGET_IP, TARGET_PORT] if direction == "up" else [CLIENT_IP, CLIENT_PORT]
        if self.name == "tandem" and direction == "down":
            at[0] = "127.0.0.1"
        if self.name == "none":
            to, at = PROXY, [PROXY_TO_CLIENT, TUNNEL_PORT] if direction == "up" else [PROXY_TO_TARGET, FLOW_PORT]
        sink = self.start(to, PROXY_CPU if self.straight else ENDS_CPU, BUILD / "ends", "sink", *at)
        time.sleep(0.2)
        sent = run(*inside(from_, ENDS_CPU, *self.sender(direction, content, rate, burst, seconds)))
        time.sleep(0.2)
        sink.terminate()
        received, *last = sink.communicate()[0].split()
        self.processes.remove(sink)
        if last != [expected.hex()]:
            raise Failed(f"{self.name}, {direction}: {received} arrived, and the last one is not as expected")
        return *map(int, sent.split()), int(received)

    def proxy_seconds(self):
        """CPU time of the proxy's program and of the kernel's threads that receive for it."""
        seconds = sum(cpu_seconds(pid) for pid in self.receivers("fk-pc", "fk-pt"))
        return seconds + (cpu_seconds(self.proxy.pid) if self.proxy else 0)

    def forwarded(self):
        """How many packets Tandem's proxy has forwarded, in both directions."""
        time.sleep(1.2)  # the counters are of the last second
        with socket.socket(socket.AF_UNIX) as admin:
            admin.connect(str(ADMIN))
            admin.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            lines = admin.makefile().read().splitlines()
        events = ('tandem_beside_packets_total{event="sent"}', 'tandem_beside_packets_total{event="received"}')
        return sum(int(line.split()[-1]) for line in lines if line.startswith(events))

    def run(self, direction, rate, burst, seconds):
        for _ in range(TRIES):
            row = self.run_once(direction, rate, burst, seconds)
            # Sometimes the kernel leaves the packets to a thread (ksoftirqd), whose time nobody counts here. It then
            # gets none beside the sender, so that the packets are lost.
            if not self.straight or row["received"] > 0.98 * row["sent"]:
                break
        return row

    def run_once(self, direction, rate, burst, seconds):
        self.carry(direction, rate, burst, 0.2)
        forwarded = self.forwarded() if self.proxy else 0
        before = 0 if self.straight else self.proxy_seconds()
        sent, late, nanos, received = self.carry(direction, rate, burst, seconds)
        busy = nanos / 1e9 if self.straight else self.proxy_seconds() - before
        if self.proxy and (forwarded := self.forwarded() - forwarded) < received:
            raise Failed(f"Tandem forwards {forwarded} of {received} packets ({direction})")
        bpf = ""
        if self.forwarder.program:
            self.loader.stdin.write("measure\n")
            first = self.counters()
            self.carry(direction, 50_000, burst, 0.5)
            packets, _, _, nanos, _ = (now - then for now, then in zip(self.counters(), first))
            bpf = round(nanos / packets / 1e3, 3)
            self.unload()  # the statistics cost time: the next run has none
            self.load(UNLIMITED)
        row = [self.name, direction, rate, burst, sent, late, received]
        row += [round(busy / (sent if self.straight else received) * 1e6, 3), bpf, round(os.getloadavg()[0], 1)]
        return dict(zip(FIELDS, row))

    def check(self, direction):
        """Whether packets arrive as they should, are counted, and are limited. `carry` looks at their bytes."""
        before = self.counters()
        sent, *_, received = self.carry(direction, 10_000, 16, 0.5)
        packets, size, refused, *_ = (now - then for now, then in zip(self.counters(), before))
        if (packets, size, refused, received) != (sent, sent * LEN, 0, sent):
            seen = f"{packets} packets and {size} bytes counted, {refused} refused, {received} arrived"
            raise Failed(f"{self.name}, {direction}: {sent} sent, {seen}")
        self.unload()
        rate = 10_000_000
        self.load(rate)
        sent, *_, received = self.carry(direction, 50_000, 16, 1)
        packets, _, refused, *_ = self.counters()
        if packets != received or packets + refused != sent or not 0.9 < received * LEN / rate < 1.1:
            seen = f"{packets} packets counted, {refused} refused, {received} arrived"
            raise Failed(f"{self.name}, {direction}: {sent} sent, within {rate} bytes/s, {seen}")
        self.unload()
        self.load(UNLIMITED)
