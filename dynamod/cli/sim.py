"""`dynamo sim`: the control plane under faults, in virtual time, seed after seed."""

import json
import sys
import time
from collections import Counter
from typing import Annotated, Any

import typer

from dynamod.message.errors import UserError

SHOWN = 60
"""Events shown of a seed that failed, without `--events`."""

FAILURES = 3
"""Seeds that failed whose events are shown; of the others only the first line is."""


def sim(
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="how many seeds to run")] = 100,
    start: Annotated[int, typer.Option("--start", min=0, help="the first seed")] = 0,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="run this seed alone")] = None,
    events: Annotated[bool, typer.Option("--events", help="print all events, not only the last ones")] = False,
    nodes: Annotated[int | None, typer.Option("--nodes", help="machines (default 3; 200 with --scale)")] = None,
    workers: Annotated[int | None, typer.Option("--workers", help="workers (default 6; 2000)")] = None,
    ingresses: Annotated[int | None, typer.Option("--ingresses", help="ingress processes (default 2; 20)")] = None,
    requests: Annotated[int | None, typer.Option("--requests", help="requests (default 40; 2000)")] = None,
    faults: Annotated[
        str, typer.Option("--faults", help="list like crash,hang; all; none; -drop leaves one out")
    ] = "all",
    scale: Annotated[bool, typer.Option("--scale", help="measure a large cluster instead, without faults")] = False,
    output: Annotated[str, typer.Option("--output", "-o", help="text or json")] = "text",
) -> None:
    """Run the real supervisors, registry view, router, migration and transport through faults drawn from seeds.

    Everything happens in virtual time and repeats itself to the byte. Exit code 1 when an invariant was broken.
    """
    from dynamod.sim.scale import SCALE
    from dynamod.sim.shape import Shape, check_shape, faults_of

    if output not in ("text", "json"):
        raise UserError(f"unknown output '{output}'", "known outputs: text, json")
    default = SCALE if scale else Shape()
    shape = Shape(
        default.nodes if nodes is None else nodes,
        default.workers if workers is None else workers,
        default.ingresses if ingresses is None else ingresses,
        default.requests if requests is None else requests,
        () if scale else faults_of(faults),
        default.span,
    )
    check_shape(shape)
    if scale:
        _scale(shape, seed or 0, output)
        return
    chosen = range(start, start + seeds) if seed is None else range(seed, seed + 1)
    raise typer.Exit(_run(chosen, shape, _again(shape, default, faults), events, seed is not None, output))


def _again(shape: Any, default: Any, faults: str) -> str:
    """The command that repeats a seed, without its number."""
    words = [
        f" --{name} {getattr(shape, name)}"
        for name in ("nodes", "workers", "ingresses", "requests")
        if getattr(shape, name) != getattr(default, name)
    ]
    if faults != "all":
        words.append(f" --faults={faults}")
    return f"dynamo sim --events{''.join(words)} --seed"


def _run(chosen: range, shape: Any, again: str, events: bool, alone: bool, output: str) -> int:
    from dynamod.sim.checks import KNOWN
    from dynamod.sim.run import simulate

    begun = time.perf_counter()
    failed: list[dict[str, Any]] = []
    known: Counter[str] = Counter()
    ends: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    moves = 0
    terminal = output == "text" and sys.stderr.isatty()
    for done, seed in enumerate(chosen):
        outcome = simulate(seed, shape)
        known.update(outcome.known)
        ends.update(outcome.ends)
        faults.update(outcome.faults)
        moves += outcome.moves
        if outcome.failed:
            kept = outcome.lines if events else outcome.lines[-SHOWN:]
            problems = [f"{check}: {what}" for check, what in outcome.problems]
            row = {"seed": seed, "problems": problems, "repeat": f"{again} {seed}", "digest": outcome.digest}
            failed.append({**row, "events": kept} if len(failed) < FAILURES else row)
            if output == "text":
                _show(failed[-1], outcome.events)
        elif alone and output == "text" and events:
            print("\n".join(outcome.lines))
        if alone and output == "text":
            print(f"seed {seed}: {outcome.events} events, digest {outcome.digest}")
        if terminal and done % 10 == 9:
            rate = (done + 1) / (time.perf_counter() - begun)
            print(f"\r{done + 1} of {len(chosen)} seeds, {rate:.1f}/s, {len(failed)} failed", end="", file=sys.stderr)
    if terminal:
        print(file=sys.stderr)
    seconds = time.perf_counter() - begun
    if output == "json":
        report = {"seeds": len(chosen), "failed": failed, "known": dict(sorted(known.items()))}
        counts = {"requests": dict(sorted(ends.items())), "faults": dict(sorted(faults.items())), "moves": moves}
        print(json.dumps({**report, **counts, "seconds": round(seconds, 2)}, indent=2))
    else:
        print(f"{len(chosen)} seeds in {seconds:.1f} s: {len(failed)} failed")
        print("requests: " + ", ".join(f"{number} {end}" for end, number in sorted(ends.items())) + f"; {moves} moves")
        print("faults: " + (", ".join(f"{number} {fault}" for fault, number in sorted(faults.items())) or "none"))
        for check, number in sorted(known.items()):
            print(f"known: {check} ({number} seeds): {KNOWN[check]}")
    return 1 if failed else 0


def _show(row: dict[str, Any], count: int) -> None:
    """A seed that failed."""
    print(f"seed {row['seed']} FAILED: {row['problems'][0]}")
    lines = row.get("events", [])
    if lines:
        if len(lines) < count:
            print(f"  ... {count - len(lines)} events before")
        print("\n".join(lines))
        for problem in row["problems"][1:]:
            print(f"also: {problem}")
    print(f"repeat with: {row['repeat']}")


def _scale(shape: Any, seed: int, output: str) -> None:
    from dynamod.sim.scale import measure

    found = measure(shape, seed)
    if output == "json":
        print(json.dumps(found, indent=2))
    else:
        for name, value in found.items():
            text = ", ".join(f"{key} {one}" for key, one in value.items()) if isinstance(value, dict) else value
            print(f"{name:<40} {text if text != [] else 'none'}")
    if found["problems"]:
        raise typer.Exit(1)
