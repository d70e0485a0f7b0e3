"""The rounds of all parts: contestants in turn, results to a CSV file, and how much time is left."""

import contextlib
import csv
import itertools
import os
import sys
import time

import bed
from common import OtherWork
import report

BUSY_LIMIT = 0.2  # of a CPU, for other programs; interrupts of idle CPUs are up to 0.09 of it
AGAIN = 2  # times that a run is made again if it is marked
CALM = 90  # seconds for which such a run waits at most until other programs let it
LOOK = 0.5  # seconds


class Part:
    """What is measured in one way. `site` makes, of a contestant, the context in which the cases of a round run."""

    name = ""
    startup = 1.2  # seconds until a site stands, an estimate
    lasting = True  # if the sites of all contestants stand at the same time, and take turns

    def __init__(self, rounds, cases):
        self.rounds, self.cases = rounds, cases

    def site(self, contestant):
        raise NotImplementedError

    def takes(self, contestant, case):
        return True

    def has(self, contestant, case):
        """Whether this contestant is measured in this case."""
        return (not contestant.parts or self.name in contestant.parts) and self.takes(contestant, case)

    def seconds(self, contestant, case):
        """An estimate for one run."""
        raise NotImplementedError

    def run(self, site, case):
        raise NotImplementedError

    def is_harder(self, case, other):
        """Whether it is of no use to measure a case, because a contestant was too slow for the other one."""
        return False

    def cost(self, contestant, case):
        """With its share of the startup."""
        return self.seconds(contestant, case) + self.startup / len(self.cases)

    def all_seconds(self, contestants):
        runs = [self.cost(one, case) for case in self.cases for one in contestants if self.has(one, case)]
        return len(runs) * self.rounds, sum(runs) * self.rounds


class Results:
    """The CSV file, and the progress. Rows of all parts are in the file, so that most of its columns are empty in each row."""

    FIELDS = ["part", "round", "order", "contestant", "load_average", *report.PARAMETERS, *report.MEASURED, *report.CIRCUMSTANCES]

    def __init__(self, file, names, runs, seconds):
        self.names, self.runs, self.expected = names, runs, seconds
        file.parent.mkdir(parents=True, exist_ok=True)
        self.file = file.open("w", newline="")
        self.writer = csv.DictWriter(self.file, self.FIELDS, extrasaction="ignore")
        self.writer.writeheader()
        self.begin = time.monotonic()
        self.done, self.done_seconds, self.failed = 0, 0.0, 0
        self.always_late = {}  # the cases in which a contestant was late each time

    def write(self, row, seconds):
        self.writer.writerow(row | {"order": self.names.index(row["contestant"])})
        self.file.flush()
        self.done += 1
        self.done_seconds += seconds
        self.failed += "failed" in row
        shown = " ".join(f"{name}={value}" for name, value in row.items() if name not in ("part", "round", "contestant"))
        print(f"{self.done}/{self.runs} {self.left()}  {row['part']} {row['round']} {row['contestant']}  {shown}", file=sys.stderr)

    def left(self):
        """The estimates of what is left, as wrong as those until now were."""
        spent = time.monotonic() - self.begin
        left = (self.expected - self.done_seconds) * spent / self.done_seconds
        return f"({left / 60:.0f} min left)"


def plan(parts, contestants):
    """The lines of a table: what would be measured, and how long it takes."""
    total_runs, total = 0, 0.0
    names = dict.fromkeys(part.name for part in parts)
    for name in names:
        of_name = [part for part in parts if part.name == name]
        runs, seconds = (sum(them) for them in zip(*(part.all_seconds(contestants) for part in of_name)))
        cases = sum(len(part.cases) for part in of_name)
        yield f"{name:12} {cases:3} cases, {of_name[0].rounds} rounds, {runs:4} runs, about {seconds / 60:4.1f} min"
        total_runs, total = total_runs + runs, total + seconds
    yield f"{'all':12} {total_runs} runs of {', '.join(one.name for one in contestants)}, about {total / 60:.0f} min"


def measure(parts, contestants, file):
    """Returns how many runs have failed."""
    runs, seconds = (sum(them) for them in zip(*(part.all_seconds(contestants) for part in parts)))
    results = Results(file, [one.name for one in contestants], runs, seconds)
    for number in range(1, max(part.rounds for part in parts) + 1):
        due = [part for part in parts if number <= part.rounds]
        # Parts that use the same kind of site, one after the other, share it.
        for _, sharing in itertools.groupby(due, key=lambda part: part.site):
            one_round(number, list(sharing), contestants, results)
    results.file.close()
    return results.failed


def one_round(number, parts, contestants, results):
    """Starts a new site of each contestant, and runs each case in one after another."""
    takers = [one for one in contestants if any(part.has(one, case) for part in parts for case in part.cases)]
    with contextlib.ExitStack() as stack:
        sites = [(one, stack.enter_context(Site(parts[0], one))) for one in takers]
        turns = [(part, case) for part in parts for case in part.cases]

        def run(one, site, part, case):
            if part.has(one, case):
                row = {"part": part.name, "round": number, "contestant": one.name}
                row |= {"load_average": round(os.getloadavg()[0], 2)} | case
                late = results.always_late.setdefault((part, one.name), [])
                results.write(row | (skipped(one, part, case, late) or unmarked(site, part, case, late)), part.cost(one, case))

        if not parts[0].lasting:
            for one, site in rotated(sites, number):
                for part, case in turns:
                    run(one, site, part, case)
                site.forget()
            return
        for turn, (part, case) in enumerate(turns):
            for one, site in rotated(sites, turn + number):
                run(one, site, part, case)


def rotated(sites, first):
    """Another contestant is the first each time."""
    first %= len(sites)
    return sites[first:] + sites[:first]


def skipped(contestant, part, case, always_late):
    """What is known without a run: a peer that was late at a lower rate."""
    for other in always_late:
        if not contestant.is_tandem and part.is_harder(case, other):
            return {"skipped": other["rate"]}
    return None


def unmarked(site, part, case, always_late):
    """Makes a run again that other programs have disturbed, or whose generator was late. Adds those that are late each time, which
    is the nature of some contestants, to a list, and does not make them again in later rounds."""
    for again in range(AGAIN + 1):
        found = site.measured(part, case) | {"again": again}
        late = found.get("late") and case not in always_late
        if not late and not found.get("busy"):
            return found
        if found["busy"] and again < AGAIN:
            wait_for_calm()
    if late and not found["busy"]:
        always_late.append(case)
    return found


def wait_for_calm():
    end = time.monotonic() + CALM
    while time.monotonic() < end:
        others = OtherWork()
        time.sleep(LOOK)
        if others.share() <= BUSY_LIMIT:
            return


class Site:
    """The site of a contestant, made when it is needed, and made anew after a failure."""

    def __init__(self, part, contestant):
        self.part, self.contestant, self.stack = part, contestant, contextlib.ExitStack()

    def __enter__(self):
        self.made = None
        return self

    def __exit__(self, *_):
        self.stack.close()

    def measured(self, part, case):
        try:
            if self.made is None:
                self.made = self.stack.enter_context(self.part.site(self.contestant))
            others = OtherWork()
            found = part.run(self.made, case)
            share = others.share()
            return found | {"others_cpus": round(share, 3), "busy": int(share > BUSY_LIMIT)}
        except (bed.Failed, OSError) as failure:
            print(f"{self.contestant.name}: {failure}", file=sys.stderr)
            self.forget()
            return {"failed": str(failure)}

    def forget(self):
        self.stack.close()
        self.made = None
