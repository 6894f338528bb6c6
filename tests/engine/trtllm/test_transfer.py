"""Prompts from one TensorRT-LLM to another, both recorded doubles: it was never run on hardware."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from dynamod import sample
from dynamod.actor import System
from dynamod.engine.base import EngineOptions
from dynamod.engine.trtllm.engine import TrtLlm
from dynamod.message.ingress import Items
from dynamod.message.worker import Handoff, Prefill, Sampling

from .recorded_double import RecordedDouble, install

PATH = Path(str(sample.path("sample")))


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)


async def worker(words: Any, system: System, mode: Any) -> Any:
    return await words.House(system, TrtLlm, EngineOptions("m", PATH, disaggregation_mode=mode)).start(mode)


async def test_a_prompt_is_computed_by_one_and_answered_by_another(words: Any) -> None:
    async with System() as system:
        prefill, decode = await worker(words, system, "prefill"), await worker(words, system, "decode")
        assert RecordedDouble.made[0].arguments["cache_transceiver_config"] == {"backend": "DEFAULT"}
        assert (prefill.published[0].types, decode.published[0].capabilities.handoff) == ((), True)
        assert not decode.published[0].capabilities.needs_prefill
        asked = prefill.ask(Prefill(words.generate([100, 101], max_tokens=5)))
        await words.until(lambda: any(isinstance(delta, Items) for delta in asked.deltas))
        [data] = next(delta.items for delta in asked.deltas if isinstance(delta, Items))
        handoff = msgspec.msgpack.decode(data, type=Handoff)
        assert handoff.params == {"first_gen_tokens": [102], "ctx_request_id": 0, "opaque_state": b"de"}
        request = words.generate([100, 101], max_tokens=3)
        answer = await decode.ask(msgspec.structs.replace(request, handoff=handoff)).wait(5)
        assert (answer.ids, answer.finish) == ([102, 103, 104], "length")
        assert (RecordedDouble.made[1].read, decode.statistics.handoff.transfers) == (1, 1)
        assert prefill.statistics.open == 1, "until the ingress says that it has been read"
        asked.stream.cancel()
        await words.until(lambda: prefill.statistics.handoff.sessions.released == 1)

        other = msgspec.structs.replace(handoff, params={**handoff.params, "opaque_state": b"other"})
        answer = await decode.ask(msgspec.structs.replace(request, handoff=other)).wait(5)
        assert (answer.ids, answer.finish) == ([102, 103, 104], "length"), "computed where the answer is"
        assert (decode.statistics.handoff.transfers, decode.statistics.handoff.failures) == (1, {"failed": 1})


async def test_prompts_with_log_probabilities_are_computed_where_they_are_answered(words: Any) -> None:
    async with System() as system:
        prefill = await worker(words, system, "prefill")
        wanted = msgspec.structs.replace(words.generate([100]), sampling=Sampling(logprobs=1))
        refused = await prefill.ask(Prefill(wanted)).wait(5)
        assert "log probability" in refused.error.message
