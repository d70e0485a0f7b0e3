#!/usr/bin/env python3
"""Draws the captured screen of a terminal as SVG: terminal.py SCREEN.ansi PICTURE.svg"""

import io
import pathlib
import re
import sys

from rich.console import Console
from rich.text import Text

TEXT = re.compile(r'<text class="(demo-r\d+)" x="([\d.]+)" y="([\d.]+)" textLength="([\d.]+)"[^>]*>([^<\n]+)</text>')
SPACE = "&#160;"


def place_words(match):
    """Gives each word its own place, because not every viewer keeps the width of spaces."""
    style, x, y, length, text = match.groups()
    cells = re.findall(r"&[^;]+;|.", text)
    cell = float(length) / len(cells)
    words, column = [], 0
    for is_space, run in re.findall(rf"((?:{SPACE})+)|((?:(?!{SPACE})(?:&[^;]+;|.))+)", text):
        width = len(re.findall(r"&[^;]+;|.", is_space or run))
        if run:
            at = float(x) + column * cell
            words.append(f'<text class="{style}" x="{at:.1f}" y="{y}" textLength="{width * cell:.1f}">{run}</text>')
        column += width
    return "".join(words)


def main():
    screen, picture = map(pathlib.Path, sys.argv[1:])
    lines = [Text.from_ansi(line.rstrip()) for line in screen.read_text().rstrip("\n").split("\n")]
    console = Console(record=True, width=max(line.cell_len for line in lines), file=io.StringIO())
    for line in lines:
        console.print(line, no_wrap=True, overflow="ignore", crop=False)
    svg = console.export_svg(title="tandem demo", unique_id="demo")
    # The picture must not load a font from the network; the reader's monospaced font serves as well.
    svg = re.sub(r"@font-face \{.*?\}\n", "", svg, flags=re.S)
    svg = TEXT.sub(place_words, svg)
    picture.write_text("\n".join(line.rstrip() for line in svg.splitlines() if line.strip()) + "\n")


main()
