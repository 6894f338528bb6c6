"""Whether the prefill workers of a graph compute prompts that its other workers can use.

Where they cannot, each prompt would be computed twice. What is not known before the engines are loaded is found by the
layout of the blocks, when the first prompt is handed over.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dynamod.engine.names import ENGINES
from dynamod.graph.graph import ServiceSpec
from dynamod.message.discovery import PREFILL, DisaggregationMode
from dynamod.message.errors import UserError
from dynamod.worker.settings import WorkerSettings

BLOCK_SIZES = ("block_size", "page_size")
"""What engines call the tokens of a block among their own arguments."""


@dataclass(frozen=True, slots=True)
class Checked:
    """A component of workers. `read`: its engine's arguments as that reads them, None where that is not known.

    `path`: of its model on this machine.
    """

    spec: ServiceSpec
    settings: WorkerSettings
    arguments: Mapping[str, Any]
    read: Any
    path: Path | None

    @property
    def mode(self) -> DisaggregationMode:
        """Its part of requests at first."""
        return self.settings.mode(self.spec.component_type)

    @property
    def served(self) -> str:
        """The name of its model for clients."""
        return self.settings.options(self.path).name or self.settings.model

    def block_size(self) -> tuple[str, int | None]:
        """The key that decides it, and its value; None where only the engine knows it."""
        name, given = self.spec.name, {key.replace("-", "_"): value for key, value in self.arguments.items()}
        own = next((key for key in BLOCK_SIZES if key in given), None)
        key = f"{name}.engine_args.{own}" if own else f"{name}.kv_cache_block_size"
        said = given.get(own) if own else self.settings.kv_cache_block_size
        value = getattr(self.read, "block_size", said)
        return key, value if isinstance(value, int) else None


def check_pairs(workers: list[Checked]) -> None:
    """Raise UserError where blocks of a prefill worker cannot fit, of the model that another component serves.

    Also where no component of the graph that answers for its model can take any. A graph without such a component is
    right: the workers that answer may be of another graph.
    """
    for prefill in workers:
        if prefill.mode != PREFILL:
            continue
        answering = [
            worker
            for worker in workers
            if worker.mode != PREFILL
            and worker.served == prefill.served
            and worker.spec.namespace == prefill.spec.namespace
        ]
        reasons = [reason for worker in answering if (reason := _cannot_take(worker, prefill)) is not None]
        if answering and len(reasons) == len(answering):
            problem, hint = reasons[0]
            raise UserError(f"{prefill.spec.name} would compute no prompt: {problem}", hint)
        for worker in answering:
            _check_pair(worker, prefill)


def _cannot_take(worker: Checked, prefill: Checked) -> tuple[str, str] | None:
    """Why a component that answers takes no prompts of a prefill worker, and what to do; None where it may."""
    engine, name, other = worker.settings.name, worker.spec.name, prefill.spec.name
    if engine != prefill.settings.name:
        problem = f"`{name}.engine` is {engine}, and `{other}.engine` is {prefill.settings.name}"
        return problem, f"give both the same engine, or leave out {other}"
    if ENGINES[engine].own_transfer and worker.mode == "aggregated":
        problem = f"`{name}.disaggregation_mode` is aggregated, and {engine} takes prompts of others only as decode"
        return problem, f"set {name}.disaggregation_mode=decode, or leave out {other}"
    return None


def _check_pair(worker: Checked, prefill: Checked) -> None:
    (key, size), (other, wanted) = worker.block_size(), prefill.block_size()
    if size is not None and wanted is not None and size != wanted:
        raise _unlike(key, size, other, wanted)
    if _differ(worker, prefill):
        keys = f"{worker.spec.name}.model", f"{prefill.spec.name}.model"
        raise _unlike(keys[0], worker.settings.model, keys[1], prefill.settings.model)


def _unlike(key: str, value: object, other: str, wanted: object) -> UserError:
    problem = f"{key} is {value}, and {other} is {wanted}: no prompt that one computes is of use to the other"
    return UserError(problem, "give both the same")


def _differ(worker: Checked, prefill: Checked) -> bool:
    """Whether their models cannot be the same. Copies of one may lie at several places."""
    one, other = worker.path, prefill.path
    if one is None and other is None:
        return worker.settings.model != prefill.settings.model
    if one is None or other is None or not (one.exists() and other.exists()):
        return False
    if one.is_file() and other.is_file():
        return one.stat().st_size != other.stat().st_size
    return one.is_file() != other.is_file()
