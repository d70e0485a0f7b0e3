"""Three network namespaces, and one run in them."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
BUILD = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", HERE.parents[1] / "target")) / "pep-bench"
SERVER, PEP, CLIENT = "pb-server", "pb-pep", "pb-client"
SERVER_IP, CLIENT_IP = "10.79.1.1", "10.79.2.1"
PACKETS_MAX = 1 << 20
METRICS = ["forwarded", "newest", "oldest"]
STATISTICS = ["min", "avg", "p50", "p99", "max", "count"]
SENDER_CPU, PEP_CPU = "0", "1"
QUEUE_RULE = ["FORWARD", "-i", "to-server", "-j", "NFQUEUE", "--queue-num", "0"]

signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends what was started, too


def build():
    cargo = ["cargo", "build", "--quiet", "--release", "--locked", "--manifest-path", HERE / "tools/Cargo.toml"]
    subprocess.run([*cargo, "--target-dir", BUILD], check=True)
    include = f"-I/usr/include/{os.uname().machine}-linux-gnu"
    clang = ["clang", "-O2", "-g", "-target", "bpf", "-mcpu=v3", "-Wall", "-Werror", include]
    subprocess.run([*clang, "-c", HERE / "tools/watch.bpf.c", "-o", BUILD / "watch.bpf.o"], check=True)


def tool(name):
    return BUILD / "release" / name


def inside(namespace, *command):
    return ["ip", "netns", "exec", namespace, *map(str, command)]


def run(*command, **options):
    return subprocess.run([*map(str, command)], check=True, capture_output=True, text=True, **options).stdout


class Bed:
    """server --- PEP --- client. The address of the client belongs to nobody, so that nothing answers."""

    def __init__(self, realtime):
        self.priority = ["chrt", "--fifo", "1"] if realtime else []

    def __enter__(self):
        self.remove()
        try:
            self.build()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *_):
        self.remove()

    def build(self):
        for namespace in [SERVER, PEP, CLIENT]:
            run("ip", "netns", "add", namespace)
            run("ip", "-n", namespace, "link", "set", "lo", "up")
        for name, namespace, link in [("to-server", SERVER, 1), ("to-client", CLIENT, 2)]:
            run("ip", "link", "add", name, "netns", PEP, "type", "veth", "peer", "name", "to-pep", "netns", namespace)
            run("ip", "-n", PEP, "addr", "add", f"10.79.{link}.2/24", "dev", name)
            run("ip", "-n", PEP, "link", "set", name, "up")
            run("ip", "-n", namespace, "link", "set", "to-pep", "up")
        run("ip", "-n", SERVER, "addr", "add", f"{SERVER_IP}/24", "dev", "to-pep")
        run("ip", "-n", SERVER, "route", "add", "default", "via", "10.79.1.2")
        mac = run(*inside(CLIENT, "cat", "/sys/class/net/to-pep/address")).strip()
        run("ip", "-n", PEP, "neigh", "add", CLIENT_IP, "lladdr", mac, "dev", "to-client", "nud", "permanent")
        run(*inside(PEP, "sysctl", "-qw", "net.ipv4.ip_forward=1"))
        # No port is open at the server: without this it would answer PEP-ACKs.
        run(*inside(SERVER, "iptables", "-t", "raw", "-A", "PREROUTING", "-i", "to-pep", "-j", "DROP"))

    def remove(self):
        for namespace in [SERVER, PEP, CLIENT]:
            subprocess.run(["ip", "netns", "del", namespace], stderr=subprocess.DEVNULL)

    def run(self, maker, protocol, rate, count, with_cost):
        """One run, as a row of the CSV file."""
        with Statistics(with_cost), Maker(maker, self.priority) as pep:
            watch = [tool("watch"), BUILD / "watch.bpf.o", "to-server", "to-client", count, count // 10]
            watch = started(inside(PEP, "taskset", "-c", PEP_CPU, *watch), stdin=subprocess.PIPE)
            try:
                before = pep.nanos()
                send = [tool("send"), protocol, SERVER_IP, CLIENT_IP, rate, count]
                reached = run(*inside(SERVER, *self.priority, "taskset", "-c", SENDER_CPU, *send), timeout=120).strip()
                time.sleep(0.1)
                user = pep.nanos() - before
                bpf = programs_nanos(pep.programs) if with_cost else 0
                times = json.loads(watch.communicate(timeout=120)[0])
            finally:
                stop(watch)
        row = {"reached": int(reached), "user_ns": round(user / count), "bpf_ns": round(bpf / count)}
        for metric in METRICS:
            for name, value in zip(STATISTICS, times[metric] or [""] * len(STATISTICS)):
                row[f"{metric}_{name}"] = value
        return row


def started(command, **options):
    """A process that has said that it is ready."""
    process = subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, text=True, **options)
    if process.stdout.readline().strip() != "ready":
        stop(process)
        raise SystemExit(f"{command} is not ready")
    return process


def stop(process):
    if process.poll() is None:
        process.kill()
    process.communicate() if process.stdin is None else process.wait()


class Statistics:
    """The run time of BPF programs is counted, or not."""

    def __init__(self, on):
        self.on = on

    def __enter__(self):
        if self.on:
            run("sysctl", "-qw", "kernel.bpf_stats_enabled=1")

    def __exit__(self, *_):
        if self.on:
            run("sysctl", "-qw", "kernel.bpf_stats_enabled=0")


def programs_nanos(names):
    """The run time of the BPF programs of these names that there are now. A program at ingress contains those at egress of its clones."""
    if not names:
        return 0
    known = json.loads(run("bpftool", "--json", "prog", "show"))
    return sum(one.get("run_time_ns", 0) for one in known if one.get("name") in names)


class Maker:
    """What makes PEP-ACKs."""

    def __init__(self, name, priority):
        self.name = name
        self.pinned = [*priority, "taskset", "-c", PEP_CPU]
        self.process = None
        self.programs = {"user": ["tandem_mirror"], "plain": [], "nfqueue": []}.get(name, ["tandem_tell"])

    def __enter__(self):
        if self.name == "nfqueue":
            run(*inside(PEP, "iptables", "-A", *QUEUE_RULE))
            self.process = started(inside(PEP, *self.pinned, tool("nfqueue"), "0"))
        elif self.name != "plain":
            maker = "user" if self.name == "user" else self.name.removeprefix("kernel-")
            self.process = started(inside(PEP, *self.pinned, tool("router"), "to-server", maker))
        return self

    def nanos(self):
        """Its CPU time in user space, system calls included. `ip` and `taskset` have become the process itself."""
        if self.process is None:
            return 0
        return int(pathlib.Path(f"/proc/{self.process.pid}/schedstat").read_text().split()[0])

    def __exit__(self, *_):
        if self.process is not None:
            stop(self.process)
        if self.name == "nfqueue":
            run(*inside(PEP, "iptables", "-D", *QUEUE_RULE))
