#!/usr/bin/env python3
"""Keeps of each run what the tables need, in runs.jsonl.xz: runs.py FOLDER TARGET ID...

FOLDER/runs.jsonl.xz has one line for each run of the full figures: the figure, the parameters in which its runs differ, the
seed, the results that reached.py reads, and the first eight digits of the digest of all its packets. programs.csv says of which
program they are; with its commit, `lab figure ID --full` makes the runs again, with all their series. The runs of the figures
that are named are taken from TARGET/ID.jsonl."""
import json, lzma, pathlib, sys

RESULTS = ["completed", "fct_s", "fct_over_ideal", "fct_last_s", "ideal_s", "e2e_srtt_mean_ms", "duplicate_ratio", "jain_index", "downlink_bytes"]
# What runs differ in, as reached.py names it. `tt3` is about single requests.
PARAMETERS = ["mode", "resequence", "tecc", "workload", "size", "streams", "rate", "uplink_rate", "trace", "uplink_trace", "client_rtt",
              "client_rtt_step", "origin_rtt", "origin_rtt_step", "origin_rate", "loss", "queue", "time_limit"]

# Workloads whose flows do not end by themselves.
ENDLESS = ("long:", "sharing:", "datagrams:")


def short(value):
    return float(f"{value:.6g}") if isinstance(value, float) else value


def line_of(figure, run, flows):
    line = {"figure": figure, "seed": run["seed"]}
    line |= {key: run[key] for key in PARAMETERS if run.get(key) is not None}
    line |= {key: short(run[key]) for key in RESULTS if run.get(key) is not None}
    times = [it["fct_s"] for it in run.get("flows", [])]
    if all(times) and not flows:
        # Only the last of several counts, and it is the completion time of one.
        line["fct_last_s"] = short(max(times, default=run["fct_s"]))
        if line["fct_last_s"] == line.get("fct_s"):
            del line["fct_last_s"]
    elif not run["workload"].startswith(ENDLESS):
        line["flows"] = [[short(it["start_s"]), it["fct_s"] and float(f"{it['fct_s']:.5g}")] for it in run["flows"]]
    return line | {"digest": run["digest"][:8]}


def main(folder, target, ids):
    kept = folder / "runs.jsonl.xz"
    lines = []
    if kept.exists():
        with lzma.open(kept, "rt") as old:
            lines = [line for line in map(json.loads, old) if line["figure"] not in ids]
    for figure in ids:
        with (target / f"{figure}.jsonl").open() as runs:
            lines += [line_of(figure, run, figure == "tecc/tt3") for run in map(json.loads, runs)]
    lines.sort(key=lambda line: line["figure"])
    with lzma.open(kept, "wt", preset=9 | lzma.PRESET_EXTREME) as new:
        new.writelines(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3:])
