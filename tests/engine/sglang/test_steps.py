"""SGLang's ForwardPassMetrics over a real ZMQ socket, from a publisher that speaks its form."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from dynamod.engine.sglang import steps
from dynamod.engine.sglang.steps import StepReader
from dynamod.message.kv_events import ForwardPass, QueuedRequests, ScheduledRequests

zmq: Any = pytest.importorskip("zmq", reason="pyzmq comes with the engines")


def published(number: int, wall_time: float = 0.5, **scheduled: Any) -> bytes:
    return msgspec.msgpack.encode(
        {
            "version": 1,
            "worker_id": "w",
            "dp_rank": 1,
            "counter_id": number,
            "wall_time": wall_time,
            "scheduled_requests": {"num_prefill_requests": 2, "var_prefill_length": 1.5, **scheduled},
            "queued_requests": {"sum_prefill_tokens": 70},
        }
    )


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_it_reads_while_somebody_wants_to_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(steps, "LOOK_INTERVAL", 0.05)
    told: list[int] = []
    engine: Any = SimpleNamespace(stepped=None)
    reader = StepReader(engine, f"ipc://{tmp_path}/steps", 2)
    with zmq.Context() as context, context.socket(zmq.XPUB) as first, context.socket(zmq.XPUB) as second:
        for rank, socket in enumerate((first, second)):
            socket.setsockopt(zmq.LINGER, 0)
            socket.bind(f"ipc://{tmp_path}/steps.{rank}")
        running = asyncio.create_task(reader.run())
        await asyncio.sleep(0.2)
        assert not second.poll(0), "nobody has subscribed"
        assert reader.forward_pass(1) is None

        engine.stepped = told.append
        await until(lambda: second.poll(0))
        assert second.recv() == b"\x01"
        second.send_multipart([b"", b"", published(7, later=3)])
        await until(lambda: told)
        scheduled = ScheduledRequests(num_prefill_requests=2, var_prefill_length=1.5)
        queued = QueuedRequests(sum_prefill_tokens=70)
        assert (told, reader.forward_pass(1)) == ([1], ForwardPass(7, 0.5, scheduled, queued, 1))
        second.send_multipart([b"", b"", b"no message"])
        second.send_multipart([b"", b"", published(8, 0.0)])
        await until(lambda: (found := reader.forward_pass(1)) is not None and found.counter_id == 8)
        assert told == [1], "it is idle"
        assert [record.levelno for record in caplog.records] == [logging.WARNING]

        engine.stepped = None
        await until(lambda: second.poll(0))
        assert second.recv() == b"\x00"
        assert reader.forward_pass(1) is None
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
