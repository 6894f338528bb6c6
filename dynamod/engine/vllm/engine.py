"""The engine: `AsyncLLM` in this process, token ids in and out, its KV events, its statistics, its end."""

import asyncio
import dataclasses
import importlib
import importlib.util
import logging
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from dynamod.message import tokens
from dynamod.message.discovery import Capabilities, ModelCard
from dynamod.message.errors import BadRequest, EngineFailed, Overloaded, RequestError, UserError
from dynamod.message.kv_events import ForwardPass
from dynamod.message.worker import Embed, Generate
from dynamod.transport.base import Reply

from ..adapter.engine import SHORT, AdapterEngine
from ..adapter.forms import FORMS
from ..adapter.output import one_line
from ..adapter.ports import ReservedPorts
from ..adapter.processes import CLOSE
from ..adapter.tiers import HostTier, split
from ..adapters import AdapterManager
from ..own_transfer import digest
from .arguments import NAMES, config_paths, defaults, leader, over_nodes
from .lora import VllmAdapters, with_lora
from .names import load_names
from .request import logprobs, prompt_logprobs, sampling
from .statistics import Statistics
from .tiers import with_tier
from .transfer import CONNECTOR, LEASE, VllmTransfer, with_connector

log = logging.getLogger("dynamod.engine")

POLL_INTERVAL = 0.25
"""Seconds between looks whether vLLM's engine process lives."""
KV_BYTES = 4 << 30
"""For the KV cache on a CPU, at most, and at most a quarter of the memory that is free."""
PREFILLED = 1
"""Tokens of an answer that a prompt for another engine is computed with: vLLM needs one, and it is dropped."""


class Vllm(AdapterEngine):
    """Serves token ids. Noise is vLLM's: it is not keyed by position, so only greedy answers are continued exactly."""

    name = "vllm"
    product = "vLLM"
    capabilities = Capabilities(
        greedy_continuation=True,
        kv_events=True,
        logprobs=True,
        seed=True,
        min_tokens=True,
        logit_bias=True,
        prompt_logprobs=True,
        grammars=True,
        forms=FORMS,
    )
    _llm: Any = None
    _workers: Any = None  # of a further node
    _loras: VllmAdapters | None = None
    adapters: AdapterManager | None = None

    def environment(self) -> dict[str, str]:
        """A fork would take our threads' locks and our sockets along. Others compute on the cores of a CPU too."""
        wanted = {
            "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
            "VLLM_LOGGING_LEVEL": "INFO" if log.isEnabledFor(logging.DEBUG) else "WARNING",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        }
        if self.options.sockets is not None and len(os.fsencode(self.options.sockets)) < SHORT:
            wanted["VLLM_RPC_BASE_PATH"] = str(self.options.sockets)
        return wanted

    async def load_engine(self) -> None:
        """Import vLLM, load, listen to its events."""
        await self.processes.stage("imports vLLM", lambda: importlib.import_module("vllm.v1.engine.async_llm"))
        config = await self.processes.stage("reads the configuration", self._config)
        if self.options.node_rank:  # the leader has the scheduler; this one only computes
            self._workers = await self.processes.stage("loads the model", lambda: _follow(config))
            self.block_size = config.cache_config.block_size
            self.spawn(self._watch(lambda: self._workers.is_failed), "watch")
            return
        transfer = config.kv_transfer_config
        if self.options.disaggregation_mode != "aggregated" and transfer.kv_connector == CONNECTOR:
            lease = transfer.get_from_extra_config("kv_lease_duration", LEASE)
            self.own_transfer = VllmTransfer(self, _layout(self._card, config), float(lease))
        self._llm = llm = await self.processes.stage("loads the model", lambda: self._load(config))
        cache, ranks = config.cache_config, config.parallel_config.data_parallel_size
        self.block_size, self.room = cache.block_size, config.model_config.max_model_len
        self._statistics.blocks, self._statistics.count = cache.num_gpu_blocks or 0, ranks
        self.counts.total_blocks = self._statistics.blocks * ranks
        self.vocabulary = config.model_config.get_vocab_size()
        self._vllm = load_names()
        if config.lora_config is not None:
            await self._begin_adapters()
        events = config.kv_events_config
        if events is not None and events.enable_kv_cache_events and cache.enable_prefix_caching:
            self.serve_blocks(events.endpoint, events.replay_endpoint, ranks)
        if config.model_config.skip_tokenizer_init:  # vLLM compiles forms by its tokenizer
            self.can = msgspec.structs.replace(self.can, grammars=False, forms=())
        if config.model_config.runner_type == "pooling":
            await self._prepare_vectors(config.model_config)
        self.spawn(self._watch(lambda: llm.errored), "watch")

    async def _begin_adapters(self) -> None:
        """It was started with adapters, or with `enable_lora`. Raises UserError."""
        from vllm.lora.request import LoRARequest

        self._loras = VllmAdapters(self._llm, LoRARequest, lambda: self._card.adapters)
        self.change_card(adapters=await self._loras.begin(self.options.lora))
        self.adapters = AdapterManager(self, self._loras)

    async def _prepare_vectors(self, model: Any) -> None:
        """It was started with `runner: pooling`. Raises UserError for a model that classifies or scores pairs."""
        from vllm import PoolingParams

        tasks = await self._llm.get_supported_tasks()
        if "embed" not in tasks:
            problem = f"the model makes no vectors of texts in vLLM; it can {', '.join(sorted(tasks))}"
            raise UserError(problem, "take another model, or leave out the runner")
        self._pooling_params = PoolingParams
        self.embedding_length = int(model.get_hidden_size())
        self.can = Capabilities(matryoshka=bool(model.is_matryoshka))
        self.own_transfer = self.adapters = None  # vectors have no prompts that go elsewhere, and the model's weights

    # Starting, in threads.

    def _config(self) -> Any:
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.platforms import current_platform
        from vllm.utils.argparse_utils import FlexibleArgumentParser

        known = {field.name for field in dataclasses.fields(AsyncEngineArgs)}
        tiers, arguments = split(NAMES, self.options.arguments)
        options = dataclasses.replace(self.options, arguments=arguments)
        argv = arguments.get("argv") or ()
        words = NAMES.parsed(AsyncEngineArgs.add_cli_args(FlexibleArgumentParser()), argv) if argv else {}
        values = {**config_paths(self.options), **NAMES.merged(options, known, words)}
        values = leader(values, self.options.leader_addr)
        cpu, base = bool(current_platform.is_cpu()), self.options.base_gpu_id
        values = over_nodes(values, 0 if cpu else current_platform.device_count() - base)
        if (chosen := NAMES.devices(os.environ, base, values)) is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = chosen
        devices = None if cpu else current_platform.device_count()
        ray = importlib.util.find_spec("ray") is not None
        kv_bytes = _kv_bytes() if cpu and not os.environ.get("VLLM_CPU_KVCACHE_SPACE") else 0
        sockets = self.socket_prefix()
        values = defaults(values, sockets=sockets, kv_bytes=kv_bytes, cpu=cpu, devices=devices, ray=ray)
        self.host_tier = HostTier() if tiers.tiered else None
        values = with_lora(values, self.options.lora, cpu=cpu)
        values = with_tier(values, tiers, options.disaggregation_mode, cpu=cpu)
        values = with_connector(values, self.options.disaggregation_mode, cpu=cpu)
        if cpu and values["enforce_eager"]:
            os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
        return AsyncEngineArgs(**values).create_engine_config(headless=bool(self.options.node_rank))

    def _load(self, config: Any) -> Any:
        from vllm.v1.engine.async_llm import AsyncLLM

        self._statistics = Statistics(self)
        host, ranks = self.options.transfer_host, config.parallel_config.data_parallel_size
        ports = _side_channel(host, ranks) if self.own_transfer else None
        llm = AsyncLLM.from_vllm_config(config, stat_loggers=[self._statistics.of_rank], disable_log_stats=True)
        if ports is not None:
            ports.close()
        manager = llm.logger_manager
        if manager is not None:  # it adds a logger for Prometheus, which costs time per step and is not read
            manager.stat_loggers[:] = manager.stat_loggers[:1]
        return llm

    # Serving.

    async def generate(self, request: Generate, reply: Reply, limit: int) -> None:
        """Answer a request; when the task is cancelled vLLM aborts it."""
        transfer = self.own_transfer
        if request.handoff is not None and isinstance(transfer, VllmTransfer):
            try:
                await self._answer_with(request.handoff.params, request, reply, limit, transfer.patience)
            except TimeoutError:
                if reply.sent:
                    raise
                transfer.failed["stalled"] += 1
                log.warning("request %s: its blocks have not come, and the prompt is computed here", request.request_id)
            else:
                return
        await self._answer_with(None, request, reply, limit)

    async def _answer_with(
        self,
        params: Mapping[str, Any] | None,
        request: Generate,
        reply: Reply,
        limit: int,
        patience: float | None = None,
    ) -> None:
        """Answer with the blocks of a transfer. Raises TimeoutError when they could be those of others by now."""
        top, scores, first = request.sampling.logprobs, request.sampling.prompt_logprobs, True
        async with asyncio.timeout(patience) as clock:
            with self._refusals():
                async for output in self._outputs(request, sampling(request, limit), params):
                    [one] = output.outputs
                    if one.finish_reason in ("abort", "error"):
                        reply.failed("EngineFailed", f"vLLM ended the request ({one.finish_reason})", retry=first)
                        return
                    if first:
                        first = False
                        self.begun(request, reply, output.num_cached_tokens)
                        if scores is not None and output.prompt_logprobs:
                            ids = tokens.unpack(request.token_ids)
                            reply.prompt_logprobs(*prompt_logprobs(ids, output.prompt_logprobs, scores))
                        clock.reschedule(None)
                    if request.stops.max_tokens == 0:  # only the prompt was wanted
                        self.send(reply, (), "length")
                        return
                    if top is not None and one.logprobs:
                        reply.logprobs(*logprobs(one.token_ids, one.logprobs, top))
                    self.send(reply, one.token_ids, one.finish_reason)

    async def vectors_of(self, request: Embed, inputs: Sequence[list[int]]) -> Sequence[Sequence[float]]:
        """Each text is a request of its own to vLLM, which batches them. When one fails the others end."""
        failures: list[Exception] = []
        working: set[asyncio.Task[Any] | None] = set()

        async def one(name: str, ids: list[int]) -> Sequence[float]:
            working.add(task := asyncio.current_task())
            try:
                return await self._vector(name, ids, request.trace) if not failures else ()
            except Exception as error:
                failures.append(error)
                for other in working - {task, None}:
                    other.cancel()  # type: ignore[union-attr]
                return ()
            finally:
                working.discard(task)

        names = [f"{request.request_id}.{place}" for place in range(len(inputs))]
        found = await asyncio.gather(*map(one, names, inputs), return_exceptions=True)
        for vector in (*failures, *found):
            if isinstance(vector, BaseException):
                raise vector
        return [vector for vector in found if not isinstance(vector, BaseException)]

    async def _vector(self, name: str, ids: list[int], trace: Mapping[str, str]) -> Sequence[float]:
        found: Sequence[float] = ()
        prompt, pooling = self._vllm.prompt(ids), self._pooling_params(task="embed")
        traced = {"trace_headers": trace} if trace else {}
        with self._refusals():
            async for output in self._llm.encode(prompt, pooling, name, **traced):
                found = output.outputs.data.tolist()
        return found

    async def computed(self, request: Generate, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Compute a prompt for another engine: what vLLM says to that. Raises RequestError, EngineEnded."""
        request = msgspec.structs.replace(request, grammar=None)  # the token is dropped
        wanted = {**sampling(request, PREFILLED + tokens.count(request.prior_output)), "logprobs": None}
        params: Mapping[str, Any] | None = None
        with self.open.one(), self._refusals():
            async for output in self._outputs(request, wanted, asked):
                params = output.kv_transfer_params or params
        if not params:
            raise EngineFailed("vLLM did not say where the blocks of the prompt are")
        return dict(params)

    def _outputs(
        self, request: Generate, wanted: Mapping[str, Any], params: Mapping[str, Any] | None
    ) -> AsyncIterator[Any]:
        """Outputs of vLLM. `params`: of a transfer."""
        extra: dict[str, Any] = {"extra_args": {"kv_transfer_params": dict(params)}} if params else {}
        if (form := wanted.get("structured_outputs")) is not None:
            extra["structured_outputs"] = self._vllm.form(**form)
        found = self._vllm.params(**{**wanted, **extra}, output_kind=self._vllm.delta)
        prompt, lora = (
            self._vllm.prompt(self.prompt(request)),
            self._loras.of(request) if self._loras is not None else {},
        )
        traced = {"trace_headers": request.trace} if request.trace else {}
        outputs: AsyncIterator[Any] = self._llm.generate(prompt, found, request.request_id, **lora, **traced)
        return outputs

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        """What vLLM raises for one request, as RequestError or EngineEnded."""
        try:
            yield
        except RequestError:
            raise
        except self._vllm.dead:
            raise self.processes.ended() from None
        except self._vllm.full as error:
            raise Overloaded(str(error)) from None
        except self._vllm.refused as error:
            raise BadRequest(f"vLLM refuses the request: {one_line(error)}") from None

    def forward_pass(self, rank: int) -> ForwardPass | None:
        """By vLLM's statistics."""
        return self._statistics.forward_pass(rank) if self._llm is not None else None

    async def _watch(self, failed: Callable[[], bool]) -> None:
        """An idle engine that ends is not seen by any request."""
        while not failed():  # noqa: ASYNC110 - vLLM has no event for it
            await asyncio.sleep(POLL_INTERVAL)
        raise self.processes.ended()

    async def close(self) -> None:
        """End vLLM's processes."""
        llm, workers, self._llm = self._llm, self._workers, None
        if workers is not None:
            await self.processes.shut_down(workers.shutdown)
        else:
            await self.processes.shut_down(None if llm is None else lambda: llm.shutdown(timeout=CLOSE / 2))


def _kv_bytes() -> int:
    return min(KV_BYTES, os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4)


def _side_channel(host: str, ranks: int) -> ReservedPorts | None:
    """Where other engines ask this one about its memory; a rank adds its number to the port. `host`: by default."""
    os.environ.setdefault("VLLM_NIXL_SIDE_CHANNEL_HOST", host)
    if "VLLM_NIXL_SIDE_CHANNEL_PORT" in os.environ:
        return None
    ports = ReservedPorts(os.environ["VLLM_NIXL_SIDE_CHANNEL_HOST"], ranks)
    os.environ["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(ports.first)
    return ports


def _layout(card: ModelCard, config: Any) -> str:
    """Digest of what must agree for the bytes of a block to mean the same."""
    import vllm

    model, cache = config.model_config, config.cache_config
    return digest("vllm", vllm.__version__, card.mdc_sum, model.dtype, cache.cache_dtype, cache.block_size)


def _follow(config: Any) -> Any:
    """The part of a node that is not the leader, as `vllm serve --headless` has it."""
    from vllm.v1.executor.multiproc_executor import MultiprocExecutor

    workers = MultiprocExecutor(config, monitor_workers=False)
    workers.start_worker_monitor()
    return workers
