"""What the benchmarks share: processes, tables, and plots."""

import contextlib
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
START_TIMEOUT = 30  # seconds


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
