"""The engine `llamacpp` for vectors of texts: batches that the event loop decides on and one thread computes."""

import asyncio
import logging
import math
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from dynamod.actor.threads import last_work
from dynamod.message import tokens
from dynamod.message.discovery import Capabilities, ModelCard
from dynamod.message.errors import BadRequest, EngineFailed, UserError
from dynamod.message.worker import Embed
from dynamod.preprocess.conditions import check_token_ids, check_whole_input
from dynamod.preprocess.source import open_card
from dynamod.transport.base import Reply

from ..base import Engine, EngineOptions, EngineStatistics, Spawn
from ..step_clock import StepClock
from .arguments import LlamaCppArguments, arguments_of
from .embedding_model import EmbeddingModel
from .engine import CLOSE
from .files import gguf_file

log = logging.getLogger("dynamod.engine")

SECONDS = 2.0
"""What a batch should take: requests that come meanwhile, and cancels, wait for its end. A text is never divided."""


@dataclass(slots=True, eq=False)
class Asked:
    """A request, and the vectors that are there. `next`: the first text that was not taken into a batch."""

    request: Embed
    reply: Reply
    vectors: list[bytes] = field(default_factory=list)
    next: int = 0

    @property
    def over(self) -> bool:
        """Whether no client waits for the vectors any more."""
        return self.reply.cancelled or self.reply.ended


class Queue:
    """Texts that wait, in the order in which they came. `batch`: tokens, and `slots`: texts, of one batch.

    `align`: a text counts as a multiple of so many tokens.
    """

    def __init__(self, batch: int, slots: int, align: int = 1) -> None:
        self._batch, self._slots, self._align = batch, slots, align
        self._asked: deque[Asked] = deque()

    def __len__(self) -> int:
        return sum(len(asked.request.inputs) - asked.next for asked in self._asked if not asked.over)

    def add(self, asked: Asked) -> None:
        """After all others."""
        self._asked.append(asked)

    def take(self, most: float = math.inf) -> list[tuple[Asked, bytes]]:
        """The next batch: texts of several requests, of each in its order. None is above `batch` on its own.

        `most`: tokens, which only a single text may have more of.
        """
        taken: list[tuple[Asked, bytes]] = []
        room = min(self._batch, most)
        while self._asked and len(taken) < self._slots:
            asked = self._asked[0]
            if asked.over or asked.next == len(asked.request.inputs):
                self._asked.popleft()
                continue
            ids = asked.request.inputs[asked.next]
            room -= -(-tokens.count(ids) // self._align) * self._align
            if room < 0 and (taken or most >= self._batch):
                break
            asked.next += 1
            taken.append((asked, ids))
        return taken


class LlamaCppEmbeddings(Engine[Embed]):
    """Vectors, or scores of pairs, by a GGUF model. A text is computed whole, with others alongside it."""

    name = "llamacpp"
    serves = (Embed,)

    def __init__(self, options: EngineOptions, spawn: Spawn) -> None:
        super().__init__(options, spawn)
        self.arguments: LlamaCppArguments = arguments_of(options.arguments, options.kv_cache_block_size)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="llamacpp")
        self._stopped = threading.Event()
        self._work = asyncio.Event()
        self._clock: StepClock | None = None
        self._queue = Queue(1, 1)
        self._running = 0
        self._rate = 0.0  # tokens per second of the last batches
        self._model: EmbeddingModel | None = None

    async def start(self) -> None:
        """Read the card, load in the thread, compute a first few tokens. Raises UserError."""
        assert self.options.path is not None
        path = gguf_file(self.options.path)
        card = await self._model_card(path, types=("embeddings", "score"))
        log.info("llama.cpp loads %s for vectors", path)
        model = await asyncio.wrap_future(self._thread.submit(self._load, path, card))
        if model.context_length < (card.context_length or model.context_length):
            hint = "max_num_batched_tokens allows longer ones"
            log.warning("llama.cpp: texts are at most %d tokens long, %s", model.context_length, hint)
        can = Capabilities(matryoshka=self.arguments.matryoshka and not model.scores, pairs=model.scores)
        self._card = msgspec.structs.replace(
            await self._model_card(path, context_length=model.context_length),
            types=("score",) if model.scores else card.types,
            capabilities=can,
            embedding_length=0 if model.scores else model.length,
        )
        log.info("llama.cpp: vectors of %d numbers, pooling %s", model.length, model.pooling)
        self._clock, self._queue = StepClock(), Queue(model.batch, model.slots, model.align)
        self.spawn(self._run(model), "batches")

    def _load(self, path: Path, card: ModelCard) -> EmbeddingModel:
        """In the thread."""
        context = self.options.context_length
        model = EmbeddingModel(path, self.arguments, context, lambda: not self._stopped.is_set())
        self._model = model
        tokenizer = open_card(card).build()
        model.vocabulary.compare(tokenizer)
        if model.scores and len(tokenizer.encode("").ids) != 2:
            problem = f"{path} scores pairs, and its tokenizer does not frame two texts in the way of BERT"
            raise UserError(problem, "take another model")
        model.warm()
        return model

    def submit(self, request: Embed, reply: Reply) -> None:
        """Queue the texts. Raises BadRequest for one that is empty or too long, and for ids that the model lacks."""
        model = self._model
        assert model is not None
        for ids in request.inputs:
            if len(ids) % 4:
                raise BadRequest("the token ids cannot be read")
            check_whole_input(tokens.count(ids), model.context_length, "input")
            check_token_ids(tokens.unpack(ids), "input", model.vocabulary.size)
        if not request.inputs:
            reply.items((), "stop")
            return
        self._queue.add(Asked(request, reply))
        self._work.set()

    async def _run(self, model: EmbeddingModel) -> None:
        clock, loop = self._clock, asyncio.get_running_loop()
        assert clock is not None
        while not self._stopped.is_set():
            batch = self._queue.take(self._rate * SECONDS or math.inf)
            if not batch:
                self._work.clear()
                await self._work.wait()
                continue
            inputs = [ids for _, ids in batch]
            self._running = len({id(asked) for asked, _ in batch})
            count, began = sum(map(tokens.count, inputs)), loop.time()
            clock.begin(count)
            try:
                found = await asyncio.wrap_future(self._thread.submit(model.vectors, inputs))
            except Exception as error:
                log.warning("llama.cpp: vectors could not be computed", exc_info=error)
                for asked, _ in batch:
                    asked.reply.raised(EngineFailed(f"llamacpp: {error}"))
            else:
                if (took := loop.time() - began) > 0:
                    self._rate = count / took if not self._rate else (self._rate + count / took) / 2
                for (asked, _), vector in zip(batch, found, strict=True):
                    self._take(asked, vector)
            finally:
                clock.end()
                self._running = 0

    @staticmethod
    def _take(asked: Asked, vector: bytes | None) -> None:
        if vector is None:
            asked.reply.raised(EngineFailed("the model's vector of this text has no direction"))
            return
        asked.vectors.append(vector)
        if len(asked.vectors) == len(asked.request.inputs):
            asked.reply.items(tuple(asked.vectors), "stop")

    def statistics(self) -> EngineStatistics:
        """Requests in the batch, texts that wait, batches; no tokens are made."""
        clock = self._clock
        if clock is None:
            return EngineStatistics()
        return EngineStatistics(self._running, len(self._queue), 0, clock.steps, *(clock.current or ()))

    async def close(self) -> None:
        """End the batch that is being computed, or the loading, and give all memory back."""
        self._stopped.set()
        self._work.set()
        if not await last_work(self._thread, self._free, CLOSE):
            log.warning("llama.cpp: the thread that computes does not end")

    def _free(self) -> None:
        model, self._model = self._model, None
        if model is not None:
            model.free()
