#!/usr/bin/env python3
"""Writes programs.csv and sample.jsonl after figures were made: sample.py FOLDER TARGET ID...

programs.csv says of which program the results of each figure are: the commit, or the day for those that are older than that
record. sample.jsonl has three short runs of each figure that is named, of different modes. A test makes them again and
compares the digests of all their packets. Figures in the sample that the program no longer reproduces have to be made again,
or to be left out of the sample."""
import csv, json, pathlib, sys

folder, target, ids = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3:]
rows = dict(csv.reader((folder / "programs.csv").open()))
sample = folder / "sample.jsonl"
old = [json.loads(line) for line in sample.read_text().splitlines()] if sample.exists() else []
lines = [line for line in old if line["figure"] not in ids]
for figure in ids:
    programs = json.loads((folder / f"{figure.split('/')[1]}.meta.json").read_text())["programs"]
    assert len(programs) == 1 and programs[0]["clean"], f"{figure} is not of one committed program: {programs}"
    rows[figure] = programs[0]["commit"]
    runs = sorted(map(json.loads, (target / f"{figure}.jsonl").open()), key=lambda run: (run["elapsed_s"], run["mode"]))
    shortest = {run["mode"]: run for run in reversed(runs)}
    chosen = sorted(shortest.values(), key=lambda run: run["elapsed_s"])[:3]
    lines += [{"figure": figure, **{key: value for key, value in run.items() if key != "series"}} for run in chosen]
with sample.open("w") as file:
    file.writelines(json.dumps(line) + "\n" for line in lines)
with (folder / "programs.csv").open("w") as file:
    csv.writer(file, lineterminator="\n").writerows([(key, rows[key]) for key in ["figure", *sorted(rows.keys() - {"figure"})]])
