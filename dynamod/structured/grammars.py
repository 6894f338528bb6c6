"""What an engine has of forms: the vocabulary of its model, compiled grammars, matchers of its requests."""

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence

from llguidance import LLMatcher

from dynamod.message.errors import EngineFailed
from dynamod.message.worker import Grammar
from dynamod.observe.bounded import bounded

from .matcher import Matcher
from .source import LIMITS, source
from .vocabulary import Encodes, Vocabulary

KEPT = 64
"""Compiled grammars of a model; each has up to some megabytes."""


class Grammars:
    """Of one model. `load`: gives its tokenizer, which may take seconds; called with the first grammar."""

    def __init__(self, load: Callable[[], Encodes], eos_ids: Sequence[int]) -> None:
        self._load, self._eos_ids = load, eos_ids
        self._vocabulary: Vocabulary | None = None
        self._compiled: OrderedDict[Grammar, LLMatcher] = OrderedDict()
        self._lock = threading.Lock()
        bounded(self, "compiled grammars", KEPT, lambda one: len(one._compiled), "grammars")

    def ready(self, grammar: Grammar) -> bool:
        """Whether `matcher` returns at once."""
        return grammar in self._compiled

    async def prepare(self, grammar: Grammar) -> None:
        """Compile a grammar in a thread. Raises EngineFailed."""
        await asyncio.to_thread(self._compile, grammar)

    @property
    def vocabulary(self) -> Vocabulary:
        """Of the model, once a grammar has been compiled."""
        assert self._vocabulary is not None
        return self._vocabulary

    def matcher(self, grammar: Grammar) -> Matcher:
        """For a new answer. Raises EngineFailed."""
        return Matcher(self._compile(grammar).deep_copy(), self.vocabulary)

    def _compile(self, grammar: Grammar) -> LLMatcher:
        with self._lock:
            compiled = self._compiled.get(grammar)
            if compiled is None:
                compiled = self._make(grammar)
                if len(self._compiled) >= KEPT:
                    self._compiled.popitem(last=False)
                self._compiled[grammar] = compiled
            self._compiled.move_to_end(grammar)
            return compiled

    def _make(self, grammar: Grammar) -> LLMatcher:
        if self._vocabulary is None:
            self._vocabulary = Vocabulary(self._load(), self._eos_ids)
        try:
            made = LLMatcher(self._vocabulary.tokenizer, source(grammar), log_level=0, limits=LIMITS)
        except ValueError as error:
            raise EngineFailed(f"the form of the answer cannot be compiled: {error}") from None
        if made.is_error():
            raise EngineFailed(f"the form of the answer cannot be compiled: {made.get_error()[:200]}")
        return made
