"""Structured output in a worker: the engine gets a request once the grammar of the answer has been compiled."""

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from dynamod.engine.base import Engine, Spawn
from dynamod.engine.capabilities import CompilesGrammars
from dynamod.message.errors import BadRequest, EngineFailed
from dynamod.message.worker import REPLAY, Chat, Generate, Grammar, form_words
from dynamod.transport.base import Reply

from .parts import Submit

RaisedTo = Callable[[Reply, Engine[Any], Any], AbstractContextManager[None]]
"""Ends the stream of a request with the error that is raised inside."""


class StructuredOutput:
    """Checks the grammar of a request against the engine's capabilities, and has the engine compile it.

    `spawn` starts a task of the worker.
    """

    def __init__(self, engine: Engine[Any], spawn: Spawn, raised_to: RaisedTo) -> None:
        self._engine, self._spawn, self._raised_to = engine, spawn, raised_to
        self._compiler = engine if isinstance(engine, CompilesGrammars) else None

    def before(self, begin: Submit, request: Any) -> Submit:
        """What gives a request to the engine: `begin`, or a function that has its grammar compiled first."""
        if isinstance(request, Generate | Chat) and request.grammar is not None:
            return functools.partial(self._prepare, begin, request.grammar)
        return begin

    def _prepare(self, begin: Submit, grammar: Grammar, request: Generate | Chat, reply: Reply) -> None:
        name, can, words = self._engine.name, self._engine.card().capabilities, form_words(request)
        assert words is not None
        if not can.grammars:
            raise BadRequest(f"engine {name} does not keep to forms of answers")
        if not can.keeps(words):
            raise BadRequest(f"engine {name} does not keep to forms that need {' and '.join(words)}")
        if isinstance(request, Generate) and request.prior_output and not can.keeps((REPLAY,)):
            raise EngineFailed(f"engine {name} cannot continue in an answer that keeps to a form")
        if self._compiler is None or self._compiler.prepared(grammar):
            begin(request, reply)
        else:
            self._spawn(self._compile(self._compiler, grammar, begin, request, reply), "grammar")

    async def _compile(
        self,
        compiler: CompilesGrammars,
        grammar: Grammar,
        begin: Submit,
        request: Generate | Chat,
        reply: Reply,
    ) -> None:
        with self._raised_to(reply, self._engine, request):
            await compiler.prepare(grammar)
            if not (reply.cancelled or reply.ended):
                begin(request, reply)
