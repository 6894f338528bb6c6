"""What is decided without SGLang when prompts go from engine to engine: its arguments, the room, an aborted prompt."""

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from dynamod.engine.base import EngineOptions
from dynamod.engine.sglang.engine import SgLang
from dynamod.engine.sglang.transfer import ROOMS, SgLangTransfer, with_mode
from dynamod.message import tokens
from dynamod.message.discovery import Capabilities
from dynamod.message.errors import EngineFailed, UserError
from dynamod.message.worker import HANDOFF_FAILED, Generate, Handoff
from dynamod.transport.base import Reply

from ..test_mocker_handoff import Outbox


def test_arguments_of_a_mode() -> None:
    assert with_mode({"dtype": "auto"}, "aggregated", "h", 5) == {"dtype": "auto"}
    assert with_mode({"dtype": "auto"}, "prefill", "10.0.0.1", 5000, cpu=True) == {
        "disaggregation_mode": "prefill",
        "disaggregation_transfer_backend": "nixl",
        "disaggregation_bootstrap_port": 5000,
        "host": "10.0.0.1",
        "dtype": "auto",
    }
    decode = with_mode({"disaggregation_transfer_backend": "mooncake"}, "decode", "10.0.0.1", 0)
    assert decode == {
        "disaggregation_mode": "decode",
        "disaggregation_transfer_backend": "mooncake",
        "host": "10.0.0.1",
    }
    assert with_mode({}, "decode", "h", 0, cpu=True)["disaggregation_decode_retraction_backup"] == "none"
    assert with_mode({"disaggregation_mode": "null"}, "aggregated", "h", 0) == {"disaggregation_mode": "null"}
    with pytest.raises(UserError, match="disaggregation_mode: decode, but the worker is aggregated") as caught:
        with_mode({"disaggregation_mode": "decode"}, "aggregated", "h", 0)
    assert "--disaggregation-mode" in caught.value.hint


async def test_both_engines_are_told_the_same_room_at_once() -> None:
    said: list[dict[str, Any]] = []
    computed: list[Any] = []

    class Engine:
        async def computed(self, request: Generate, params: dict[str, Any]) -> None:
            assert said == [params], "the other engine is told before the prompt is computed"
            computed.append(request)

    transfer = SgLangTransfer(Engine(), "layout", "10.0.0.1", 5000)  # type: ignore[arg-type]
    request = Generate("r", "m", b"")
    for _ in range(2):
        said.clear()
        await transfer.prefill(request, said.append)
        assert (said[0]["bootstrap_host"], said[0]["bootstrap_port"]) == ("10.0.0.1", 5000)
        assert 0 <= said[0]["bootstrap_room"] < 1 << ROOMS
    assert (computed, transfer.shape) == ([request, request], "rendezvous")


class Made:
    """In place of SGLang's `Engine`: two tokens, or `abort` before them or behind the first."""

    def __init__(self, abort: int | None = None) -> None:
        self.abort, self.asked = abort, list[dict[str, Any]]()

    async def async_generate(self, **asked: Any) -> AsyncIterator[dict[str, Any]]:
        self.asked.append(asked)
        return self._chunks()

    async def _chunks(self) -> AsyncIterator[dict[str, Any]]:
        for index in range(2):
            finish = {"type": "length"} if index else None
            if index == self.abort:
                finish = {"type": "abort", "message": "the transfer has failed"}
            yield {
                "output_ids": [5 + index],
                "meta_info": {"finish_reason": finish, "prompt_tokens": 2, "cached_tokens": 0},
            }


def engine_with(made: Made) -> SgLang:
    engine: Any = SgLang(EngineOptions("m"), lambda *_: None)
    engine._engine, engine._incremental, engine.vocabulary, engine.room = made, True, 100, 100
    engine.can = Capabilities(handoff=True, needs_prefill=True)
    engine.own_transfer = SgLangTransfer(engine, "layout", "10.0.0.1", 5000)
    found: SgLang = engine
    return found


def handed(words: Any) -> Any:
    params = {"bootstrap_host": "10.0.0.1", "bootstrap_port": 5000, "bootstrap_room": 7}
    return msgspec.structs.replace(words.generate([1, 2]), handoff=Handoff("s", "layout", params=params))


async def test_an_answer_with_the_blocks_of_another_engine(words: Any) -> None:
    made, outbox = Made(), Outbox()
    engine = engine_with(made)
    await engine.generate(handed(words), Reply(outbox, 1), 2)
    assert made.asked[0]["bootstrap_room"] == 7
    assert (b"".join(delta.ids for delta in outbox.deltas), outbox.deltas[-1].finish) == (tokens.pack([5, 6]), "length")
    assert engine.own_transfer is not None
    assert (engine.own_transfer.transfers, engine.own_transfer.failed) == (1, {})


@pytest.mark.parametrize(("abort", "code"), [(0, HANDOFF_FAILED), (1, None)])
async def test_blocks_that_have_not_come_are_said_to_be_missing(words: Any, abort: int, code: str | None) -> None:
    outbox = Outbox()
    engine = engine_with(Made(abort))
    await engine.generate(handed(words), Reply(outbox, 1), 2)
    failed = outbox.deltas[-1]
    assert (failed.code, failed.retry) == (code, code is not None)
    assert engine.own_transfer is not None
    assert engine.own_transfer.failed == ({"failed": 1} if code else {})


async def test_without_a_hand_off_a_decode_worker_has_nothing_to_answer_with(words: Any) -> None:
    made, outbox = Made(), Outbox()
    await engine_with(made).generate(words.generate([1, 2]), Reply(outbox, 1), 2)
    assert (outbox.deltas[-1].code, made.asked) == (HANDOFF_FAILED, [])


async def test_a_prompt_for_another_engine(words: Any) -> None:
    made = Made()
    engine = engine_with(made)
    await engine.computed(words.generate([1, 2]), {"bootstrap_room": 9})
    assert (made.asked[0]["bootstrap_room"], engine.open.count) == (9, 0)
    with pytest.raises(EngineFailed, match="the transfer has failed"):
        await engine_with(Made(0)).computed(words.generate([1, 2]), {"bootstrap_room": 9})
