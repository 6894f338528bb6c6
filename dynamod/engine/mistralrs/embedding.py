"""mistral.rs as an engine for vectors of texts: one thread asks it, request by request, each with all of its texts."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import msgspec

from dynamod.actor.threads import last_work
from dynamod.message import tokens, vectors
from dynamod.message.errors import BadRequest, EngineFailed, RequestError
from dynamod.message.worker import Embed
from dynamod.preprocess.conditions import check_token_ids, check_whole_input
from dynamod.preprocess.model import Model
from dynamod.transport.base import Reply

from ..base import Engine, EngineOptions, EngineStatistics, Spawn
from ..step_clock import StepClock
from .loading import load

log = logging.getLogger("dynamod.engine")

CLOSE = 3.0
"""Seconds that `close` waits for what is being computed; a thread that hangs is given up."""


class MistralRsEmbeddings(Engine[Embed]):
    """Vectors by a model that mistral.rs knows as one for embeddings. It pools as the model's own files say."""

    name = "mistralrs"
    serves = (Embed,)

    def __init__(self, options: EngineOptions, spawn: Spawn) -> None:
        super().__init__(options, spawn)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="mistralrs")
        self._open: set[Reply] = set()
        self._clock: StepClock | None = None
        self._vocabulary = 0
        self._runner: Any = None

    async def start(self) -> None:
        """Read the card, load in the thread, make a first vector. Raises UserError."""
        card = await self._model_card(types=("embeddings", "score"))
        model = await asyncio.to_thread(partial(Model.load, card, use_fast_backend=False))
        self._vocabulary = model.tokenizer.vocab_size
        self._runner = await asyncio.wrap_future(self._thread.submit(load, self.options))
        [first] = await asyncio.wrap_future(self._thread.submit(self._vectors, [[1 % self._vocabulary]]))
        limit = self._runner.max_sequence_length() or 0
        if limit and (not card.context_length or limit < card.context_length):
            card = msgspec.structs.replace(card, context_length=limit)
        self._card = msgspec.structs.replace(card, embedding_length=len(first) // 4)
        self._clock = StepClock()

    def submit(self, request: Embed, reply: Reply) -> None:
        """Check now; the rest happens in the thread. Raises BadRequest."""
        texts: list[list[int]] = []
        for packed in request.inputs:
            if len(packed) % 4:
                raise BadRequest("the token ids cannot be read")
            check_whole_input(tokens.count(packed), self._card.context_length, "input")
            ids = list(tokens.unpack(packed))
            check_token_ids(ids, "input", self._vocabulary)
            texts.append(ids)
        self._open.add(reply)
        loop = asyncio.get_running_loop()
        future = self._thread.submit(self._compute, loop, reply, texts)
        reply.on_cancel(partial(self._cancel, reply, future))

    def _cancel(self, reply: Reply, future: "Future[None]") -> None:
        """What has begun is computed to its end."""
        if future.cancel():
            self._open.discard(reply)

    # In the thread.

    def _compute(self, loop: asyncio.AbstractEventLoop, reply: Reply, texts: list[list[int]]) -> None:
        """One request. Whatever happens, its stream ends."""
        found: tuple[bytes, ...] | RequestError
        if not self._tell(loop, self._begun, sum(map(len, texts))):
            return
        try:
            found = tuple(self._vectors(texts)) if texts else ()
        except BaseException as error:  # also a panic of the engine, which is no Exception
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            log.warning("mistralrs: vectors could not be computed: %s", reason)
            found = EngineFailed(f"mistralrs raised {type(error).__name__}; the worker's log has more")
        self._tell(loop, self._ended, reply, found)

    @staticmethod
    def _tell(loop: asyncio.AbstractEventLoop, call: Callable[..., None], *arguments: object) -> bool:
        """Call it on the event loop; whether there is one that listens."""
        try:
            loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:  # it is closed
            return False
        return True

    def _vectors(self, texts: list[list[int]]) -> list[bytes]:
        from mistralrs import EmbeddingRequest

        found = self._runner.send_embedding_request(EmbeddingRequest(input=texts))
        return [vectors.pack(vectors.unit(one)) for one in found]

    # On the event loop.

    def _begun(self, count: int) -> None:
        if self._clock is not None:
            self._clock.begin(count)

    def _ended(self, reply: Reply, found: tuple[bytes, ...] | RequestError) -> None:
        if self._clock is not None:
            self._clock.end()
        self._open.discard(reply)
        if isinstance(found, RequestError):
            reply.raised(found)
        else:
            reply.items(found, "stop")

    def statistics(self) -> EngineStatistics:
        """One request is computed at a time; no tokens are made."""
        clock = self._clock
        if clock is None:
            return EngineStatistics()
        running = min(1, len(self._open))
        return EngineStatistics(running, len(self._open) - running, 0, clock.steps, *(clock.current or ()))

    async def close(self) -> None:
        """Give the model back, after what is being computed."""
        if not await last_work(self._thread, self._free, CLOSE):
            log.warning("mistralrs: the thread that computes does not end")

    def _free(self) -> None:
        self._runner = None
