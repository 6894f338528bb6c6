"""Whether the prefill workers of a graph compute prompts that its other workers can use.

Where they cannot, each prompt would be computed twice. What is not known before the engines are loaded is found by the
layout of the blocks, when the first prompt is handed over.
"""

from collections.abc import Sequence

from dynamod.cli.preflight import Checked
from dynamod.engine.names import ENGINES
from dynamod.message.discovery import PREFILL
from dynamod.message.errors import UserError


def check_pairs(workers: Sequence[Checked]) -> None:
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
    handoff = ENGINES[engine].handoff
    if handoff is not None and handoff.only_decode and worker.mode == "aggregated":
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
