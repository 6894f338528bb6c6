"""A recorded double of TensorRT-LLM's LLM API: no TensorRT-LLM runs here.

Names, defaults and forms are those that were read in its sources: the keywords of `LLM` and `SamplingParams`, answers
whose ids are those of the whole answer so far, KV events as dicts, streams of events that end after a silence. What it
answers is made up: the id behind an id is one more.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, fields
from types import ModuleType, SimpleNamespace
from typing import Any

LLM_ARGUMENTS = (
    *("model", "tokenizer", "tokenizer_mode", "skip_tokenizer_init", "trust_remote_code", "tensor_parallel_size"),
    *("dtype", "revision", "tokenizer_revision", "kv_cache_config", "cache_transceiver_config"),
    *("enable_iter_perf_stats", "enable_iter_req_stats", "max_batch_size", "max_num_tokens", "max_seq_len"),
    "stream_interval",
)
KV_CACHE_CONFIG = (
    *("enable_block_reuse", "max_tokens", "max_attention_window", "sink_token_length", "free_gpu_memory_fraction"),
    *(
        "host_cache_size",
        "onboard_blocks",
        "event_buffer_max_size",
        "enable_partial_reuse",
        "tokens_per_block",
        "dtype",
    ),
)


class RequestError(RuntimeError):
    """Raised for one request."""


@dataclass
class SamplingParams:
    n: int = 1
    max_tokens: int = 32
    min_tokens: int | None = None
    end_id: int | None = None
    pad_id: int | None = None
    seed: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    stop: Any = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    bad_token_ids: Any = None
    ignore_eos: bool = False
    detokenize: bool = True
    logprobs: int | None = None


KNOWN_PARAMETERS = {one.name for one in fields(SamplingParams)}


@dataclass
class CompletionOutput:
    index: int = 0
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[int, Any]] | None = None
    finish_reason: str | None = None
    disaggregated_params: "DisaggregatedParams | None" = None


@dataclass(kw_only=True, slots=True)
class DisaggregatedParams:
    request_type: str | None = None
    first_gen_tokens: list[int] | None = None
    first_gen_log_probs: list[Any] | None = None
    ctx_request_id: int | None = None
    opaque_state: bytes | None = None
    draft_tokens: list[int] | None = None


class RequestOutput:
    """Yields itself per step."""

    def __init__(
        self, llm: "RecordedDouble", prompt: list[int], params: SamplingParams, parts: DisaggregatedParams | None
    ) -> None:
        self.prompt, self.params, self._llm, self._parts = prompt, params, llm, parts
        self.outputs = [CompletionOutput(logprobs=[] if params.logprobs is not None else None)]
        self.finished = False

    def abort(self) -> None:
        self._llm.aborted += 1

    def __aiter__(self) -> "RequestOutput":
        return self

    async def __anext__(self) -> "RequestOutput":
        if self.finished:
            raise StopAsyncIteration
        await asyncio.sleep(self._llm.pace)
        if self._llm.dead:
            raise RuntimeError("the executor has been shut down")
        if self.prompt[0] == 999:
            raise RequestError("the request is too large")
        if self._parts is not None and self._parts.request_type == "generation_only":
            assert isinstance(self._parts.first_gen_tokens, list)
            if self._parts.opaque_state != bytes(self.prompt):
                raise RequestError("the KV cache transfer has failed")
            self._llm.read += not self.outputs[0].token_ids
        [one], params = self.outputs, self.params
        new = (one.token_ids or self.prompt)[-1] + 1
        one.token_ids = [*one.token_ids, new]
        if one.logprobs is not None:
            one.logprobs.append({new: SimpleNamespace(logprob=-0.5, rank=1), 7: SimpleNamespace(logprob=-1.5, rank=2)})
        ends = {*(params.stop_token_ids or ()), *(() if params.ignore_eos else (params.end_id,))}
        if new in ends and len(one.token_ids) > (params.min_tokens or 0):
            one.finish_reason = "stop"
        elif len(one.token_ids) >= params.max_tokens:
            one.finish_reason = self._llm.finish
        self.finished = one.finish_reason is not None
        if self._parts is not None and self._parts.request_type == "context_only":
            llm = self._llm
            one.disaggregated_params = DisaggregatedParams(
                request_type="context_only",
                first_gen_tokens=[new],
                first_gen_log_probs=[SimpleNamespace()],
                ctx_request_id=RecordedDouble.made.index(llm),
                opaque_state=bytes(self.prompt),
            )
        return self


class RecordedDouble:
    """`tensorrt_llm.LLM`. `events`, `steps`: what it reports, in order."""

    made: "list[RecordedDouble]" = []  # noqa: RUF012
    pace = 0.0
    finish = "length"

    def __init__(self, model: str, **arguments: Any) -> None:
        for name in arguments:
            if name not in LLM_ARGUMENTS:
                raise ValueError(f"LLM args got invalid argument: {name}")
        for name in arguments.get("kv_cache_config", {}):
            if name not in KV_CACHE_CONFIG:
                raise ValueError(f"KvCacheConfig got invalid argument: {name}")
        self.arguments = {"model": model, **arguments}
        self.events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.steps: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.aborted = self.read = 0
        self.dead = self.closed = False
        RecordedDouble.made.append(self)

    def generate_async(
        self,
        inputs: list[int],
        sampling_params: SamplingParams,
        streaming: bool = False,
        disaggregated_params: DisaggregatedParams | None = None,
    ) -> RequestOutput:
        assert streaming
        assert not sampling_params.detokenize
        if sampling_params.end_id is None:
            raise ValueError("end_id must be set when the tokenizer is not initialised")
        if inputs[0] == 998:
            raise ValueError("the prompt is refused on purpose")
        assert disaggregated_params is None or self.arguments["cache_transceiver_config"]
        return RequestOutput(self, list(inputs), sampling_params, disaggregated_params)

    def get_kv_cache_events_async(self, timeout: float | None = 2) -> AsyncIterator[dict[str, Any]]:
        return self._until_silent(self.events, timeout)

    def get_stats_async(self, timeout: float | None = 2) -> AsyncIterator[dict[str, Any]]:
        return self._until_silent(self.steps, timeout)

    async def _until_silent(self, queue: "asyncio.Queue[dict[str, Any]]", timeout: float | None) -> Any:
        while True:
            try:
                async with asyncio.timeout(timeout):
                    found = await queue.get()
            except TimeoutError:
                return
            yield found

    def shutdown(self) -> None:
        self.closed = True


def install(monkeypatch: Any) -> None:
    """Let `import tensorrt_llm` find this."""
    module, executor = ModuleType("tensorrt_llm"), ModuleType("tensorrt_llm.executor")
    module.LLM, module.SamplingParams = RecordedDouble, SamplingParams  # type: ignore[attr-defined]
    parts = ModuleType("tensorrt_llm.disaggregated_params")
    parts.DisaggregatedParams, module.__version__ = DisaggregatedParams, "1.2.1"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tensorrt_llm.disaggregated_params", parts)
    executor.RequestError = RequestError  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tensorrt_llm", module)
    monkeypatch.setitem(sys.modules, "tensorrt_llm.executor", executor)
    monkeypatch.setattr(RecordedDouble, "made", [])


def event(number: int, data: dict[str, Any], **more: Any) -> dict[str, Any]:
    """An event as it was recorded."""
    return {"event_id": number, "data": data, "window_size": 4096, **more}


def created(number: int, blocks: int) -> dict[str, Any]:
    return event(number, {"type": "created", "num_blocks_per_cache_level": [blocks, 0]})


def stored(number: int, parent: int | None, *blocks: tuple[int, list[int]], **more: Any) -> dict[str, Any]:
    found = [
        {
            "type": "stored_block",
            "block_hash": name,
            "tokens": [{"type": "unique_token", "token_id": one, "token_extra_id": 0} for one in ids],
            "cache_level": 0,
            "priority": 35,
        }
        for name, ids in blocks
    ]
    return event(number, {"type": "stored", "parent_hash": parent, "blocks": found}, **more)


def removed(number: int, *names: int, **more: Any) -> dict[str, Any]:
    return event(number, {"type": "removed", "block_hashes": [*names]}, **more)
