"""Uses a shell in mosh as a person does: `mosh.py ADDRESS PORT KEY`. The far end prints each line
that it reads after "heard:"."""

import os
import pty
import select
import sys
import termios
import time

TIMEOUT = 20  # seconds until each answer is on the screen
LINES = ("one", "two", "three")


def main(address: str, port: str, key: str) -> int:
    pid, terminal = pty.fork()
    if pid == 0:
        termios.tcsetwinsize(0, (24, 80))
        environment = {**os.environ, "MOSH_KEY": key, "TERM": "xterm", "LC_ALL": "C.UTF-8"}
        os.execvpe("mosh-client", ["mosh-client", address, port], environment)
    screen = b""
    for line in LINES:
        os.write(terminal, line.encode() + b"\r")
        deadline = time.monotonic() + TIMEOUT
        while f"heard:{line}".encode() not in screen:
            if not select.select([terminal], [], [], max(0, deadline - time.monotonic()))[0]:
                print(f"{line} was not answered; the screen: {screen!r}")
                return 1
            screen += os.read(terminal, 65536)
    os.write(terminal, b"\x04")  # the end of the input ends the far program, and so the session
    os.waitpid(pid, 0)
    print("answered:", len(LINES))
    return 0


sys.exit(main(*sys.argv[1:]))
