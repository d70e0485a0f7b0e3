#!/usr/bin/env python3
"""Draws how fast a file arrives with a tunnel and without: gain.py RUNS.jsonl PICTURE.svg"""

import json
import pathlib
import sys

WIDTH, HEIGHT = 860, 380
LEFT, RIGHT, TOP, BOTTOM = 70, 830, 80, 320
SECONDS, MEGABYTES = 100, 5
# Mode, class, name, and where the label stands (seconds, megabytes).
LINES = [("mft", "without", "without a tunnel", (57, 2.2)), ("rmdt", "with", "through a Tandem tunnel", (8, 4.55))]
STYLE = """    text { fill: #40566b }
    .title { font-size: 19px; font-weight: bold; fill: #1c2f42 }
    .grid { stroke: #dde5ee }
    .axis { fill: none; stroke: #33506e; stroke-width: 1.5 }
    .right { text-anchor: end }
    .middle { text-anchor: middle }
    polyline { fill: none; stroke-width: 3.5 }
    .without { stroke: #c0392b } text.without { fill: #a93226; stroke: none; font-weight: bold }
    .with { stroke: #2f8a4a } text.with { fill: #1f6b37; stroke: none; font-weight: bold }"""


def x(seconds):
    return LEFT + (RIGHT - LEFT) * seconds / SECONDS


def y(megabytes):
    return BOTTOM - (BOTTOM - TOP) * megabytes / MEGABYTES


def arrivals(run):
    """The points of a line; a file that is complete stays so."""
    points = [(sample["at_s"], sample["body_bytes"] / 1e6) for sample in run["series"]]
    points = [point for point in points if point[0] < run["fct_s"]]
    return points + [(run["fct_s"], run["body_bytes"] / 1e6)]


def main():
    runs, picture = map(pathlib.Path, sys.argv[1:])
    runs = {run["mode"]: run for run in map(json.loads, runs.read_text().splitlines())}
    took = {mode: run["fct_s"] for mode, run in runs.items()}
    summary = f"{MEGABYTES} MB from a server with CUBIC: {took['rmdt']:.1f} s instead of {took['mft']:.0f} s"
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        "font-family=\"Helvetica, Arial, 'DejaVu Sans', sans-serif\" font-size=\"15\" role=\"img\">",
        f"  <title>{summary}</title>",
        f"  <style>\n{STYLE}\n  </style>",
        f'  <rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'  <text class="title" x="{LEFT}" y="30">{summary}</text>',
        f'  <text x="{LEFT}" y="54">The last mile has 10 Mbit/s, 40 ms RTT and 5 % loss; '
        "the rest of the path has 100 ms RTT.</text>",
    ]
    for megabytes in range(MEGABYTES + 1):
        at = f"{y(megabytes):.1f}"
        out.append(f'  <path class="grid" d="M{LEFT} {at} H{RIGHT}"/>')
        out.append(f'  <text class="right" x="{LEFT - 10}" y="{y(megabytes) + 5:.1f}">{megabytes}</text>')
    for seconds in range(0, SECONDS + 1, 20):
        out.append(f'  <text class="middle" x="{x(seconds):.1f}" y="{BOTTOM + 22}">{seconds}</text>')
    out.append(f'  <path class="axis" d="M{LEFT} {TOP} V{BOTTOM} H{RIGHT}"/>')
    out.append(f'  <text class="middle" x="{(LEFT + RIGHT) / 2}" y="{BOTTOM + 46}">seconds</text>')
    middle = (TOP + BOTTOM) / 2
    out.append(f'  <text class="middle" transform="rotate(-90 26 {middle})" x="26" y="{middle}">MB received</text>')
    for mode, style, name, (seconds, megabytes) in LINES:
        points = " ".join(f"{x(at):.1f},{y(amount):.1f}" for at, amount in arrivals(runs[mode]))
        out.append(f'  <polyline class="{style}" points="{points}"/>')
        out.append(f'  <text class="{style}" x="{x(seconds):.1f}" y="{y(megabytes):.1f}">{name}</text>')
    picture.write_text("\n".join(out) + "\n</svg>\n")


main()
