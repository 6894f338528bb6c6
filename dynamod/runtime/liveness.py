"""Whether a process is slow or stuck: what it says of itself, judged by clocks. Pure."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dynamod.message.errors import UserError

HEARTBEAT = 0.5
"""Seconds between two heartbeats of a process."""


@dataclass(frozen=True, slots=True)
class Clocks:
    """Seconds. `heartbeat`: without a message the process, or its event loop, is stopped. `stall` and `per_token`: what
    an engine's step may take, all in all and for each token that it computes: a long prefill is slow, not stuck.
    `kill`: for how long it may be unresponsive before it is killed and started again; None: for ten heartbeats.
    """

    heartbeat: float = 2.0
    stall: float = 10.0
    per_token: float = 0.01
    kill: float | None = None

    @property
    def until_kill(self) -> float:
        """Seconds that a process may be unresponsive."""
        return self.kill if self.kill is not None else 10 * self.heartbeat


SETTINGS = {
    "heartbeat_timeout": "heartbeat",
    "stall_timeout": "stall",
    "stall_per_token": "per_token",
    "kill_timeout": "kill",
}
"""Keys of a component's configuration; in capitals behind DYNAMOD_ they are environment variables for all."""


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


def judge(clocks: Clocks, quiet: float, step: float | None, tokens: int) -> str:
    """Why a process counts as unresponsive; empty when it does not.

    `quiet`: seconds since its last message. `step`: seconds since the engine's step of `tokens` tokens began, None
    between steps.
    """
    if quiet > clocks.heartbeat:
        return f"silent for {clocks.heartbeat:g} s"
    if step is not None and step > (budget := clocks.stall + clocks.per_token * tokens):
        return f"in one step of {tokens} tokens for more than {budget:.3g} s"
    return ""


def _seconds(name: str, value: Any) -> float:
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        seconds = -1.0
    if not 0 < seconds < 1e6 or isinstance(value, bool):
        raise UserError(f"{name} is {value!r}", "give seconds above 0")
    return seconds
