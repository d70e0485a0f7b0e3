"""What the benchmarks share: processes, tables, and plots."""

import contextlib
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
START_TIMEOUT = 180  # seconds; 10,000 connections take a third of it


def stop(processes):
    """Ends processes, last first, and forgets them."""
    while processes:
        process = processes.pop()
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Failed(Exception):
    """A run that came to nothing."""


def run_timed(command, time_limit):
    """Runs a command, for this time in seconds at most. Returns its CPU time in seconds, and its output."""
    command = [str(word) for word in command]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        killer = threading.Timer(time_limit, child.kill)
        killer.start()
        _, status, usage = os.wait4(child.pid, 0)
        killer.cancel()
        child.returncode = os.waitstatus_to_exitcode(status)
        for file in (out, err):
            file.seek(0)
        if child.returncode:
            said = err.read().decode(errors="replace").strip().splitlines()
            raise Failed(f"{' '.join(command)}: {said[-1:]}")
        return usage.ru_utime + usage.ru_stime, out.read()


@contextlib.contextmanager
def on_cpu(cpu):
    """What is started here has this CPU, or all."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, before if cpu is None else {cpu})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def start(command, addresses, cpu=None, folder=None):
    """Starts a server. Returns its process, the addresses at which it says that it listens, and what it has said."""
    with on_cpu(cpu):
        process = subprocess.Popen(
            [str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            text=True, cwd=folder, env=os.environ | {"RUST_LOG": "warn"},
        )  # fmt: skip
    killer = threading.Timer(START_TIMEOUT, process.kill)
    killer.start()
    found, said = [], []
    for line in process.stderr:
        said.append(line)
        if line.startswith("listening on "):
            found.append(line.split()[2])
        if len(found) == addresses:
            killer.cancel()
            # Nothing may wait because this pipe is full.
            threading.Thread(target=process.stderr.read, daemon=True).start()
            return process, found, said
    killer.cancel()
    process.wait()
    raise Failed(f"{' '.join(map(str, command))} ended before it was ready: {''.join(said[-3:])}")


def cpu_seconds(pid):
    """User and system time of all threads of a process, also of those that have ended, in nanoseconds' precision."""
    return time.clock_gettime(~pid << 3 | 2)  # as clock_getcpuclockid(3) makes it


def cpu_of_threads(pid):
    """The CPU time of each thread, in nanoseconds."""
    threads = pathlib.Path(f"/proc/{pid}/task").iterdir()
    return {thread.name: int((thread / "schedstat").read_text().split()[0]) for thread in threads}


def cpu_of_descendants(pid):
    """The CPU time in seconds of all processes that this one and its children have started and that still live."""
    total, parents = 0.0, [pid]
    while parents:
        for file in pathlib.Path(f"/proc/{parents.pop()}/task").glob("*/children"):
            # A process may end meanwhile.
            with contextlib.suppress(OSError):
                for child in map(int, file.read_text().split()):
                    total += cpu_seconds(child)
                    parents.append(child)
    return total


class OtherWork:
    """What all other programs of this machine, and its host, took of its CPUs since this object was made."""

    def __init__(self):
        self.begin = self.now()

    @staticmethod
    def now():
        """Times in seconds: of the clock, of idle CPUs, and of CPUs that worked for this process and what it has started."""
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        own = time.process_time() + ended.ru_utime + ended.ru_stime + cpu_of_descendants(os.getpid())
        _, *ticks = pathlib.Path("/proc/stat").read_text().splitlines()[0].split()
        idle = sum(map(int, ticks[3:5])) / os.sysconf("SC_CLK_TCK")
        return time.monotonic(), idle, own

    def share(self):
        """In CPUs. It is wrong by the time of a few ticks, 10 ms each, and counts the interrupts of idle CPUs, too."""
        elapsed, idle, own = (now - before for now, before in zip(self.now(), self.begin))
        return max(0, os.cpu_count() - (idle + own) / elapsed)


class Processes:
    """Processes that are ended with the context. A subclass starts them in `set_up`."""

    def __init__(self):
        self.processes = []

    def __enter__(self):
        try:
            self.set_up()
        except BaseException:
            stop(self.processes)
            raise
        return self

    def __exit__(self, *_):
        stop(self.processes)


def table(head, lines):
    """The lines of a table in Markdown."""
    yield "| " + " | ".join(head) + " |"
    yield "|" + " --- |" * len(head)
    for line in lines:
        yield "| " + " | ".join(line) + " |"
    yield ""


def draw(environment, program, *arguments):
    """Runs a program that needs matplotlib, in a virtual environment of its own."""
    wanted = HERE / "requirements.txt"
    have = environment / "requirements.txt"
    if not have.exists() or have.read_text() != wanted.read_text():
        subprocess.run([sys.executable, "-m", "venv", "--clear", environment], check=True)
        pip = [environment / "bin/pip", "install", "--quiet", "--no-deps", "-r", wanted]
        subprocess.run(pip, check=True)
        have.write_text(wanted.read_text())
    command = [environment / "bin/python", "-B", program, *arguments]
    subprocess.run(command, check=True, env=os.environ | {"PYTHONPATH": str(HERE)})
