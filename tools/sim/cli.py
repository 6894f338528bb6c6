"""`dynamo sim`: the control plane under faults, in virtual time, seed after seed."""

import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

import typer

from dynamod.cli.options import Form, Output, examples

SHOWN = 60
"""Events shown of a seed that failed, without `--events`."""

FAILURES = 3
"""Seeds that failed whose events are shown; of the others only the first line is."""


def run(words: Sequence[str]) -> int:
    """Run `dynamo sim` with the words that follow; returns the exit code. Raises UserError, and click's errors."""
    app = typer.Typer(rich_markup_mode=None, context_settings={"help_option_names": ["-h", "--help"]})
    shown = examples("dynamo sim --seeds 1000", "dynamo sim --seed 7 --events", "dynamo sim --scale")
    app.command(epilog=shown)(sim)
    code = app(args=list(words), prog_name="dynamo sim", standalone_mode=False)
    return code if isinstance(code, int) else 0


def sim(
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="how many seeds to run")] = 100,
    start: Annotated[int, typer.Option("--start", min=0, help="the first seed")] = 0,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="run this seed alone")] = None,
    events: Annotated[bool, typer.Option("--events", help="print all events, not only the last ones")] = False,
    nodes: Annotated[int | None, typer.Option("--nodes", help="machines (default 3; 200 with --scale)")] = None,
    workers: Annotated[int | None, typer.Option("--workers", help="workers (default 6; 2000)")] = None,
    ingresses: Annotated[int | None, typer.Option("--ingresses", help="ingress processes (default 2; 20)")] = None,
    requests: Annotated[int | None, typer.Option("--requests", help="requests (default 40; 2000)")] = None,
    faults: Annotated[str, typer.Option(help="list like crash,hang; all; none; -drop leaves one out")] = "all",
    scale: Annotated[bool, typer.Option("--scale", help="measure a large cluster instead, without faults")] = False,
    output: Output = Form.TEXT,
) -> None:
    """Run the real supervisors, registry view, router, migration and transport through faults drawn from seeds.

    Everything happens in virtual time and repeats itself to the byte. Exit code 1 when an invariant was broken.
    """
    from tools.sim.scale import SCALE
    from tools.sim.shape import Shape, check_shape, faults_of

    default = SCALE if scale else Shape()
    given = {"nodes": nodes, "workers": workers, "ingresses": ingresses, "requests": requests}
    sizes = {name: number for name, number in given.items() if number is not None}
    shape = replace(default, **sizes, faults=() if scale else faults_of(faults))
    check_shape(shape)
    if scale:
        raise typer.Exit(_scale(shape, seed or 0, output))
    words = [f" --{name} {number}" for name, number in sizes.items() if number != getattr(default, name)]
    words += [f" --faults={faults}"] if faults != "all" else []
    chosen = range(start, start + seeds) if seed is None else range(seed, seed + 1)
    again = f"dynamo sim --events{''.join(words)} --seed"
    raise typer.Exit(_run(chosen, shape, again, events, seed is not None, output))


def _run(chosen: range, shape: Any, again: str, events: bool, alone: bool, output: Form) -> int:
    from tools.sim.checks import KNOWN
    from tools.sim.run import simulate

    begun = time.perf_counter()
    failed: list[dict[str, Any]] = []
    known, ends, faults = Counter[str](), Counter[str](), Counter[str]()
    moves, text = 0, output is Form.TEXT
    terminal = text and sys.stderr.isatty()
    for done, seed in enumerate(chosen, 1):
        outcome = simulate(seed, shape)
        known.update(outcome.known)
        ends.update(outcome.ends)
        faults.update(outcome.faults)
        moves += outcome.moves
        if outcome.failed:
            problems = [f"{check}: {what}" for check, what in outcome.problems]
            row = {"seed": seed, "problems": problems, "repeat": f"{again} {seed}", "digest": outcome.digest}
            if len(failed) < FAILURES:
                row["events"] = outcome.lines if events else outcome.lines[-SHOWN:]
            failed.append(row)
            if text:
                _show(row, outcome.events)
        elif alone and text and events:
            print("\n".join(outcome.lines))
        if alone and text:
            print(f"seed {seed}: {outcome.events} events, digest {outcome.digest}")
        if terminal and done % 10 == 0:
            rate = done / (time.perf_counter() - begun)
            print(f"\r{done} of {len(chosen)} seeds, {rate:.1f}/s, {len(failed)} failed", end="", file=sys.stderr)
    if terminal:
        print(file=sys.stderr)
    seconds = time.perf_counter() - begun
    counts = {name: dict(sorted(found.items())) for name, found in (("requests", ends), ("faults", faults))}
    if not text:
        report = {"seeds": len(chosen), "failed": failed, "known": dict(sorted(known.items())), **counts}
        print(json.dumps({**report, "moves": moves, "seconds": round(seconds, 2)}, indent=2))
        return 1 if failed else 0
    lists = {name: ", ".join(f"{number} {what}" for what, number in found.items()) for name, found in counts.items()}
    print(f"{len(chosen)} seeds in {seconds:.1f} s: {len(failed)} failed")
    print(_verdict(len(failed)))
    print(f"requests: {lists['requests']}; {moves} moves\nfaults: {lists['faults'] or 'none'}")
    for check, number in sorted(known.items()):
        print(f"known: {check} ({number} seeds): {KNOWN[check]}")
    return 1 if failed else 0


def _verdict(failed: int) -> str:
    """The result in words, for who reads the counts below it for the first time."""
    if failed:
        return f"result: bad. In {failed} of the seeds a rule of tools/sim/README.md was broken: a bug, shown above"
    return (
        "result: good, no rule was broken. The faults below were made on purpose; of the requests below `failed` "
        "could not succeed under them,\n`left` went away by themselves, `cut off` and `refused` had no ingress any more"
    )


def _show(row: dict[str, Any], count: int) -> None:
    """A seed that failed."""
    print(f"seed {row['seed']} FAILED: {row['problems'][0]}")
    if lines := row.get("events"):
        if len(lines) < count:
            print(f"  ... {count - len(lines)} events before")
        print("\n".join(lines))
        for problem in row["problems"][1:]:
            print(f"also: {problem}")
    print(f"repeat with: {row['repeat']}")


def _scale(shape: Any, seed: int, output: Form) -> int:
    from tools.sim.scale import measure

    found = measure(shape, seed)
    if output is Form.JSON:
        print(json.dumps(found, indent=2))
    else:
        for name, value in found.items():
            text = ", ".join(f"{key} {one}" for key, one in value.items()) if isinstance(value, dict) else value
            print(f"{name:<40} {text if text != [] else 'none'}")
    return 1 if found["problems"] else 0
