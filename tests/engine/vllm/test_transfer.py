"""What is decided without vLLM when prompts go from engine to engine: its connector, what that reports."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from dynamod.actor.testing import virtual
from dynamod.engine.base import EngineOptions
from dynamod.engine.vllm.engine import Vllm
from dynamod.engine.vllm.names import Names
from dynamod.engine.vllm.transfer import ASKED, LEASE, VllmTransfer, with_connector
from dynamod.message import tokens
from dynamod.message.worker import Generate, Handoff
from dynamod.transport.base import Reply

from ..test_mocker_handoff import Outbox


@pytest.mark.parametrize(("mode", "role"), [("prefill", "kv_producer"), ("decode", "kv_consumer")])
def test_the_connector_is_made_for_the_mode(mode: Any, role: str) -> None:
    made = with_connector({"dtype": "auto"}, mode, cpu=True)
    assert made["dtype"] == "auto"
    assert made["kv_transfer_config"] == {
        "kv_connector": "NixlConnector",
        "kv_role": role,
        "kv_load_failure_policy": "recompute",
        "kv_buffer_device": "cpu",
        "kv_connector_extra_config": {"kv_lease_duration": LEASE},
    }
    assert "kv_buffer_device" not in with_connector({}, mode)["kv_transfer_config"]


def test_what_is_given_counts_more() -> None:
    given = {"kv_role": "kv_both", "kv_connector_extra_config": {"kv_lease_duration": 90, "backends": ["UCX"]}}
    made = with_connector({"kv_transfer_config": given}, "decode")["kv_transfer_config"]
    assert (made["kv_connector"], made["kv_role"]) == ("NixlConnector", "kv_both")
    assert made["kv_connector_extra_config"] == {"kv_lease_duration": 90, "backends": ["UCX"]}
    parsed = object()  # vLLM's own, from the words behind --
    assert with_connector({"kv_transfer_config": parsed}, "decode") == {"kv_transfer_config": parsed}
    assert with_connector({"dtype": "auto"}, "aggregated") == {"dtype": "auto"}


def test_blocks_are_read_before_their_lease_ends() -> None:
    short, long = (VllmTransfer(None, "layout", lease) for lease in (30, LEASE))  # type: ignore[arg-type]
    assert (short.patience, long.patience) == (22.5, 45)
    assert short.layout != long.layout, "one knows the other's"


def test_what_the_connector_reports_is_counted() -> None:
    transfer = VllmTransfer(None, "layout", LEASE)  # type: ignore[arg-type]
    transfer.record({"bytes_transferred": [100, 28], "transfer_duration": [0.25, 0.5], "num_failed_transfers": []})
    transfer.record({"num_failed_handshakes": [1], "num_failed_transfers": [1, 1], "num_kv_expired_reqs": [1]})
    transfer.record({})
    assert (transfer.transfers, transfer.bytes, transfer.seconds, transfer.expired) == (2, 128, 0.75, 1)
    assert transfer.failed == {"unreachable": 1, "failed": 2}


class Llm:
    """In place of `AsyncLLM`: what is transferred never comes."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.aborted = 0

    async def generate(self, _prompt: Any, params: dict[str, Any], _name: str) -> AsyncIterator[Any]:
        transfer = params.get("extra_args", {}).get("kv_transfer_params")
        self.asked.append(transfer)
        try:
            if transfer is not None and transfer.get("late"):
                await asyncio.sleep(1000)
            for index in (5, 6):
                finish = "length" if index == 6 else None
                one = SimpleNamespace(token_ids=[index], finish_reason=finish, logprobs=None)
                told = {"remote_port": 1} if finish else None
                yield SimpleNamespace(outputs=[one], kv_transfer_params=told, num_cached_tokens=2)
        except asyncio.CancelledError:
            self.aborted += 1
            raise


def engine_with(llm: Llm) -> Vllm:
    engine: Any = Vllm(EngineOptions("m"), lambda *_: None)
    engine._vllm = Names(dict, "delta", list, dict, (ValueError,), KeyError, IndexError)
    engine.vocabulary, engine.room, engine._llm = 100, 100, llm
    engine.own_transfer = VllmTransfer(engine, "layout", LEASE)
    made: Vllm = engine
    return made


@pytest.mark.parametrize("late", [False, True])
@virtual
async def test_blocks_that_do_not_come_in_time_are_computed(words: Any, late: bool) -> None:
    llm, outbox, now = Llm(), Outbox(), asyncio.get_running_loop().time
    engine, began = engine_with(llm), now()
    params = {"remote_port": 1, "late": late}
    request = msgspec.structs.replace(words.generate([1, 2]), handoff=Handoff("s", "layout", params=params))
    await engine.generate(request, Reply(outbox, 1), 2)
    ids = b"".join(delta.ids for delta in outbox.deltas)
    assert (tokens.unpack(ids).tolist(), outbox.deltas[-1].finish) == ([5, 6], "length")
    assert [delta.cached_tokens for delta in outbox.deltas] == [2, None, None], "said once, before the first id"
    assert (llm.asked, llm.aborted) == ([params, None] if late else [params], int(late))
    assert engine.own_transfer is not None
    assert engine.own_transfer.failed == ({"stalled": 1} if late else {})
    assert now() - began == pytest.approx(0.75 * LEASE if late else 0)


@virtual
async def test_a_prompt_for_another_engine_is_computed_with_one_token(words: Any) -> None:
    llm = Llm()
    engine = engine_with(llm)
    assert await engine.computed(words.generate([1, 2]), ASKED) == {"remote_port": 1}
    assert (llm.asked, engine.open.count) == ([ASKED], 0)


async def test_the_lease_of_a_prompt_is_its_task() -> None:
    said: list[dict[str, Any]] = []

    class Engine:
        async def computed(self, request: Generate, asked: Any) -> dict[str, Any]:
            assert asked["do_remote_decode"]
            return {"remote_port": 5600}

    transfer = VllmTransfer(Engine(), "layout", LEASE)  # type: ignore[arg-type]
    task = asyncio.create_task(transfer.prefill(Generate("r", "m", b""), said.append))
    await asyncio.sleep(0.01)
    assert (said, task.done()) == ([{"remote_port": 5600}], False)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
