"""The model that simulated workers serve: a tokenizer in memory, and what every answer has to be."""

import asyncio
import random as random_module
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, cast

import msgspec

from dynamod.actor import Context
from dynamod.discovery.view import View
from dynamod.engine.base import EngineOptions, Spawn
from dynamod.engine.mocker.arguments import KvTransfer
from dynamod.engine.mocker.engine import Mocker
from dynamod.engine.mocker.output import OutputIds, table
from dynamod.engine.mocker.own_transfer import MockerTransfer
from dynamod.engine.mocker.scheduler import Step
from dynamod.ingress.early import EarlyModels
from dynamod.ingress.model_loader import ModelLoader
from dynamod.message import tokens
from dynamod.message.discovery import ModelCard
from dynamod.message.worker import TransferShape
from dynamod.preprocess.decoder import TableDecoder
from dynamod.preprocess.model import Model

from .shape import BLOCK, MIGRATIONS, MODEL

VOCABULARY = 2000
CONTEXT = 4096

LONGEST_STEP_S = 2.0
"""Seconds of a step of a slow worker: two of them are below the clocks for the first token and between tokens."""

_TABLE = table(VOCABULARY, [0])


def _piece(index: int) -> bytes:
    """Bytes of a token. Some tokens end or begin within a character, so that a seam in an answer would be seen."""
    text = f" {index}".encode()
    if index % 5 == 0:
        return text + b"\xc3"
    return b"\xa9" + text if index % 5 == 1 else text


_PIECES = [_piece(index) for index in range(VOCABULARY)]
_TEXTS: list[str | None] = [None] * VOCABULARY


class Vocabulary:
    """The part of `preprocess.tokenizer.Tokenizer` that requests of token ids need."""

    vocab_size = VOCABULARY

    def decoder(self, skip_special: bool = True, *, continuing: bool = False) -> TableDecoder:
        """A decoder over the table above."""
        return TableDecoder(_PIECES, _TEXTS, "replace")

    def backend_for(self, text: str) -> str:
        """Any name will do."""
        return "tokenizers"

    def token_bytes(self, index: int) -> bytes | None:
        """The bytes that a token stands for."""
        return _PIECES[index]


def model_of(card: ModelCard) -> Model:
    """What a processor loads from a model's files, without the files."""
    return Model(card, cast("Any", Vocabulary()), {})


def reference(prompt: list[int], seed: int, max_tokens: int) -> str:
    """The whole text of an answer, whoever gives it and however often it moves."""
    answer = OutputIds(tokens.pack(prompt), seed, _TABLE)
    answer.reach(max_tokens)
    decoder = TableDecoder(_PIECES, _TEXTS, "replace")
    ids = [index for packed in answer.ids[:max_tokens] for index in tokens.unpack(packed)]
    return decoder.push(ids) + decoder.flush()


OwnTransfer = Callable[["SimulatedMocker", TransferShape], MockerTransfer]


class SimulatedMocker(Mocker):
    """The mocker without a model's files: reading them takes a thread, which virtual time does not allow.

    `own_transfer`: makes what moves blocks where workers do not.
    """

    def __init__(self, options: EngineOptions, spawn: Spawn, own_transfer: OwnTransfer, *, exact: bool = True) -> None:
        super().__init__(options, spawn)
        self._made = own_transfer
        self._exact, self.slowness = exact, 1.0
        self._step = 0.0, 0.0, 0  # when the last one began and ends, and its tokens

    async def start(self) -> None:
        """Have each step take `slowness` times as long, as far as the clocks of requests allow."""
        await super().start()
        capabilities = self._card.capabilities
        if capabilities.exact_continuation != self._exact:
            capabilities = msgspec.structs.replace(capabilities, exact_continuation=self._exact)
            self._card = msgspec.structs.replace(self._card, capabilities=capabilities)
        for rank in self.ranks:
            rank.scheduler.step = partial(self._slowly, rank.scheduler.step)  # type: ignore[method-assign]

    def _slowly(self, step: Callable[[], Step]) -> Step:
        found = step()
        usual = found.ms / 1000 / self.arguments.speedup_ratio
        slow = max(usual, min(usual * self.slowness, LONGEST_STEP_S))
        now = asyncio.get_running_loop().time()
        self._step = now, now + slow, found.prefilled + len(found.tokens)
        return msgspec.structs.replace(found, ms=found.ms * slow / usual) if usual else found

    def working(self) -> tuple[float | None, int]:
        """For how many seconds the step is computed, None between two, and of how many tokens."""
        now, (begun, end, count) = asyncio.get_running_loop().time(), self._step
        return (now - begun, count) if now < end else (None, 0)

    def recover(self) -> None:
        """Steps take as long as usual."""
        self.slowness = 1.0

    def _transfer(self, shape: TransferShape) -> MockerTransfer:
        return self._made(self, shape)

    async def _read(self) -> tuple[ModelCard, int]:
        return ModelCard(self.options.name, context_length=CONTEXT), VOCABULARY


def options(blocks: int, speed: float, kv_transfer: KvTransfer = "worker") -> EngineOptions:
    """Options of a simulated worker. `speed`: below 1 it is slower than what the mocker stands for."""
    arguments = {"block_size": BLOCK, "num_gpu_blocks": blocks, "speedup_ratio": speed, "max_num_seqs": 64}
    return EngineOptions(MODEL, migration_limit=MIGRATIONS, arguments={**arguments, "kv_transfer": kv_transfer})


def odd_layout(options: EngineOptions) -> EngineOptions:
    """The same model on a worker whose blocks mean something else to all others."""
    return replace(options, arguments={**options.arguments, "kv_bytes_per_token": 32})


class NothingEarly(EarlyModels):
    """Models are in memory, so none is read early. A watch less: the seeds that found something keep their course."""

    def follow(self, view: View, context: Context, served: Callable[[str], bool]) -> None:
        """Watch nothing."""

    async def take(self, card: ModelCard) -> Model | None:
        """None has been read."""
        return None


class SimulatedLoader(ModelLoader):
    """Has models in memory."""

    def __init__(self) -> None:
        self.failed = {}
        self.early = NothingEarly()

    async def load(self, card: ModelCard, wanted: Callable[[], bool], random: random_module.Random) -> Model | None:
        """At once."""
        return model_of(card) if wanted() else None

    async def hasten(self, name: str, model: Model, wanted: Callable[[], bool]) -> None:
        """There is no faster tokenizer."""
