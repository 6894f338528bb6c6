"""Why requests wait, in words."""

import pytest

from dynamod.features.top.reasons import of_frontend, of_worker
from dynamod.features.top.rows import WorkerFacts
from dynamod.message.rows import Row
from dynamod.message.waits import Waits


def facts(running: int, waiting: int, active: int | None = None, total: int | None = None) -> WorkerFacts:
    return WorkerFacts(running, waiting, active, total, None, None)


def test_a_frontend_says_what_has_no_worker() -> None:
    waits = [
        Waits("llama", "preprocess", "", 2),
        Waits("llama", "route", "decode", 3, "no worker is ready"),
        Waits("llama", "dispatch", "decode", 9),
        Waits("llama", "route", "prefill", 1, "a prefill worker is being started"),
        Waits("other", "route", "aggregated", 0),
    ]
    assert [*of_frontend(waits)] == [
        "2 requests of llama: template and tokenizer",
        "3 requests of llama without a worker: no worker is ready",
        "1 request of llama without a worker for its prompt: a prefill worker is being started",
    ]


@pytest.mark.parametrize(
    ("known", "row", "said"),
    [
        (facts(4, 0, 100, 100), Row(), []),
        (facts(4, 3, 99, 100), Row(), ["3 requests in the engine: the KV cache is full, 99 of 100 blocks are in use"]),
        (facts(1, 2, 10, 100), Row(), ["2 requests in the engine: 1 request before"]),
        (facts(8, 1), Row(), ["1 request in the engine: 8 requests before"]),
        (facts(0, 1), Row(doing="captures graphs"), ["1 request in the engine: captures graphs"]),
        (facts(0, 1), Row(), ["1 request in the engine: no step has begun"]),
        (facts(0, 1), Row(doing="idle"), ["1 request in the engine: no step has begun"]),
        (facts(2, 0), Row(slow=True, doing="a step of 8 tokens for 9 s"), ["slow: a step of 8 tokens for 9 s"]),
        (None, Row(state="Ready"), []),
    ],
)
def test_a_worker_says_why_requests_wait(known: WorkerFacts | None, row: Row, said: list[str]) -> None:
    assert [*of_worker([row], known, answers=True)] == said


def test_a_silent_process_says_only_that() -> None:
    assert [*of_worker([Row(state="Ready", slow=True)], None, answers=False)] == [
        "the process does not answer its daemon"
    ]
    assert [*of_worker([Row(state="Fatal")], None, answers=False)] == [], "its state says it"
