"""The engine: SGLang's `Engine` in this process, token ids in and out, its KV events, its load, its end."""

import asyncio
import dataclasses
import importlib
import json
import logging
import os
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from dynamod.message.discovery import Capabilities
from dynamod.message.errors import BadRequest, EngineFailed
from dynamod.message.kv_events import ForwardPass
from dynamod.message.worker import HANDOFF_FAILED, Embed, Generate
from dynamod.transport.base import Reply

from ..adapter.engine import AdapterEngine
from ..adapter.forms import FORMS
from ..adapter.ports import ReservedPorts
from ..adapter.tiers import split
from ..base import answer_limit
from ..own_transfer import digest
from .arguments import NAMES, defaults
from .request import logprobs, sampling
from .scheduler import compiles_forms, run_scheduler_process
from .steps import StepReader
from .tiers import with_tier
from .transfer import SgLangTransfer, with_mode

log = logging.getLogger("dynamod.engine")

LOAD_INTERVAL = 0.25
"""Seconds between two looks at the schedulers' load, while requests are open."""
FIRST_ANSWER = 900
"""Seconds that the engine may take for an answer before the worker serves all the same."""
FIRST_PROMPT = 8
"""Tokens of the prompt of that answer."""


class SgLang(AdapterEngine):
    """Serves token ids. With `enable_deterministic_inference` noise is keyed by position, and seeded answers continue
    exactly; else only greedy ones.
    """

    name = "sglang"
    product = "SGLang"
    capabilities = Capabilities(greedy_continuation=True, kv_events=True, logprobs=True, logit_bias=True)
    _engine: Any = None
    _ports: ReservedPorts | None = None
    _steps: StepReader | None = None

    async def load_engine(self) -> None:
        """Import SGLang, load, read its answers."""
        self._dead = asyncio.Event()
        # Its processes send SIGQUIT when they fail, which would end this one before the reason is known.
        asyncio.get_running_loop().add_signal_handler(signal.SIGQUIT, self._dead.set)
        await self.processes.stage("imports SGLang", self._import)
        values = await self.processes.stage("reads the configuration", self._values)
        self._engine = engine = await self.processes.stage("loads the model", lambda: self._made(values))
        if self._ports is not None:
            self._ports.close()
        if self.options.node_rank:  # the leader has the tokenizer's part; this one only computes
            self.block_size = int(values["page_size"])
            self.spawn(self._watch(), "watch")
            return
        manager = self._manager = engine.tokenizer_manager
        # What `auto_create_handle_loop` does, except its signal handlers: SIGTERM is the worker's.
        manager.event_loop = asyncio.get_running_loop()
        self.spawn(manager.handle_loop(), "answers")
        self._release_load_file(manager.load_snapshot_reader)
        info = engine._scheduler_init_result.scheduler_infos[0]
        arguments, ranks = engine.server_args, int(values.get("dp_size") or 1)
        self._incremental = bool(arguments.incremental_streaming_output)
        self.room = min(manager.context_len, int(info["max_total_num_tokens"]))
        self.block_size, self.vocabulary = int(values["page_size"]), int(manager.model_config.vocab_size)
        self.counts.total_blocks = int(info["max_total_num_tokens"]) // self.block_size * ranks
        if values.get("enable_deterministic_inference"):
            self.can = msgspec.structs.replace(self.can, exact_continuation=True, greedy_continuation=False, seed=True)
        if compiles_forms(arguments):
            self.can = msgspec.structs.replace(self.can, grammars=True, forms=FORMS)
        if (mode := self.options.disaggregation_mode) != "aggregated":
            self.can = msgspec.structs.replace(self.can, needs_prefill=mode == "decode")
            self.own_transfer = self._transfer(values)
        if values.get("is_embedding"):
            self.embedding_length, self.can = int(manager.model_config.hidden_size), Capabilities()
            self.own_transfer = None  # vectors have no prompts that go elsewhere
        events = json.loads(values["kv_events_config"] or "{}")
        if events.get("publisher") == "zmq" and not arguments.disable_radix_cache:
            self.serve_blocks(events.get("endpoint"), events.get("replay_endpoint"), ranks)
        if values.get("enable_forward_pass_metrics"):
            self._steps = StepReader(self, str(values["forward_pass_metrics_ipc_name"]), ranks)
            self.spawn(self._steps.run(), "steps")
        if self.own_transfer is None and not values.get("is_embedding"):
            loop = asyncio.get_running_loop()
            await self.processes.stage("computes a first answer", lambda: self._warm(loop))
        self.spawn(self._watch(), "watch")
        self.spawn(self._look(), "load")

    # Starting, in threads.

    def _import(self) -> None:
        import torch

        self._cpu = not torch.cuda.is_available()
        if self._cpu:
            os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")  # read when it is imported
        os.environ.setdefault("SGLANG_BLOCK_NONZERO_RANK_CHILDREN", "0")  # a further node says that it has loaded
        module: Any = importlib.import_module("sglang.srt.entrypoints.engine")
        module.configure_logger = lambda *_: None  # it would replace this process's logging, not only its own

    def _values(self) -> dict[str, Any]:
        import argparse

        from sglang.srt.arg_groups.arg_utils import record_fields
        from sglang.srt.server_args import ServerArgs

        known = {field.name for field in record_fields(ServerArgs)}
        tiers, arguments = split(NAMES, self.options.arguments)
        argv, words = arguments.get("argv") or (), {}
        if argv:
            parser = argparse.ArgumentParser(prog="sglang", allow_abbrev=False)
            ServerArgs.add_cli_args(parser)
            words = NAMES.parsed(parser, argv)
        values = NAMES.merged(dataclasses.replace(self.options, arguments=arguments), known, words)
        values.setdefault("log_level", "info" if log.isEnabledFor(logging.DEBUG) else "warning")
        self._cpu = cpu = self._cpu and values.get("device") in (None, "cpu")
        mode, host = self.options.disaggregation_mode, self.options.transfer_host
        if mode == "prefill" and "disaggregation_bootstrap_port" not in values:
            self._ports = ReservedPorts(str(values.get("host") or host))
        values = with_tier(values, tiers, mode, cpu=cpu)
        values = with_mode(values, mode, host, self._ports.first if self._ports is not None else 0, cpu=cpu)
        context = int(values.get("context_length") or self._card.context_length)
        return defaults(values, sockets=self.socket_prefix(), context=context, cpu=cpu)

    def _made(self, values: dict[str, Any]) -> Any:
        from sglang.srt.entrypoints.engine import Engine

        Engine.run_scheduler_process_func = staticmethod(run_scheduler_process)
        return Engine(**values)

    def _warm(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have the engine compute an answer for no client. Raises EngineEnded.

        SGLang compiles kernels for a GPU with the first request. The first request after an installation took 44 s.
        """
        answer = asyncio.run_coroutine_threadsafe(self._first_answer(), loop)
        for _ in range(FIRST_ANSWER):
            try:
                return answer.result(1.0)
            except TimeoutError:
                if self._dead.is_set():
                    raise self.processes.ended() from None
        answer.cancel()
        log.warning("SGLang has computed no answer within %d s; the first request waits for that", FIRST_ANSWER)
        return None

    async def _first_answer(self) -> None:
        wanted = {"max_new_tokens": 2, "temperature": 0.0, "ignore_eos": True}
        made = await self._engine.async_generate(input_ids=[0] * FIRST_PROMPT, sampling_params=wanted, stream=True)
        async for _ in made:
            pass

    def _transfer(self, values: Mapping[str, Any]) -> SgLangTransfer:
        import sglang

        config, kind = self._manager.model_config, values.get("kv_cache_dtype")
        layout = digest("sglang", sglang.__version__, self._card.mdc_sum, config.dtype, kind, self.block_size)
        host = self.options.transfer_host if values["host"] in ("0.0.0.0", "::") else values["host"]
        return SgLangTransfer(self, layout, host, int(values.get("disaggregation_bootstrap_port") or 0))

    @staticmethod
    def _release_load_file(reader: Any) -> None:
        """Remove the file in which schedulers report their load, once all have mapped it: SGLang does not remove it."""
        reader.read_all()
        if getattr(reader, "mmap", None) is not None:
            Path(reader.path).unlink(missing_ok=True)

    # Serving.

    async def generate(self, request: Generate, reply: Reply, limit: int) -> None:
        """Answer a request; when the task is cancelled SGLang aborts it."""
        top, sent = request.sampling.logprobs, 0
        params = request.handoff.params if request.handoff is not None else None
        if params is None and self.can.needs_prefill:
            reply.failed("EngineFailed", "this SGLang computes no prompts", retry=True, code=HANDOFF_FAILED)
            return
        try:
            async for chunk in await self._chunks(request, limit, params):
                found, meta = chunk["output_ids"], chunk["meta_info"]
                finish = (meta["finish_reason"] or {}).get("type")
                if finish == "abort":
                    self._aborted(meta["finish_reason"].get("message"), reply, lacks=bool(params) and not sent)
                    return
                if not sent:
                    self.counts.queried += meta["prompt_tokens"]
                    self.counts.hits += meta["cached_tokens"]
                    self.begun(request, reply, meta["cached_tokens"])
                    if params and self.own_transfer is not None:
                        self.own_transfer.transfers += 1
                fresh = found if self._incremental else found[sent:]
                if top is not None:
                    chosen, best = logprobs(meta, top)
                    reply.logprobs(chosen[-len(fresh) :], best[-len(fresh) :])
                self.send(reply, fresh, finish)
                sent += len(fresh)
        except ValueError as error:
            raise BadRequest(f"SGLang refuses the request: {error}") from None

    async def vectors_of(self, request: Embed, inputs: Sequence[list[int]]) -> Sequence[Sequence[float]]:
        """One request of SGLang with all texts."""
        from sglang.srt.managers.io_struct import EmbeddingReqInput

        names = [f"{request.request_id}.{place}" for place in range(len(inputs))]
        made = EmbeddingReqInput(input_ids=list(inputs), rid=names)
        try:
            found = await anext(self._manager.generate_request(made, None))
        except ValueError as error:
            raise BadRequest(f"SGLang refuses the request: {error}") from None
        return [one["embedding"] for one in found]

    async def computed(self, request: Generate, params: Mapping[str, Any]) -> None:
        """Compute a prompt, with the first token of its answer, and send it to another engine. Raises RequestError."""
        try:
            with self.open.one():
                async for chunk in await self._chunks(request, answer_limit(request, self.room), params):
                    found = chunk["meta_info"]["finish_reason"] or {}
                    if found.get("type") == "abort":
                        raise EngineFailed(f"SGLang ended the prompt: {found.get('message')}")
        except ValueError as error:
            raise BadRequest(f"SGLang refuses the prompt: {error}") from None

    async def _chunks(self, request: Generate, limit: int, params: Mapping[str, Any] | None) -> AsyncIterator[Any]:
        """What SGLang makes of a request. `params`: of a transfer."""
        top, wanted = request.sampling.logprobs, dict(params or {})
        if top is not None:
            wanted |= {"return_logprob": True, "top_logprobs_num": top, "logprob_start_len": -1}
        made: AsyncIterator[Any] = await self._engine.async_generate(
            input_ids=self.prompt(request), sampling_params=sampling(request, limit), stream=True, **wanted
        )
        return made

    def _aborted(self, why: str, reply: Reply, *, lacks: bool) -> None:
        """SGLang has ended a request. `lacks`: its blocks had not come."""
        if lacks and self.own_transfer is not None:
            self.own_transfer.failed["failed"] += 1
        code = HANDOFF_FAILED if lacks else None
        reply.failed("EngineFailed", f"SGLang ended the request: {why}", retry=lacks, code=code)

    def forward_pass(self, rank: int) -> ForwardPass | None:
        """As SGLang has published it."""
        return None if self._steps is None else self._steps.forward_pass(rank)

    async def _watch(self) -> None:
        """SGLang watches its processes, and sends SIGQUIT when one has ended."""
        await self._dead.wait()
        raise self.processes.ended()

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOAD_INTERVAL)
            if self.open.count:
                loads = await self._manager.get_loads()
                self.counts.queued = sum([one.num_waiting_reqs for one in loads])
                self.counts.used_blocks = sum([one.num_used_tokens for one in loads]) // self.block_size

    async def close(self) -> None:
        """End SGLang's processes."""
        engine, self._engine = self._engine, None
        await self.processes.shut_down(None if engine is None else engine.shutdown)
