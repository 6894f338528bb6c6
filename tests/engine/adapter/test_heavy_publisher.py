"""vLLM's own publisher of KV events: messages that did not come are repeated by it, those from before too."""

import asyncio
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from dynamod.engine.adapter.subscription import Subscription
from dynamod.engine.adapter.wire import BlockRemoved, Event

pytestmark = pytest.mark.heavy

PUBLISHER = """
import sys, time
from vllm.distributed.kv_events import BlockRemoved, KVEventBatch, ZmqEventPublisher

publisher = ZmqEventPublisher(0, *sys.argv[1:3], buffer_steps=int(sys.argv[3]), topic="kv")
print("ready", flush=True)
for line in sys.stdin:
    event = BlockRemoved(block_hashes=[int(line)], medium="GPU")
    publisher.publish(KVEventBatch(ts=time.time(), events=[event]))
publisher.shutdown()
"""

KEPT = 50
"""Messages that it can repeat."""


class Losing(Subscription):
    """Messages with the numbers `missed` do not arrive."""

    missed: Sequence[int] = ()

    async def _message(self, context: Any, frames: Sequence[bytes]) -> None:
        if int.from_bytes(frames[-2], "big") not in self.missed:
            await super()._message(context, frames)


@pytest.fixture
def publisher(tmp_path: Path) -> Iterator[Any]:
    python = os.environ.get("DYNAMOD_TEST_VLLM_PYTHON", "")
    if not python:
        pytest.skip("DYNAMOD_TEST_VLLM_PYTHON names no python")
    words = [python, "-c", PUBLISHER, f"ipc://{tmp_path}/events", f"ipc://{tmp_path}/replay", str(KEPT)]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            assert any(line == "ready\n" for line in process.stdout)
            yield process
        finally:
            process.stdin.close()


@pytest.mark.parametrize("missed", [(), range(10, 20), range(10, 80)])
async def test_what_did_not_come_is_repeated_as_long_as_it_is_kept(
    tmp_path: Path, publisher: Any, missed: Sequence[int]
) -> None:
    pytest.importorskip("zmq", reason="pyzmq comes with the engines")
    taken: list[Any] = []

    def take(event: Event) -> None:
        assert isinstance(event, BlockRemoved)
        taken.extend(event.block_hashes)

    found = Losing(f"ipc://{tmp_path}/events", f"ipc://{tmp_path}/replay", take, lambda: taken.append("lost"))
    found.missed = missed

    def publish(numbers: Sequence[int]) -> None:
        publisher.stdin.write("".join(f"{number}\n" for number in numbers))
        publisher.stdin.flush()

    publish(range(5))  # before anybody listens
    task = asyncio.ensure_future(found.run())
    try:
        async with asyncio.timeout(30):
            await until(taken, 4)
            if len(missed) < KEPT:  # it is asked while it has them
                publish(range(5, 30))
                await until(taken, 29)
            publish(range(30 if len(missed) < KEPT else 5, 100))
            await until(taken, 99)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    if len(missed) > KEPT:
        assert taken.count("lost") == found.losses == 1
        assert taken == [*range(10), "lost", *taken[11:]]
        assert taken[11:] == list(range(taken[11], 100))
    else:
        assert (taken, found.losses) == (list(range(100)), 0)
        assert found.gaps == (1 if missed else 0)


async def until(taken: Sequence[Any], number: int) -> None:
    while number not in taken:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
