#!/usr/bin/env python3
"""Guard against slow growth: count the instructions of fixed work, and compare the counts with stored ones.

guard.py              count, print counts and ratios; exit code 1 for a count above 1.05 times the stored one
guard.py --store      count, and store the counts in guard.json; the commit says why they have changed
guard.py --require    fail where nothing can be compared, instead of saying so and succeeding

The work is that of `inside.py`: the imports of a start, a unary request, a streamed token, a decision of the router.
Instructions do not depend on the load of the machine. They depend on the interpreter and on valgrind, so counts are
stored for each of them, and another build of the same Python is not compared.
"""

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
STORED = FOLDER / "guard.json"
MOST = 1.05
"""Ratio of a count to the stored one above which the guard fails."""
LEAST = 0.97
"""Ratio below which the stored count is out of date: growth up to the old count would pass."""
MACHINE = "x86_64"
"""`inside.Callgrind` has the instructions of this machine."""
UNITS = {"start": 1, "unary": 40, "audited": 40, "stream": 8 * 128, "decide": 200}
"""By work: the imports, requests, tokens and decisions in it (`inside.COUNTS`)."""
WHAT = {"start": "start", "unary": "request", "audited": "request", "stream": "token", "decide": "decision"}
LIMIT = 1200.0
"""Seconds for valgrind."""


@dataclass(frozen=True, slots=True)
class Place:
    """What counts depend on. `name`: the key of the stored counts. `build`: of the interpreter."""

    name: str
    build: str


def skipped(place: Place, stored: Mapping[str, Any]) -> str:
    """Why counts of a place cannot be compared with the stored ones; empty when they can."""
    entry = stored.get(place.name)
    if entry is None:
        return f"no counts are stored for {place.name}, only for {'; '.join(stored) or 'nothing'}"
    if entry["build"] != place.build:
        return f"the stored counts for {place.name} are of the interpreter {entry['build']}, this is {place.build}"
    return ""


def judged(counts: Mapping[str, int], stored: Mapping[str, int]) -> tuple[list[str], list[str]]:
    """Lines of a table, and what is wrong. `counts`, `stored`: instructions by work."""
    lines = [f"{'':8}{'instructions':>14}{'stored':>14}{'ratio':>8}"]
    wrong = []
    for work, count in counts.items():
        before = stored.get(work)
        if before is None:
            lines.append(f"{work:8}{count:>14,}{'-':>14}{'-':>8}")
            wrong.append(f"{work}: no count is stored")
            continue
        ratio = count / before
        note = f"  below {LEAST}: store the counts again" if ratio < LEAST else ""
        lines.append(f"{work:8}{count:>14,}{before:>14,}{ratio:>8.3f}  per {WHAT[work]}{note}")
        if ratio > MOST:
            wrong.append(f"{work}: {ratio:.3f} times the stored instructions, at most {MOST} are allowed")
    return lines, wrong


def counted(folder: Path) -> dict[str, int]:
    """Instructions by work, of files that callgrind has written for `Callgrind.counted`."""
    found = {}
    for path in folder.iterdir():
        text = path.read_text(errors="replace")
        work = re.search(r"^desc: Trigger: Client Request: (\w+)$", text, re.MULTILINE)
        total = re.search(r"^totals: (\d+)", text, re.MULTILINE)
        if work is not None and total is not None:
            found[work[1]] = int(total[1]) // UNITS[work[1]]
    return found


def here() -> Place | str:
    """The place of this process, or why nothing can be counted in it."""
    if platform.machine() != MACHINE:
        return f"the guard counts on {MACHINE}, this is {platform.machine()}"
    if shutil.which("valgrind") is None:
        return "there is no valgrind: apt-get install valgrind"
    version = subprocess.run(["valgrind", "--version"], capture_output=True, text=True, check=True).stdout.strip()
    major, minor, _ = platform.python_version_tuple()
    name = f"{platform.python_implementation()} {major}.{minor}, {MACHINE}, {version.replace('-', ' ')}"
    return Place(name, " ".join(sys.version.split()))


def count() -> dict[str, int]:
    """Instructions by work, in the order of `UNITS`. Raises RuntimeError when valgrind or the work fails."""
    programs = (["start"], [work for work in UNITS if work != "start"])
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(len(programs)) as pool:
        for work in programs:  # what is compiled now need not be compiled while instructions are counted
            _run([], work)
        list(pool.map(lambda work: _run(_valgrind(Path(folder), work), work), programs))
        found = counted(Path(folder))
    if missing := UNITS.keys() - found.keys():
        raise RuntimeError(f"callgrind has counted nothing for {', '.join(sorted(missing))}")
    return {work: found[work] for work in UNITS}


def _valgrind(folder: Path, work: list[str]) -> list[str]:
    return ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={folder / work[0]}"]


def _run(before: list[str], work: list[str]) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("DYN", "PYTHON"))}
    done = subprocess.run(
        [*before, sys.executable, str(FOLDER / "inside.py"), *work],
        env={**environment, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    if done.returncode:
        raise RuntimeError(f"inside.py {' '.join(work)} has failed:\n{done.stderr[-4000:]}")


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", action="store_true", help="store the counts of this place")
    parser.add_argument("--require", action="store_true", help="fail where nothing can be compared")
    a = parser.parse_args()
    stored = json.loads(STORED.read_text()) if STORED.is_file() else {}
    place = here()
    why = place if isinstance(place, str) else "" if a.store else skipped(place, stored)
    if isinstance(place, str) or why:
        print(f"guard: nothing is compared: {why}")
        return int(a.require or a.store)
    counts = count()
    if a.store:
        stored[place.name] = {"build": place.build, "instructions": counts}
        STORED.write_text(json.dumps(dict(sorted(stored.items())), indent=2) + "\n")
        print("\n".join(f"{work:8}{number:>14,} per {WHAT[work]}" for work, number in counts.items()))
        print(f"stored for {place.name}; say in the commit why the counts have changed")
        return 0
    lines, wrong = judged(counts, stored[place.name]["instructions"])
    print("\n".join(lines))
    for line in wrong:
        print(f"guard: {line}")
    if wrong:
        print("guard: make the work smaller, or run tools/bench/guard.py --store and give the reason in the commit")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
