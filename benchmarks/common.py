"""What the benchmarks share: ending processes, tables, and plots."""

import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent


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
