"""`dynamo bench`: replays of traces, and made workloads."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dynamod.cli.options import Form, Output, examples
from dynamod.cli.tables import table
from dynamod.extension.installed import require
from dynamod.message.errors import UserError
from dynamod.router.policies import NAMES, mode_of

if TYPE_CHECKING:
    from dynamod.router.settings import RouterSettings

app = typer.Typer(
    help="Experiments in virtual time: no engine, no GPU, no waiting.", no_args_is_help=True, rich_markup_mode=None
)

COMPARED = (*(name for name in NAMES if name not in ("direct", "session-affinity")), "kv-original")
"""Without the modes that need a client that names the worker or a session."""


@app.command(
    "replay",
    epilog=examples(
        "dynamo bench replay conversations --workers 4",
        "dynamo bench replay trace.jsonl --router-mode kv,round-robin --plot modes.svg",
    ),
)
def replay(
    trace: Annotated[
        str, typer.Argument(help="JSON lines, a file of a request trace, or `conversations` for a made workload")
    ],
    block_size: Annotated[int, typer.Option("--block-size", min=1, help="tokens per block of JSON lines")] = 512,
    workers: Annotated[int, typer.Option("--workers", min=1, max=1024, help="simulated workers")] = 8,
    prefill_workers: Annotated[
        int,
        typer.Option("--prefill-workers", min=0, max=1024, help="more of them, that compute prompts for the others"),
    ] = 0,
    blocks: Annotated[int, typer.Option("--blocks", min=1, help="KV blocks of each worker")] = 2000,
    router_mode: Annotated[str, typer.Option(help=f"one or more of {', '.join(COMPARED)}, or all")] = "kv",
    router_cost: Annotated[str, typer.Option(help="weights of the KV cost as JSON, or `original`")] = "{}",
    overlap_weight: Annotated[float, typer.Option("--kv-overlap-score-weight", min=0)] = 1.0,
    temperature: Annotated[float, typer.Option("--router-temperature", min=0)] = 0.0,
    arrival_speedup: Annotated[float, typer.Option("--arrival-speedup", help="let requests come faster")] = 1.0,
    timing: Annotated[str, typer.Option("--timing", help="mocker's timing: later or 2025")] = "later",
    max_num_seqs: Annotated[int, typer.Option("--max-num-seqs", min=1)] = 256,
    max_num_batched_tokens: Annotated[int, typer.Option("--max-num-batched-tokens", min=1)] = 8192,
    engine_args: Annotated[
        str, typer.Option("--extra-engine-args", help='more of the mocker\'s scheduler as JSON, like {"kv_host_gb": 4}')
    ] = "{}",
    tier_blind: Annotated[bool, typer.Option("--tier-blind", help="routers do not hear of KV tiers")] = False,
    seed: Annotated[int, typer.Option("--seed", help="of everything random")] = 0,
    plot: Annotated[str | None, typer.Option("--plot", help="write a picture (SVG) that compares the modes")] = None,
    planner: Annotated[
        list[str] | None,
        typer.Option("--planner", help="static:N, sla, sla:LATE, throughput, latency, load, command:TARGET:PROGRAM"),
    ] = None,
    planner_settings: Annotated[
        str, typer.Option("--planner-settings", help='settings of a planner as JSON, like {"max-gpu-budget": 8}')
    ] = "{}",
    startup: Annotated[
        list[float] | None, typer.Option("--startup", min=0, help="seconds that workers take to start, one or more")
    ] = None,
    sweep: Annotated[
        bool, typer.Option("--sweep", help="planners that draw the front: static:1 and up, sla:LATE")
    ] = False,
    output: Output = Form.TEXT,
) -> None:
    """Play a trace through the real router and the mocker's scheduler, as fast as the machine can.

    With planners the workers come and go; `--workers` are there at the beginning.
    """
    from dynamod.engine.mocker.arguments import scheduler_settings
    from dynamod.engine.mocker.timing import NAMES, TIMINGS

    from .report import HEAD, numbers, row, write_picture
    from .simulate import Replay
    from .trace import Conversations, faster, make_conversations, read_request_trace, read_trace

    if timing not in TIMINGS:
        raise UserError(f"unknown timing '{timing}'", f"known timings: {', '.join(NAMES)}")
    if not 0 < arrival_speedup < float("inf"):
        raise UserError(f"--arrival-speedup is {arrival_speedup:g}", "give a number above 0")
    if trace == "conversations":
        arrivals = make_conversations(Conversations(block_size=block_size), seed)
    elif (recorded := read_request_trace(path := Path(trace).expanduser())) is not None:
        arrivals, block_size = recorded.arrivals, recorded.block_size
        if recorded.skipped:
            print(f"{recorded.skipped} requests have no lengths or no answer, and are left out", file=sys.stderr)
    else:
        arrivals = read_trace(path, block_size)
    arrivals = faster(arrivals, arrival_speedup)
    machine = scheduler_settings(
        {
            "block_size": block_size,
            "num_gpu_blocks": blocks,
            "max_num_seqs": max_num_seqs,
            "max_num_batched_tokens": max_num_batched_tokens,
            **_json("--extra-engine-args", engine_args, '{"kv_host_gb": 4}'),
        }
    )
    if planner or sweep:
        require("planner", "--planner" if planner else "--sweep")
        from .cli_planner import play

        settings = _settings(router_mode.split(",")[0], router_cost, overlap_weight, temperature)
        given = _json("--planner-settings", planner_settings, '{"max-gpu-budget": 8}')
        names, seconds = planner or [], startup or [30.0]
        play(arrivals, machine, TIMINGS[timing], settings, given, names, seconds, workers, sweep, seed, plot, output)
        return
    results: dict[str, dict[str, Any]] = {}
    for name in map(_mode, COMPARED if router_mode == "all" else router_mode.split(",")):
        settings = _settings(name, router_cost, overlap_weight, temperature)
        replay: Replay = Replay(workers, machine, TIMINGS[timing], settings, seed, tier_blind)
        if prefill_workers:
            require("prefill", "--prefill-workers")
            from .pools import PoolReplay

            timings = TIMINGS[timing]
            replay = PoolReplay(workers, prefill_workers, machine, timings, settings, seed=seed, blind=tier_blind)
        results[name] = numbers(replay.run(arrivals))
    if plot is not None:
        title = f"{Path(trace).name}: {len(arrivals)} requests, {workers} workers of {blocks} blocks of {block_size}"
        write_picture(Path(plot), results, title)
    if output is Form.JSON:
        print(json.dumps(next(iter(results.values())) if len(results) == 1 else results, indent=2))
    else:
        print(table(HEAD, [row(name, result) for name, result in results.items()]))


@app.command("conversations", epilog=examples("dynamo bench conversations trace.jsonl --users 200 --rate 4"))
def conversations(
    out: Annotated[str, typer.Argument(help="file to write: a trace for `dynamo bench replay`")],
    users: Annotated[int, typer.Option("--users", min=1)] = 400,
    turns: Annotated[int, typer.Option("--turns", min=1, help="turns of a conversation, on average")] = 6,
    system_prompts: Annotated[int, typer.Option("--system-prompts", min=1)] = 4,
    system_tokens: Annotated[int, typer.Option("--system-tokens", min=0)] = 2048,
    rate: Annotated[float, typer.Option("--rate", min=0.001, help="new conversations per second")] = 2.0,
    block_size: Annotated[int, typer.Option("--block-size", min=1)] = 64,
    seed: Annotated[int, typer.Option("--seed")] = 0,
) -> None:
    """Make a workload of users that talk over several turns with shared system prompts."""
    from .trace import Conversations, make_conversations, write_trace

    plan = Conversations(users, turns, system_prompts, system_tokens, rate=rate, block_size=block_size)
    arrivals = make_conversations(plan, seed)
    write_trace(Path(out), arrivals, block_size)
    print(f"{out}: {len(arrivals)} requests of {users} users over {arrivals[-1].at / 1000:.0f} s")


def _mode(text: str) -> str:
    return "kv-original" if text.strip() == "kv-original" else mode_of(text.strip())


def _settings(name: str, cost: str, overlap_weight: float, temperature: float) -> "RouterSettings":
    from dynamod.router.cost import ORIGINAL, weights_of
    from dynamod.router.settings import RouterSettings

    if name == "kv-original":
        return RouterSettings("kv", ORIGINAL, overlap_weight, temperature)
    value = cost if cost == "original" else _json("--router-cost", cost, '{"queued": 1, "active": 0.1}')
    return RouterSettings(name, weights_of(value), overlap_weight, temperature)


def _json(flag: str, text: str, example: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise UserError(f"{flag} is no JSON: {error}", f"for example {example}") from None
    if not isinstance(value, dict):
        raise UserError(f"{flag} is {text}", f"give an object, for example {example}")
    return value
