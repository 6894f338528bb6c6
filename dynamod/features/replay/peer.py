"""A planner in a program of its own, judged in the same replay: one line of JSON for each tick, and one in answer.

Its first line is what it has to know: {"target": ..., "max_kv_tokens": of a worker, "context_length": ...,
"max_workers": ..., "min_workers": ..., "up": percent, "down": percent}. Each tick is {"ready": n, "expected": n,
"fpm": {worker: {"queued_prefill_tokens", "prefill_tokens", "scheduled_kv_tokens", "queued_kv_tokens", "wall_time"}}},
the answer {"target": n or null, "reason": "..."}.
"""

import json
import select
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from dynamod.features.planner.observation import Observation, WorkerLoad
from dynamod.message.errors import UserError

PATIENCE = 60.0
"""Seconds for an answer."""


class PeerPlanner:
    """`command` is started, and ends with the context. `reasons`: how often it gave which."""

    def __init__(self, command: Sequence[str], first: Mapping[str, Any]) -> None:
        self._name = command[0]
        try:
            self._program = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        except OSError as error:
            raise UserError(f"--planner {command[0]} cannot be started: {error.strerror}") from None
        self._first = json.dumps(first) + "\n"
        self.reasons: Counter[str] = Counter()

    def __call__(self, seen: Observation) -> int | None:
        """Ask it. Raises UserError when it does not answer."""
        loads = {str(number): _metrics(one) for number, one in enumerate(seen.ready)}
        line = self._first + json.dumps({"ready": len(seen.ready), "expected": seen.expected, "fpm": loads}) + "\n"
        self._first = ""
        program = self._program
        assert program.stdin is not None
        assert program.stdout is not None
        try:
            program.stdin.write(line.encode())
            program.stdin.flush()
            readable, _, _ = select.select([program.stdout], [], [], PATIENCE)
            answer: Any = json.loads(program.stdout.readline() if readable else b"")
            target, reason = answer["target"], str(answer["reason"])
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise UserError(f"--planner {self._name} does not answer as it should: {type(error).__name__}") from None
        self.reasons[reason] += 1
        return target if isinstance(target, int) else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._program.kill()
        self._program.communicate()


def _metrics(load: WorkerLoad) -> dict[str, float]:
    return {
        "queued_prefill_tokens": load.queued_prefill,
        "prefill_tokens": load.running_prefill,
        "scheduled_kv_tokens": load.context,
        "queued_kv_tokens": load.queued_prefill,
        "wall_time": load.steps[-1].seconds if load.steps else 0.0,
    }
