"""Whether a process is slow or stuck: what it reports and what the kernel shows of it, judged by clocks. Pure.

A process that makes progress is never stuck, however slow it is. Progress is a message, the end of an engine's step,
or bytes that are read. CPU time and time in the run queue count as work for a bounded time: an endless loop has both.
"""

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from dynamod.message.errors import UserError

HEARTBEAT = 0.5
"""Seconds between two heartbeats of a process."""
HEARTBEATS_UNTIL_KILL = 4
"""Heartbeat timeouts that a process may be stuck before it is killed, where `kill_timeout` is not set."""
COMPUTE_FACTOR = 20
"""How many times its learned time a step may compute without progress, where that is above `compute_timeout`."""
SLOW_FACTOR = 8
"""How many times its learned time a step takes until its worker is slow."""
ENDLESS = math.inf
"""Seconds since a sign that was never seen."""


@dataclass(frozen=True, slots=True)
class Clocks:
    """Seconds.

    `heartbeat`: a process without a message and without work, as the kernel sees it, is stuck. `stall`: an engine's
    step without progress and without work is stuck. `compute`: for how long work without progress counts. `slow`: a
    step that takes longer, and SLOW_FACTOR times its learned time, is slow. `kill`: for how long a process may be stuck
    before it is killed and started again; None: HEARTBEATS_UNTIL_KILL times `heartbeat`.
    """

    heartbeat: float = 2.0
    stall: float = 60.0
    compute: float = 600.0
    slow: float = 30.0
    kill: float | None = None

    @property
    def until_kill(self) -> float:
        """Seconds that a process may be stuck."""
        return self.kill if self.kill is not None else HEARTBEATS_UNTIL_KILL * self.heartbeat


SETTINGS = {
    "heartbeat_timeout": "heartbeat",
    "stall_timeout": "stall",
    "compute_timeout": "compute",
    "slow_timeout": "slow",
    "kill_timeout": "kill",
}
"""Keys of a component's configuration; in capitals after DYNAMOD_ they are environment variables for all."""


def clocks_of(configs: Iterable[Mapping[str, Any]], environ: Mapping[str, str] = os.environ) -> Clocks:
    """The clocks of a process with components of these configurations: the longest that is given, for each.

    Raises UserError that names the key or variable.
    """
    found: dict[str, float] = {}
    configs = [{key.replace("-", "_"): value for key, value in config.items()} for config in configs]
    for key, name in SETTINGS.items():
        given = [_seconds(key, config[key]) for config in configs if config.get(key) is not None]
        variable = f"DYNAMOD_{key.upper()}"
        if not given and environ.get(variable):
            given = [_seconds(variable, environ[variable])]
        if given:
            found[name] = max(given)
    return Clocks(**found)


class Signs(NamedTuple):
    """What is known of a process at one moment, in seconds.

    `quiet`: since its last message. `step`: since the last progress in the engine's step of `tokens` tokens that runs;
    None between steps. `usual`: learned time of such a step; 0: not known. `idle`: since the kernel last saw it work.
    `unread`: since it last read from storage.
    """

    quiet: float
    step: float | None = None
    tokens: int = 0
    usual: float = 0.0
    idle: float = ENDLESS
    unread: float = ENDLESS


class Verdict(NamedTuple):
    """What a process is, and why.

    `stuck`: it gets nothing, its streams move, and it is killed in the end. `slow`: new requests go to other instances
    where there are any.
    """

    state: Literal["", "slow", "stuck"] = ""
    why: str = ""


def judge(clocks: Clocks, signs: Signs) -> Verdict:
    """Whether a process makes progress, is slow, or is stuck."""
    longest = max(clocks.compute, COMPUTE_FACTOR * signs.usual)
    silent = signs.quiet > clocks.heartbeat
    if silent and _without_work(signs.quiet, signs, longest) > clocks.heartbeat:
        return Verdict("stuck", f"silent for {clocks.heartbeat:g} s")
    step = signs.step
    if step is not None:
        if _without_work(step, signs, longest) > clocks.stall:
            limit = longest if min(step, signs.idle) <= clocks.stall else clocks.stall
            return Verdict(
                "stuck", f"in one step of {signs.tokens} tokens for more than {limit:.3g} s without progress"
            )
        if signs.usual and step > max(clocks.slow, SLOW_FACTOR * signs.usual):
            return Verdict(
                "slow", f"in a step of {signs.tokens} tokens for {step:.0f} s; usual are {signs.usual:.2g} s"
            )
    if silent:
        return Verdict("slow", f"without a message for {signs.quiet:.0f} s, and it computes")
    return Verdict()


def _without_work(seconds: float, signs: Signs, longest: float) -> float:
    """Seconds without progress and without work; work counts for `longest` seconds after the last progress."""
    seconds = min(seconds, signs.unread)
    return seconds if seconds > longest else min(seconds, signs.idle)


def _seconds(name: str, value: Any) -> float:
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        seconds = -1.0
    if not 0 < seconds < 1e6 or isinstance(value, bool):
        raise UserError(f"{name} is {value!r}", "give seconds above 0")
    return seconds
