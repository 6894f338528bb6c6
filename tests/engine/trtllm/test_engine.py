"""The engine `trtllm` in a real worker, at a recorded double of its LLM API: it was never run on hardware."""

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dynamod import sample
from dynamod.actor import Crashed, System
from dynamod.engine.base import EngineOptions
from dynamod.engine.trtllm.engine import TrtLlm
from dynamod.kvcache.hashes import block_hashes
from dynamod.message import tokens
from dynamod.message.errors import UserError
from dynamod.message.ingress import Logprobs
from dynamod.message.kv_events import Removed, Stored
from dynamod.message.worker import Sampling

from .recorded_double import RecordedDouble, created, install, removed, stored

SIZE = 4
PATH = Path(str(sample.path("sample")))


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)


async def house(words: Any, system: System, path: Path = PATH, **fields: Any) -> Any:
    fields = {"kv_cache_block_size": SIZE, **fields}
    return await words.House(system, TrtLlm, EngineOptions("m", path, **fields)).start()


async def refused(words: Any, path: Path = PATH, **fields: Any) -> str:
    ended: list[Any] = []
    async with System() as system:
        make = words.House(system, TrtLlm, EngineOptions("m", path, **fields))
        system.watch(system.start("refused", make._worker, restart="temporary"), ended.append)
        await words.until(lambda: ended, 20)
    error = ended[0].reason.error
    assert isinstance(error, UserError)
    return error.line()


async def test_tokens_come_once_each_and_the_options_reach_it(words: Any) -> None:
    async with System() as system:
        worker = await house(words, system, context_length=512, tensor_parallel_size=2)
        (llm,) = RecordedDouble.made
        assert llm.arguments == {
            "model": str(PATH),
            "max_seq_len": 512,
            "tensor_parallel_size": 2,
            "skip_tokenizer_init": True,
            "enable_iter_perf_stats": True,
            "kv_cache_config": {"event_buffer_max_size": 65536, "tokens_per_block": SIZE},
        }
        card = worker.published[0]
        assert (card.context_length, card.kv_cache_block_size, card.capabilities.kv_events) == (512, SIZE, True)
        answer = await worker.ask(words.generate([100, 101], max_tokens=5)).wait(5)
        assert (answer.ids, answer.finish) == ([102, 103, 104, 105, 106], "length")
        answer = await worker.ask(words.generate([100, 101], prior=[102, 103], max_tokens=5)).wait(5)
        assert (answer.ids, answer.finish) == ([104, 105, 106], "length")
        answer = await worker.ask(msgspec.structs.replace(words.generate([100]), eos_token_ids=(104, 9))).wait(5)
        assert (answer.ids, answer.finish) == ([101, 102, 103, 104], "stop")
        answer = await worker.ask(words.generate([1] * 512)).wait(5)
        assert (answer.error.error, answer.error.code) == ("BadRequest", "context_length_exceeded")
        assert llm.aborted == 0
        assert worker.statistics.engine.tokens == 12
    assert llm.closed


async def test_logprobs(words: Any) -> None:
    async with System() as system:
        worker = await house(words, system)
        wanted = words.generate([10], max_tokens=2)
        answer = await worker.ask(msgspec.structs.replace(wanted, sampling=Sampling(logprobs=2))).wait(5)
        found = [delta for delta in answer.deltas if isinstance(delta, Logprobs)]
        assert [delta.chosen for delta in found] == [(-0.5,), (-0.5,)]
        assert found[0].top == (((11, -0.5), (7, -1.5)),)


async def test_who_leaves_is_aborted_there(words: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RecordedDouble, "pace", 0.01)
    async with System() as system:
        worker = await house(words, system)
        (llm,) = RecordedDouble.made
        answers = [worker.ask(words.generate([5], max_tokens=1000)) for _ in range(16)]
        await words.until(lambda: all(answer.ids for answer in answers))
        for answer in answers:
            answer.stream.cancel()
        await words.until(lambda: llm.aborted == 16)
        assert worker.statistics.open == 0
        await words.until(lambda: worker.statistics.engine.running == 0)


@pytest.mark.parametrize(
    ("ids", "finish", "error", "says"),
    [
        ([998], "length", "BadRequest", "TensorRT-LLM refuses the request: the prompt is refused on purpose"),
        ([999], "length", "EngineFailed", "TensorRT-LLM failed: the request is too large"),
        ([5], "cancelled", "EngineFailed", "TensorRT-LLM ended the request (cancelled)"),
        ([5], "timeout", "TimedOut", "timeout"),
    ],
)
async def test_what_ends_a_request(
    words: Any, monkeypatch: pytest.MonkeyPatch, ids: list[int], finish: str, error: str, says: str
) -> None:
    monkeypatch.setattr(RecordedDouble, "finish", finish)
    async with System() as system:
        worker = await house(words, system)
        answer = await worker.ask(words.generate(ids, max_tokens=2)).wait(5)
        assert answer.error.error == error
        assert says in answer.error.message
        monkeypatch.setattr(RecordedDouble, "finish", "length")
        assert (await worker.ask(words.generate([5], max_tokens=2)).wait(5)).ids == [6, 7]


async def test_an_engine_that_is_gone_ends_the_worker(words: Any) -> None:
    async with System() as system:
        worker = await house(words, system)
        ended: list[Any] = []
        system.watch(worker.ref, ended.append)
        RecordedDouble.made[0].dead = True
        answer = await worker.ask(words.generate([5], max_tokens=2)).wait(5)
        assert (answer.error.error, answer.error.retry) == ("EngineFailed", True)
        await words.until(lambda: ended)
        assert isinstance(ended[0].reason, Crashed)
        assert "TensorRT-LLM has ended: the executor has been shut down" in str(ended[0].reason)


async def test_blocks_and_load_reach_subscribers(words: Any) -> None:
    async with System() as system:
        worker = await house(words, system)
        (llm,) = RecordedDouble.made
        feed = worker.subscribe()
        ids = list(range(12))
        names = block_hashes(tokens.pack(ids), SIZE)
        llm.events.put_nowait(created(0, 64))
        llm.events.put_nowait(stored(1, None, (2**63 + 5, ids[:4]), (6, ids[4:8]), (7, ids[8:10])))
        llm.events.put_nowait(removed(2, 6))

        def news() -> list[Any]:
            return [event for turn in feed.news for event in turn if isinstance(event, Stored | Removed)]

        await words.until(lambda: len(news()) >= 3)
        assert news()[0].blocks == (names[0],)
        assert news()[-1] == Removed((names[1],))
        assert worker.workers[-1]._engine.footprint(words.generate(ids)) == (tuple(names), 8)
        llm.steps.put_nowait(
            {
                "numActiveRequests": 3,
                "numQueuedRequests": 0,
                "kvCacheStats": {"usedNumBlocks": 9, "maxNumBlocks": 64, "reusedBlocks": 3, "missedBlocks": 1},
                "inflightBatchingStats": {"numPausedRequests": 2},
            }
        )
        await words.until(lambda: worker.statistics.engine.steps == 1)
        now = worker.statistics.engine
        assert (now.total_blocks, now.hit_rate, now.preemptions, now.cached_blocks) == (64, 0.75, 2, 1)
        feed.stream.cancel()


async def test_what_it_cannot_load_is_one_line_with_its_reason(words: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    line = await refused(words, arguments={"max_batch_sizee": 3})
    assert line.startswith(f"TensorRT-LLM cannot serve {PATH}: LLM args got invalid argument: max_batch_sizee")
    line = await refused(words, arguments={"kv_cache_config": {"tokens": 3}})
    assert "KvCacheConfig got invalid argument: tokens" in line
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    line = await refused(words, tensor_parallel_size=2, base_gpu_id=1)
    assert "--base-gpu-id 1: 2 GPUs from there on, and there are 2" in line


async def test_the_first_gpu_is_said_before_it_is_imported(words: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    async with System() as system:
        await house(words, system, tensor_parallel_size=2, base_gpu_id=1)
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "5,6"


async def test_a_compiled_engine_needs_the_original_models_files(words: Any, tmp_path: Path) -> None:
    (tmp_path / "rank0.engine").write_bytes(b"")
    (tmp_path / "config.json").write_text(json.dumps({"build_config": {"max_seq_len": 128}, "pretrained_config": {}}))
    assert await refused(words, tmp_path) == (
        f"model {tmp_path} is an engine that TensorRT-LLM has compiled: it has no tokenizer; "
        "give the folder of the original model with --model-config"
    )
    async with System() as system:
        worker = await house(words, system, tmp_path, config_path=PATH)
        assert worker.published[0].context_length == 128
        assert RecordedDouble.made[0].arguments["model"] == str(tmp_path)
