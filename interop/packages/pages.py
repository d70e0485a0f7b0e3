"""The commands of the documents: lines that begin with "$ " in code blocks.

The words behind the fence say what a block is: `console MACHINE` has commands for a machine, `toml FILE` is what a file
has, and anything else has no command. `pages.py PAGE ...` prints the packages of Debian that the commands install.
"""

import re
import sys
from dataclasses import dataclass
from pathlib import Path

from checks import Failure

GUIDE = Path(__file__).resolve().parents[2] / "docs/guide"


@dataclass(frozen=True)
class Block:
    """A code block."""

    page: str
    line: int  # of its fence
    words: tuple[str, ...]  # behind its fence
    text: str


@dataclass(frozen=True)
class Command:
    """A command as it is written, with its comment."""

    page: str
    line: int
    machine: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.text}"


def blocks(page: str, text: str) -> list[Block]:
    """All code blocks of a page."""
    found, begun, lines = [], None, []
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.strip()
        if begun is None and bare.startswith("```"):
            begun, lines = (number, tuple(bare.strip("`").split())), []
        elif begun is not None and bare == "```":
            found.append(Block(page, *begun, "\n".join(lines)))
            begun = None
        else:
            lines.append(line)
    return found


def commands(page: str, text: str) -> list[Command]:
    """All commands of a page. Lines without "$ " are what a command prints, unless they continue it."""
    found = []
    for block in blocks(page, text):
        machine = block.words[1] if block.words[:1] == ("console",) and len(block.words) == 2 else None
        lines = iter(enumerate(block.text.splitlines(), block.line + 1))
        for number, line in lines:
            if not line.startswith("$ "):
                continue
            if machine is None:
                raise Failure(f"{page}:{number}: the block does not say on which machine: ```console MACHINE")
            command = line[2:]
            while command.endswith("\\"):
                command += "\n" + next(lines)[1]
            found.append(Command(page, number, machine, command))
    return found


def count(text: str) -> int:
    """How many lines of a page look like commands, however the page marks them."""
    return sum(line.lstrip().startswith("$ ") for line in text.splitlines())


def debian_packages(texts: list[str]) -> list[str]:
    """The packages that commands install by their names."""
    lines = [line for text in texts for line in text.splitlines() if line.startswith("$ ")]
    lists = [words for line in lines for words in re.findall(r"\bapt(?:-get)? install ([^#&|;]*)", line)]
    return sorted({word for words in lists for word in words.split() if re.fullmatch(r"[a-z0-9][a-z0-9+.-]+", word)})


def read(page: str) -> str:
    return (GUIDE / page).read_text()


if __name__ == "__main__":
    print(" ".join(debian_packages([read(page) for page in sys.argv[1:]])))
