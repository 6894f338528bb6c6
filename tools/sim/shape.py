"""How large a simulated cluster is, which faults may happen in it, and its clocks."""

from dataclasses import dataclass
from typing import Literal, get_args

from dynamod.message.errors import UserError
from dynamod.migration.base import Limits

Fault = Literal[
    "crash",
    "hang",
    "node-death",
    "node-hang",
    "daemon-death",
    "daemon-end",
    "link",
    "partition",
    "registry-cut",
    "mail-cut",
    "drop",
    "double",
    "delay",
    "corrupt",
    "reorder",
    "registry-outage",
    "registry-loss",
    "registry-values",
    "mail-outage",
    "drain",
    "scale",
    "ingress-restart",
    "leave",
    "slow",
    "poison",
    "transfer",
    "planner",
    "start-fail",
    "by-hand",
    "stuck-drain",
    "role-switch",
    "on-demand",
    "staying",
    "repeat",
    "slow-worker",
]
FAULTS: tuple[Fault, ...] = get_args(Fault)

SCALING: tuple[Fault, ...] = ("planner", "start-fail", "by-hand", "stuck-drain")
"""Faults of clusters with planners, which there are where `planner` is among the faults."""

WORKERS = "Worker"
PREFILL_WORKERS = "PrefillWorker"
PATHS = {WORKERS: "dynamo.backend.generate", PREFILL_WORKERS: "dynamo.prefill.generate"}
"""Components of workers, and where they answer. Those that no planner has are of the first."""

MODEL = "simulated"
LEASE_TTL = 5.0
"""Seconds that a lease outlives the last message of its node."""

HEARTBEAT = 2.0
"""Seconds of silence after which a node's daemon quarantines a process, and a session between nodes is given up."""

KILL = 4.0
"""Seconds behind those after which its daemon kills a process that still does not respond."""

CLOCKS = Limits(queue=3.0, first=6.0, gap=4.0, total=60.0)
"""Clocks of a simulated request: short, so that faults outlast them."""

Poison = Literal["crash", "hang"]
POISON: dict[Poison, int] = {"crash": 1500, "hang": 1501}
"""Tokens at the end of a prompt that crash or stop each worker that gets it."""

MIGRATIONS = 3
BLOCK = 16


@dataclass(frozen=True, slots=True)
class Event:
    """One fault: when it begins, how long it lasts, and a number from 0 to 1 for each choice that it makes."""

    at: float
    fault: Fault
    lasts: float
    which: float
    other: float
    chance: float


@dataclass(frozen=True, slots=True)
class Shape:
    """Counts; `span`: virtual seconds in which requests come and faults happen."""

    nodes: int = 3
    workers: int = 6
    ingresses: int = 2
    requests: int = 40
    faults: tuple[Fault, ...] = FAULTS
    span: float = 8.0


def faults_of(text: str) -> tuple[Fault, ...]:
    """Read a list like `crash,hang`; `all`, `none`; a leading `-` leaves one out (`-drop`). Raises UserError."""
    words = [word.strip().replace("_", "-") for word in text.split(",") if word.strip()]
    chosen: list[Fault] = []
    if words and all(word.startswith("-") for word in words):
        chosen = list(FAULTS)
    for word in words:
        if word == "all":
            chosen = list(FAULTS)
        elif word == "none":
            chosen = []
        else:
            fault = _known(word.removeprefix("-"))
            if word.startswith("-"):
                chosen = [one for one in chosen if one != fault]
            elif fault not in chosen:
                chosen.append(fault)
    return tuple(fault for fault in FAULTS if fault in chosen)  # the order of words must not change what is drawn


def _known(word: str) -> Fault:
    for fault in FAULTS:
        if fault == word:
            return fault
    raise UserError(f"unknown fault '{word}'", f"known faults: all, none, {', '.join(FAULTS)}")


def check_shape(shape: Shape) -> None:
    """Raises UserError for counts that make no cluster."""
    for name in ("nodes", "workers", "ingresses", "requests"):
        if getattr(shape, name) < 1:
            raise UserError(f"--{name} is {getattr(shape, name)}", "give a number from 1 up")
