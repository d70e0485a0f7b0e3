"""Machines for checks: copies of a file system that are thrown away, and programs in them.

All that is mounted here belongs to a mount namespace that only the checks have (`in_own_namespaces` in setup.sh). It
vanishes with them, however they end, and nobody who removes their folders reaches what was mounted there.
"""

import ctypes
import os
import stat
import subprocess
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

from checks import expect

# The devices of a machine, with their numbers. A copy of the kernel's own file system for devices would be that file
# system itself: whoever removes a file in it takes the device from all.
DEVICES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}
LINKS = {"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2", "ptmx": "pts/ptmx"}

CLONE_NEWNET = 0x40000000  # for unshare(2), which Python has since 3.12

SYSTEMCTL = """#!/bin/sh
echo "$*" >>/systemctl.log
case "$*" in show*) cat /service-type 2>/dev/null || true ;; esac
"""


def output(*command, code: int = 0, **options) -> str:
    """Runs a program to its end, and returns all that it printed."""
    options = {"stdin": subprocess.DEVNULL, "timeout": 300} | options
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    result = subprocess.run([str(word) for word in command], check=False, **pipes, **options)
    said = f"{' '.join(map(str, command))}: exit code {result.returncode}: {result.stdout[-600:]}"
    expect(result.returncode == code, said)
    return result.stdout


def leave_the_network() -> None:
    """Gives this thread, and all that it starts from now on, a network with nothing but loopback: no other program of
    this machine has the ports of the checks, and nothing reaches the Internet."""
    libc = ctypes.CDLL(None, use_errno=True)
    expect(libc.unshare(CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno()))
    output("ip", "link", "set", "lo", "up")


class Machine:
    """A copy of a file system. What is written to it goes to memory."""

    def __init__(self, root: Path, written: Path):
        self.root = root
        self.written = written

    def path(self, name: str) -> Path:
        return self.root / name.lstrip("/")

    def run(self, *command, **options) -> str:
        return output("chroot", self.root, *command, **options)

    def has(self, *names: str) -> bool:
        return all(self.path(name).exists() for name in names)

    def changes(self) -> dict[str, bytes | None]:
        """All files that were written or removed, with their contents. Devices and folders have none."""
        files = (path for path in self.written.rglob("*") if not path.is_dir())
        return {str(path.relative_to(self.written)): path.read_bytes() if path.is_file() else None for path in files}

    def called(self) -> list[str]:
        """Returns how systemctl was called, and forgets it."""
        log = self.path("systemctl.log")
        calls = log.read_text().splitlines() if log.exists() else []
        log.write_text("")
        return calls


def mount(stack: ExitStack, where: Path, *options) -> None:
    """Mounts something until the stack ends, and never where others would see it."""
    own, callers = os.readlink("/proc/self/ns/mnt"), os.environ.get("MOUNTS_OF_CALLER", "")
    expect(callers not in ("", own), "these checks mount only in a mount namespace of their own")
    where.mkdir(parents=True, exist_ok=True)
    output("mount", *options, where)
    stack.callback(output, "umount", where)


def mount_devices(stack: ExitStack, where: Path) -> None:
    """Makes a /dev with a few devices, which the machine may remove."""
    mount(stack, where, "-t", "tmpfs", "-o", "size=1m,mode=755", "tmpfs")
    for name, number in DEVICES.items():
        os.mknod(where / name, stat.S_IFCHR, os.makedev(*number))
        (where / name).chmod(0o666)
    for name, target in LINKS.items():
        (where / name).symlink_to(target)
    (where / "shm").mkdir()
    (where / "shm").chmod(0o1777)
    mount(stack, where / "pts", "-t", "devpts", "-o", "newinstance,ptmxmode=0666,mode=620,gid=5", "devpts")


@contextmanager
def machine(*lower: Path | str):
    """A new machine with the file systems in `lower`, the first above the others."""
    with ExitStack() as stack:
        base = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        mount(stack, base, "-t", "tmpfs", "-o", "size=2g", "tmpfs")
        upper, work, root = (base / name for name in ("upper", "work", "root"))
        upper.mkdir()
        work.mkdir()
        below = ":".join(str(path) for path in lower)
        mount(stack, root, "-t", "overlay", "-o", f"lowerdir={below},upperdir={upper},workdir={work}", "overlay")
        mount(stack, root / "proc", "--bind", "/proc")
        mount_devices(stack, root / "dev")
        yield Machine(root, upper)


@contextmanager
def machine_with_systemd():
    """A copy of this machine, on which systemd seems to run."""
    with machine("/") as host:
        host.path("run/systemd/system").mkdir(parents=True, exist_ok=True)
        systemctl = host.path("usr/bin/systemctl")
        systemctl.unlink(missing_ok=True)  # it may be a link
        systemctl.write_text(SYSTEMCTL)
        systemctl.chmod(0o755)
        yield host


@contextmanager
def running(host: Machine, *command, options: tuple[str, ...] = ()):
    """Runs a program on a machine while the caller does something else. The options are those of chroot."""
    log = tempfile.TemporaryFile("w+")
    words = ["chroot", *options, str(host.root), *map(str, command)]
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        time.sleep(0.2)
        log.seek(0)
        expect(process.poll() is None, f"{command} ended: {log.read()[-400:]}")
        yield process
    finally:
        process.terminate()
        process.wait(20)


def wait_for(*command) -> None:
    """Runs a program until it succeeds, a hundred times at most."""
    words = [str(word) for word in command]
    for _ in range(100):
        if subprocess.run(words, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0:
            return
        time.sleep(0.2)
    output(*command)
