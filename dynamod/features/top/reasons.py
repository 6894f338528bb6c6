"""Why requests wait at a process, in words (pure)."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from dynamod.message.rows import STATE_SAYS_IT, Row
from dynamod.message.waits import Waits

if TYPE_CHECKING:
    from .rows import WorkerFacts

FULL = 0.9
"""Share of the blocks in use from which a KV cache counts as full: the next prompt has no room there."""


def of_frontend(waits: Iterable[Waits]) -> Iterator[str]:
    """Requests that have not come to a worker. Why requests at a worker wait is said of the worker."""
    for one in waits:
        if not one.requests or one.stage == "dispatch":
            continue
        of, pool = f"{_requests(one.requests)} of {one.model}", " for its prompt" if one.phase == "prefill" else ""
        if one.stage == "preprocess":
            yield f"{of}: template and tokenizer"
        else:
            yield f"{of} without a worker{pool}: {one.why}"


def of_worker(rows: Sequence[Row], facts: "WorkerFacts | None", *, answers: bool) -> Iterator[str]:
    """Requests that wait in an engine, and an engine that makes no progress."""
    if not answers:
        if any(row.state == "Ready" for row in rows):
            yield "the process does not answer its daemon"
        return
    doing = next((row.doing for row in rows if row.doing), "")
    if slow := any(row.slow for row in rows):
        yield f"slow: {doing}"
    if facts is None or not facts.waiting:
        return
    of, active, total = _requests(facts.waiting), facts.active_blocks, facts.total_blocks
    if active is not None and total and active >= FULL * total:
        yield f"{of} in the engine: the KV cache is full, {active} of {total} blocks are in use"
    elif facts.running:
        yield f"{of} in the engine: {_requests(facts.running)} before"
    elif not slow:
        # The process's own words are older or newer than the counts: an engine in which a request waits is not idle.
        yield f"{of} in the engine: {doing if doing not in STATE_SAYS_IT else 'no step has begun'}"


def _requests(count: int) -> str:
    return "1 request" if count == 1 else f"{count} requests"
