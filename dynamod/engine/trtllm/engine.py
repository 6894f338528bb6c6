"""The engine: `LLM` in this process, token ids in and out, its KV events, its statistics, its end."""

import asyncio
import contextlib
import importlib
import logging
import os
from collections.abc import AsyncIterator, Mapping
from typing import Any

from dynamod.message import tokens
from dynamod.message.discovery import Capabilities
from dynamod.message.errors import BadRequest, EngineFailed, RequestError, TimedOut
from dynamod.message.worker import Generate
from dynamod.preprocess.source import is_compiled
from dynamod.transport.base import Reply

from ..adapter.blocks import EngineBlocks
from ..adapter.engine import AdapterEngine
from ..adapter.output import one_line
from ..adapter.processes import EngineEnded
from ..own_transfer import digest
from .arguments import NAMES, compiled_length, llm_arguments
from .events import Events
from .request import FINISH, logprobs, sampling
from .transfer import CONTEXT, GENERATION, TrtLlmTransfer, plain

log = logging.getLogger("dynamod.engine")

BLOCK = 32
"""Tokens of a block, where the user gives no number: TensorRT-LLM's default."""
SILENCE = 5.0
"""Seconds for which TensorRT-LLM waits for an event, or for statistics, before it says that there are none."""
PAUSE = 0.05
"""Seconds until it is asked again: one that says so at once must not keep all others waiting."""
MOST = 2**20
"""Tokens of prompt and answer, where neither model nor user say how many."""
ANY_TOKEN = 2**31
"""Its size of the vocabulary cannot be had: token ids are only checked to be ids."""


class TrtLlm(AdapterEngine):
    """Serves token ids. Noise is TensorRT-LLM's: it is not keyed by position, so only greedy answers are continued
    exactly.
    """

    name = "trtllm"
    product = "TensorRT-LLM"
    capabilities = Capabilities(greedy_continuation=True, kv_events=True, logprobs=True, seed=True, min_tokens=True)
    _llm: Any = None

    async def load_engine(self) -> None:
        """Import TensorRT-LLM, load, read its events."""
        values, path = llm_arguments(self.options), self.options.path
        assert path is not None
        compiled = is_compiled(path)
        if (chosen := NAMES.devices(os.environ, self.options.base_gpu_id, values)) is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = chosen
        make, self._params, self._refused = await self.processes.stage(
            "imports TensorRT-LLM", lambda: _classes(compiled)
        )
        self._llm = llm = await self.processes.stage("loads the model", lambda: make(**values))
        lengths = [values.get("max_seq_len"), self._card.context_length, compiled_length(path) if compiled else 0]
        self.room = min([int(length) for length in lengths if length], default=MOST)
        self.vocabulary = ANY_TOKEN
        config = values["kv_cache_config"]
        self.block_size = int(config.get("tokens_per_block") or BLOCK)
        if self.options.disaggregation_mode != "aggregated":
            module = importlib.import_module("tensorrt_llm.disaggregated_params")
            self._transfer_params = module.DisaggregatedParams
            version = importlib.import_module("tensorrt_llm").__version__
            kinds = values.get("dtype"), config.get("dtype"), self.block_size
            self.own_transfer = TrtLlmTransfer(self, digest("trtllm", version, self._card.mdc_sum, *kinds))
        if config["event_buffer_max_size"]:
            self.blocks = EngineBlocks(self.block_size, self.publish)
            self.spawn(self._read_events(llm, self.blocks), "KV events")
        if values["enable_iter_perf_stats"]:
            self.spawn(self._read_statistics(llm), "statistics")

    async def generate(self, request: Generate, reply: Reply, limit: int) -> None:
        """Answer a request; when the task is cancelled TensorRT-LLM aborts it."""
        params = request.handoff.params if request.handoff is not None else None
        if params and self.own_transfer is not None:
            try:
                wanted = self._transfer_params(request_type=GENERATION, **params)
                await self._answer_with(request, reply, limit, disaggregated_params=wanted)
                self.own_transfer.transfers += 1
                return
            except RequestError as error:
                if reply.sent:
                    raise
                self.own_transfer.failed["failed"] += 1
                log.warning("request %s: the prompt is computed here: %s", request.request_id, error)
        await self._answer_with(request, reply, limit)

    async def computed(self, request: Generate) -> dict[str, Any]:
        """Compute a prompt for another engine: what TensorRT-LLM says to that. Raises RequestError, EngineEnded."""
        wanted = self._transfer_params(request_type=CONTEXT)
        found: Any = None
        with self.open.one():
            limit = tokens.count(request.prior_output) + 1
            async with self._result(request, limit, disaggregated_params=wanted) as result:
                async for output in result:
                    found = output.outputs[0].disaggregated_params or found
        if found is None:
            raise EngineFailed("TensorRT-LLM did not say where the blocks of the prompt are")
        return plain(found)

    async def _answer_with(self, request: Generate, reply: Reply, limit: int, **more: Any) -> None:
        async with self._result(request, limit, **more) as result:
            await self._stream(result, request.sampling.logprobs, reply)

    @contextlib.asynccontextmanager
    async def _result(self, request: Generate, limit: int, **more: Any) -> AsyncIterator[Any]:
        """A request in TensorRT-LLM's hands until the end of the block; what it raises as RequestError, EngineEnded."""
        ids, wanted = self.prompt(request), sampling(request, limit)
        try:
            result = self._llm.generate_async(ids, sampling_params=self._params(**wanted), streaming=True, **more)
        except self._refused as error:
            raise BadRequest(f"TensorRT-LLM refuses the request: {one_line(error)}") from None
        try:
            yield result
        except RequestError:
            raise
        except self._refused as error:
            raise EngineFailed(f"TensorRT-LLM failed: {one_line(error)}") from None
        except RuntimeError as error:  # what its executor raises when its processes have ended
            raise EngineEnded(f"TensorRT-LLM has ended: {one_line(error)}") from None
        finally:
            if not result.finished:
                result.abort()

    async def _stream(self, result: Any, top: int | None, reply: Reply) -> None:
        """Its ids are those of the whole answer so far, each time."""
        sent = 0
        async for output in result:
            [one] = output.outputs
            new, reason = one.token_ids[sent:], one.finish_reason
            if reason is not None and reason not in FINISH:
                raise _ended_by(reason)
            if not new and reason is None:
                continue
            if top is not None and one.logprobs and new:
                reply.logprobs(*logprobs(new, one.logprobs[sent:], top))
            if not sent:
                self.prefill_completed(reply)
            self.send(reply, new, FINISH.get(reason or ""))
            sent += len(new)

    async def _read_events(self, llm: Any, blocks: EngineBlocks) -> None:
        found = Events()
        while True:
            async for event in llm.get_kv_cache_events_async(timeout=SILENCE):
                for rank, one in found.read(event, blocks.block_size):
                    blocks.apply(rank, one)
                self.counts.total_blocks = max(self.counts.total_blocks, found.total_blocks)
            await asyncio.sleep(PAUSE)

    async def _read_statistics(self, llm: Any) -> None:
        while True:
            async for step in llm.get_stats_async(timeout=SILENCE):
                self._take(step)
            await asyncio.sleep(PAUSE)

    def _take(self, step: Mapping[str, Any]) -> None:
        """The statistics of a step."""
        cache, batch = step.get("kvCacheStats") or {}, step.get("inflightBatchingStats") or {}
        self.counts.steps += 1
        self.counts.queued = int(step.get("numQueuedRequests") or 0)
        self.counts.preemptions += int(batch.get("numPausedRequests") or 0)
        self.counts.used_blocks = int(cache.get("usedNumBlocks") or 0)
        self.counts.total_blocks = int(cache.get("maxNumBlocks") or self.counts.total_blocks)
        self.counts.hits = int(cache.get("reusedBlocks") or 0)
        self.counts.queried = self.counts.hits + int(cache.get("missedBlocks") or 0)

    async def close(self) -> None:
        """End TensorRT-LLM's processes."""
        llm, self._llm = self._llm, None
        await self.processes.shut_down(None if llm is None else llm.shutdown)


def _classes(compiled: bool) -> tuple[Any, Any, tuple[type[Exception], ...]]:
    """`LLM`, `SamplingParams`, and what is raised for one request.

    Compiled engines have an `LLM` of their own in versions whose default is PyTorch.
    """
    module = importlib.import_module("tensorrt_llm")
    llm = module.LLM
    if compiled:
        with contextlib.suppress(ModuleNotFoundError):
            llm = importlib.import_module("tensorrt_llm._tensorrt_engine").LLM
    with contextlib.suppress(ImportError, AttributeError):
        return llm, module.SamplingParams, (importlib.import_module("tensorrt_llm.executor").RequestError, ValueError)
    return llm, module.SamplingParams, (ValueError,)


def _ended_by(reason: str) -> Exception:
    if reason == "timeout":
        return TimedOut("TensorRT-LLM ended the request: timeout")
    return EngineFailed(f"TensorRT-LLM ended the request ({reason})")
