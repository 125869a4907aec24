"""The driver: makes what is attacked, runs cases of each kind of attack, and prints a summary in Markdown."""
import argparse
import datetime
import os
import pathlib
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor

from endurance import endurance
from fixtures import Base
from inputs import TARGETS, inputs
from kills import kills
from limits import ATTACKS, can_mount, limits
from sandbox import Broken, Case, Tally

KINDS = {"kills": kills, "inputs": inputs, "limits": limits, "endurance": endurance}
SHORT = {"kills": 6, "inputs": 4 * len(TARGETS), "limits": 2 * len(ATTACKS), "endurance": 1}  # cases
SHARE = {"kills": 0.65, "inputs": 0.25, "limits": 0.1}  # of the minutes; the long runs run in parallel

# Known failures: a pattern for their text, and why they are not fixed yet. Reported, but not counted as failures.
KNOWN = [
    ("after throwing an instance of '(trivet::OutOfMemory|N6trivet11OutOfMemoryE)'",
     "without 32 bytes left, a destructor of the JSON library that allocates ends the process"),
]


class Attack:
    def __init__(self, options):
        self.seed, self.jobs, self.minutes, self.keep = options.seed, options.jobs, options.minutes, options.keep
        self.trivet = pathlib.Path(options.trivet).resolve()
        if not os.access(self.trivet, os.X_OK):
            raise SystemExit(f"{self.trivet}: is no program; expected --trivet PROGRAM, built before")
        self.scratch = pathlib.Path(tempfile.mkdtemp(prefix="trivet-attack-"))
        self.scratch.chmod(0o755)  # some cases run in it as another user
        self.shared_memory = pathlib.Path(tempfile.mkdtemp(prefix="trivet-attack-", dir="/dev/shm"))
        (self.scratch / "tmp").mkdir()
        self.environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive",
                            "TMPDIR": str(self.scratch / "tmp"), "OMPI_ALLOW_RUN_AS_ROOT": "1",
                            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        self.mpirun = self.find_mpirun()
        self.can_mount = can_mount()
        self.endurance_steps = 100_000 if self.minutes else 3000
        self.tally, self.failures, self.lock = Tally(), [], threading.Lock()
        self.began = time.monotonic()
        self.base = None
        self.stopping = False  # if true, no further case starts

    def find_mpirun(self):
        """The words of the command; empty if there is no mpirun or the program was built without MPI."""
        version = subprocess.run([self.trivet, "--version"], capture_output=True, text=True)
        if shutil.which("mpirun") is None or "MPI" not in version.stdout:
            return []
        return ["mpirun", "--oversubscribe", "--bind-to", "none"]

    def case(self, kind, index):
        """Returns False if a promise did not hold."""
        if self.stopping:
            return True
        case = Case(self, kind, index)
        self.tally.add("cases", kind, "cases")
        try:
            with case:
                KINDS[kind](case)
            return True
        except Exception as error:
            what = str(error) if isinstance(error, Broken) else traceback.format_exc()
        known = any(re.search(pattern, what) for pattern, _ in KNOWN)
        self.tally.add("cases", kind, "known failures" if known else "failures")
        with self.lock:
            if not known:
                self.failures.append((case.name, what))
            print(f"\n{case.name}: {what}\n    again: --seed {self.seed} --only {case.name}", flush=True)
            if self.keep:
                shutil.copytree(case.folder, pathlib.Path(self.keep) / case.folder.name, symlinks=True, dirs_exist_ok=True,
                                ignore=lambda folder, names: [n for n in names if (pathlib.Path(folder) / n).is_fifo()])
        return False

    def run(self, only):
        self.base = Base(self)
        with self.base:
            self.base.make()
            # The fixtures stay until this block ends.
            with ThreadPoolExecutor(self.jobs) as pool:
                if only:
                    kind, _, index = only.partition(":")
                    first, _, last = index.partition("-")
                    cases = range(int(first), int(last or first) + 1) if index else range(SHORT[kind])
                    list(pool.map(lambda i: self.case(kind, i), cases))
                elif self.minutes:
                    self.run_long(pool)
                else:
                    list(pool.map(lambda case: self.case(*case), self.short_cases()))

    def short_cases(self):
        """Long cases first, so that none of them runs alone at the end."""
        return [(kind, index) for kind in ("endurance", "kills", "limits", "inputs") for index in range(SHORT[kind])]

    def run_long(self, pool):
        waiting = [pool.submit(self.case, "endurance", index) for index in range(2)]
        for kind, share in SHARE.items():
            end = self.began + 60 * self.minutes * sum(list(SHARE.values())[:list(SHARE).index(kind) + 1])
            waiting += [pool.submit(self.until, kind, end, worker) for worker in range(self.jobs)]
        for future in waiting:
            future.result()

    def until(self, kind, end, worker):
        index = worker
        while time.monotonic() < end and not self.stopping:
            self.case(kind, index)
            index += self.jobs

    def clean_up(self):
        shutil.rmtree(self.scratch, ignore_errors=True)
        shutil.rmtree(self.shared_memory, ignore_errors=True)


# ---- the summary


def processor():
    with open("/proc/cpuinfo") as file:
        match = re.search(r"model name\s*: (.*)", file.read())
    return (match.group(1) if match else platform.machine()) + f", {os.cpu_count()} cores"


def table(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def kills_table(tally):
    rows, columns = tally.rows("kills"), ["start", "load", "save", "evaluation", "any", "exit 0", "exit 75", "died"]
    body = [[row, sum(counts[c] for c in columns[:5]), *(counts[c] for c in columns)] for row, counts in rows.items()]
    if body:
        body.append(["all", *(sum(row[i] for row in body) for i in range(1, len(columns) + 2))])
    return table(["signal", "kills", "at the start", "while loading", "while saving", "while evaluating", "at any time",
                  "had ended: 0", "saved: 75", "died"], body)


def inputs_table(tally):
    return table(["input", "commands", "refused: 64", "65", "74", "others", "accepted", "slowest", "most memory"],
                 [[row, sum(n for c, n in counts.items() if c not in ("ms", "MiB")), counts["exit 64"], counts["exit 65"],
                   counts["exit 74"], sum(n for c, n in counts.items() if c.startswith("exit") and
                                          c not in ("exit 64", "exit 65", "exit 74")), counts["accepted"],
                   f"{counts['ms']} ms", f"{counts['MiB']} MiB"] for row, counts in tally.rows("inputs").items()])


def plain_table(tally, name, title):
    rows = tally.rows(name)
    columns = sorted({column for counts in rows.values() for column in counts})
    return table([title, *columns], [[row, *(counts[c] for c in columns)] for row, counts in rows.items()])


def summary(attack):
    minutes = (time.monotonic() - attack.began) / 60
    version = subprocess.run([attack.trivet, "--version"], capture_output=True, text=True).stdout.split("\n")[0]
    parts = [f"{datetime.date.today()}, {processor()}, seed {attack.seed}, {minutes:.0f} minutes, {version}",
             plain_table(attack.tally, "cases", "attack")]
    for name, text in (("kills", kills_table(attack.tally)), ("inputs", inputs_table(attack.tally)),
                       ("limits", plain_table(attack.tally, "limits", "limit")),
                       ("endurance", plain_table(attack.tally, "endurance", "long run"))):
        if attack.tally.rows(name):
            parts.append(text)
    return "\n\n".join(parts)


def main():
    parser = argparse.ArgumentParser(prog="tests/attack/run.sh", description=__doc__)
    parser.add_argument("--trivet", required=True, help="the program")
    parser.add_argument("--minutes", type=float, help="attack for so long; without it, the short version")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="cases at a time [one a core]")
    parser.add_argument("--only", help="KIND, KIND:CASE or KIND:FIRST-LAST")
    parser.add_argument("--keep", help="folder for the files of cases that fail")
    options = parser.parse_args()
    if options.only and options.only.partition(":")[0] not in KINDS:
        parser.error(f"--only {options.only}: expected one of {', '.join(KINDS)}, and :CASE or :FIRST-LAST")
    attack = Attack(options)

    def stop(*_):
        attack.stopping = True

    signal.signal(signal.SIGTERM, stop)  # running cases finish and are summarised
    signal.signal(signal.SIGINT, stop)
    try:
        attack.run(options.only)
        print(summary(attack))
    except Broken as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        attack.clean_up()
    print(f"\n{len(attack.failures)} of {sum(c['cases'] for c in attack.tally.rows('cases').values())} cases failed" +
          "".join(f"\n  {name}: {what.splitlines()[0]}" for name, what in attack.failures))
    return 1 if attack.failures else 0


if __name__ == "__main__":
    sys.exit(main())
