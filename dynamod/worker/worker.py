"""The worker actor: owns one engine, takes requests from its mailbox, publishes the model card and its events."""

import asyncio
import contextlib
import functools
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from dynamod.actor import Actor, Reason, handle
from dynamod.discovery.base import Watcher
from dynamod.engine.base import Engine, EngineOptions, EngineStatistics, Job, Spawn
from dynamod.extension.installed import pool_of, require_role
from dynamod.message.discovery import DisaggregationMode, ModelCard
from dynamod.message.errors import RequestError, UserError
from dynamod.message.kv_events import ForwardPass, RequestStarted
from dynamod.message.worker import PASSED, TRIAL_TAKEN, Describe, Files, Generate, Subscribe
from dynamod.transport.base import CONFIRM, Reply
from dynamod.transport.waiting import comes

from .model_files import send_files
from .parts import (
    PartQuestion,
    Role,
    Submit,
    WorkerContext,
    WorkerPart,
    make_parts,
    usable,
    why_refused,
    with_sections,
)
from .statistics import RequestCounts, WorkerStatistics
from .structured import StructuredOutput
from .subscriptions import Subscriptions

log = logging.getLogger("dynamod.engine")

Make = Callable[[EngineOptions, Spawn], Engine[Any]]
RequestHandler = Callable[[Engine[Any], Any, Reply], None]
Answer = Callable[[Any, Reply], Awaitable[None]]

OTHERS = 5.0
"""Seconds that such a request waits for the first tokens of others, of other ingress processes, that are there."""

STEP_LOOK = 0.02
"""Seconds between looks whether the step before such a request is over."""


class Worker(Actor):
    """`publish(card)` is called when the engine is loaded, `withdraw()` when the worker drains or ends.

    Both are called again when its role changes: first the second.
    """

    mailbox_capacity = 1024

    def __init__(
        self,
        make: Make,
        options: EngineOptions,
        publish: Callable[[ModelCard], None],
        withdraw: Callable[[], None],
    ) -> None:
        self._make = make
        self._options = options
        self._publish = publish
        self._withdraw = withdraw
        self._engine: Engine[Any] | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._subscriptions = Subscriptions(lambda work, name: self.context.task(work, name))
        self._counts = RequestCounts()
        self._role_changes = 0
        self._structured: StructuredOutput | None = None  # from `started` on
        self._trial: Reply | None = None  # of the last request that was to be tried alone
        self._handlers: Mapping[type, RequestHandler] = {}  # by the type of request, from `started` on
        self.parts: Mapping[str, WorkerPart] = {}  # of features, by their names, from `started` on

    async def started(self) -> None:
        """Load the engine, then publish its card."""
        self._engine = engine = self._make(self._options, self.context.task)
        self._subscriptions.follow(engine)
        engine.progress, engine.phase, engine.coming = self.progress, self.phase, self.coming
        self.phase("load")
        await engine.start()
        self._structured = StructuredOutput(engine, self.context.task, self._raised_to)
        self.parts = make_parts(self.part_context(engine))
        self._handlers = self.handlers(engine)
        await self._enter(self.role)
        log.info("engine %s serves model %s", engine.name, engine.card().name)
        self._publish(self._public_card(engine))

    def part_context(self, engine: Engine[Any]) -> WorkerContext:
        """What parts are given."""
        return WorkerContext(
            engine,
            lambda: self._publish(self._public_card(engine)),
            self.follow,
            self.context.task,
            functools.partial(self._begin_work, engine),
            functools.partial(self._take_alone, engine),
            lambda: self._options,
            lambda: self.transfer_host(),
            lambda: Role(self.role, self._role_changes),
            functools.partial(self._become, engine),
        )

    async def _enter(self, role: DisaggregationMode) -> None:
        """Raises OSError, UserError."""
        if role != "aggregated":
            require_role(role)
        for part in self.parts.values():
            await part.enter(role)

    def handlers(self, engine: Engine[Any]) -> dict[type, RequestHandler]:
        """What takes requests, by their type: of features, for the engine, for the worker itself."""
        parts = {
            kind: functools.partial(self._begin_answer, functools.partial(method, part))
            for part in self.parts.values()
            for kind, method in part.messages.items()
        }
        work = {
            kind: functools.partial(self._begin_of_part, functools.partial(method, part))
            for part in self.parts.values()
            for kind, method in part.work.items()
        }
        return {
            **parts,  # first: no feature takes a request from the core
            **work,
            **dict.fromkeys(engine.serves, self._take),
            Subscribe: self._subscriptions.subscribe,
            Describe: self._describe,
            Files: self._send_files,
        }

    async def follow(self, prefix: str, watcher: Watcher) -> None:
        """See `WorkerContext`."""

    async def prepare_parts(self) -> None:
        """Await the parts; to be called when the engine is loaded, before the worker is announced."""
        for part in self.parts.values():
            await part.prepare()

    def start_parts(self) -> None:
        """Start the tasks of the parts; to be called when the worker is announced."""
        for name, part in self.parts.items():
            self.context.task(part.run(), name)

    @property
    def role(self) -> DisaggregationMode:
        """Which part of requests it is for. Of an engine on several nodes the leader takes the requests."""
        return "aggregated" if self._options.node_rank else self._options.disaggregation_mode

    def _public_card(self, engine: Engine[Any]) -> ModelCard:
        """To be published: clients cannot ask a worker that only helps others."""
        card = with_sections(engine.card(), self.parts)
        types = () if pool_of(self.role) else card.types
        return msgspec.structs.replace(card, types=types, capabilities=usable(card.capabilities, self.parts))

    def transfer_host(self) -> str:
        """The address at which other nodes read blocks; asked for when the first of them comes."""
        return self._options.transfer_host

    def progress(self, text: str) -> None:
        """What the engine does while it starts."""
        log.info("%s", text)

    def coming(self, card: ModelCard) -> None:
        """The card as the files of the model say, before the engine has loaded the model."""

    def phase(self, name: str) -> None:
        """The phase of its start that begins now."""

    async def drained(self) -> None:
        """Leave the registry, so that no sender finds this worker; wait for the streams that are open."""
        for part in self.parts.values():
            part.drain()
        self._withdraw()
        await self._idle.wait()

    async def stopping(self, reason: Reason) -> None:
        """Leave the registry, free the engine, and fail open streams so that their senders may retry elsewhere."""
        self._withdraw()
        try:
            for part in self.parts.values():
                part.close()
            if self._engine is not None:
                await self._engine.close()
        finally:
            why = f"the worker ended ({reason})"
            for reply in (*self._subscriptions.open, *([self._trial] if self._trial is not None else ())):
                reply.failed("EngineFailed", why, retry=True)
            self._subscriptions.close(why)

    @handle
    async def job(self, message: Job) -> None:
        """Give a request to the handler of its type."""
        engine, request, reply = self._engine, message.request, message.reply
        assert engine is not None
        if reply.cancelled:
            return
        handler = self._handlers.get(type(request))
        if handler is not None:
            handler(engine, request, reply)
        else:
            self._refuse(engine, request, reply)

    def _take(self, engine: Engine[Any], request: Any, reply: Reply) -> None:
        self._take_alone(engine, request, reply, functools.partial(self._submit, engine))

    def _take_alone(self, engine: Engine[Any], request: Any, reply: Reply, submit: Submit) -> None:
        if self._trial is not None and self._lasts(self._trial):
            reply.failed("Overloaded", "the worker tries another request alone", retry=True, code=TRIAL_TAKEN)
        elif request.alone:
            self._trial = reply
            self.context.task(self._begin_trial(engine, request, reply, submit), "trial")
        else:
            submit(request, reply)

    @staticmethod
    def _begin_of_part(method: Submit, _engine: Engine[Any], request: Any, reply: Reply) -> None:
        method(request, reply)

    def _describe(self, engine: Engine[Any], _request: Describe, reply: Reply) -> None:
        reply.accepted()
        reply.items((msgspec.json.encode(with_sections(engine.card(), self.parts)),), "stop")

    def _send_files(self, engine: Engine[Any], request: Files, reply: Reply) -> None:
        self.context.task(send_files(engine.card(), request, reply), "files")

    def _begin_answer(self, answer: Answer, engine: Engine[Any], request: Any, reply: Reply) -> None:
        self.context.task(self._answer(answer, engine, request, reply), type(request).__name__)

    async def _answer(self, answer: Answer, engine: Engine[Any], request: Any, reply: Reply) -> None:
        reply.accepted()
        with self._raised_to(reply, engine, request):
            await answer(request, reply)

    def _refuse(self, engine: Engine[Any], request: Any, reply: Reply) -> None:
        self._counts.refused += 1
        if why := why_refused(request):
            reply.failed("BadRequest", why, code="feature_off")
        else:
            served = " or ".join(kind.__name__ for kind in engine.serves)
            reply.failed("BadRequest", f"this endpoint takes {served}, not {type(request).__name__}")

    @handle
    async def question(self, message: PartQuestion) -> Any:
        """What a part answers."""
        kind = type(message.question)
        for part in self.parts.values():
            if kind in part.questions:
                return part.questions[kind](part, message.question)
        return UserError(f"no part of the worker answers `{kind.name}`", "see dynamo features")

    async def _become(self, engine: Engine[Any], role: DisaggregationMode, timeout: float) -> Role:
        """See `WorkerContext`. Requests that come late are taken."""
        before = self.role
        moves = pool_of(before) != pool_of(role)  # else what is open stays as it is
        if moves:
            self.role_told(role, f"becomes {role}")
            self._withdraw()
            if not await comes(self._idle, timeout):
                for reply in tuple(self._subscriptions.open):
                    reply.displaced(f"the worker becomes {role}")
        try:
            await self._enter(role)
        except (OSError, UserError):
            self._publish(self._public_card(engine))
            self.role_told(before, "")
            raise
        for part in self.parts.values():
            part.leave(before)
        self._options = replace(self._options, disaggregation_mode=role)
        if moves:
            self._publish(self._public_card(engine))
        self.role_told(role, "")
        self._role_changes += 1
        log.info("the worker was %s and is %s now", before, role)
        return Role(role, self._role_changes)

    def role_told(self, role: DisaggregationMode, text: str) -> None:
        """Called with the role that the worker has, or will have, and what happens until then, to be shown."""

    @staticmethod
    def _lasts(trial: Reply) -> bool:
        """Whether a request that may crash the worker is on trial. No other request begins, so the cause is known."""
        return not (trial.ended or trial.cancelled or trial.sent >= PASSED)

    async def _begin_trial(self, engine: Engine[Any], request: Any, reply: Reply, submit: Submit) -> None:
        """Accept a request only after the current step and all pending first tokens.

        So a later crash can be attributed to the request. The request begins when its sender knows of the acceptance,
        because only then can the sender attribute a crash.
        """
        now = engine.statistics()
        begun, until = now.steps, asyncio.get_running_loop().time() + OTHERS
        while (now.in_step_for is not None and now.steps == begun) or self._any_prompt(until):
            await asyncio.sleep(STEP_LOOK)
            if reply.cancelled:
                return
            now = engine.statistics()
        known = asyncio.Event()
        reply.on_confirm(known.set)
        reply.on_cancel(known.set)
        reply.accepted()
        if not await comes(known, CONFIRM):
            reply.failed("Overloaded", f"its sender did not answer within {CONFIRM:g} s", retry=True)
        elif not reply.cancelled:
            submit(request, reply)

    def _any_prompt(self, until: float) -> bool:
        """Whether prompts may be computed, before the loop's time is `until`: that for others is known by its end."""
        others = pool_of(self.role) != ""
        open_now = self._subscriptions.open
        return asyncio.get_running_loop().time() < until and any(others or not reply.sent for reply in open_now)

    def _submit(self, engine: Engine[Any], request: Any, reply: Reply) -> None:
        begin: Submit = engine.submit
        for part in self.parts.values():
            begin = part.submitting(request, begin)
        if self._structured is not None:
            begin = self._structured.before(begin, request)
        self._begin_work(engine, request, reply, begin)

    def _begin_work(self, engine: Engine[Any], request: Any, reply: Reply, begin: Submit) -> None:
        self._counts.accepted += 1
        with self._raised_to(reply, engine, request):
            answers = isinstance(request, Generate)  # others have nothing of the cache
            reporter = self._subscriptions.blocks
            blocks, uncached = (reporter.footprint(request) if answers and reporter is not None else None) or ((), 0)
            self._begin(reply, RequestStarted(self._counts.accepted, blocks, uncached))
            begin(request, reply)

    @contextlib.contextmanager
    def _raised_to(self, reply: Reply, engine: Engine[Any], request: Any) -> Iterator[None]:
        """What is raised ends the stream."""
        try:
            yield
        except RequestError as error:
            reply.raised(error)
        except Exception as error:  # an engine's bug ends this request, not its neighbours
            log.exception("engine %s could not take request %s", engine.name, request.request_id)
            text = f"{engine.name} raised {type(error).__name__}; the worker's log has more under this request's id"
            reply.failed("EngineFailed", text)

    def _begin(self, reply: Reply, started: RequestStarted) -> None:
        self._idle.clear()
        self._subscriptions.begin(reply, started)
        reply.on_end(functools.partial(self._ended, reply, asyncio.get_running_loop().time()))
        reply.accepted()

    def _ended(self, reply: Reply, begun: float, cancelled: bool) -> None:
        self._counts.durations.observe(asyncio.get_running_loop().time() - begun)
        self._subscriptions.end(reply)
        self._counts.cancelled += cancelled
        if not self._subscriptions.open:
            self._idle.set()

    def forward_passes(self) -> tuple[ForwardPass, ...]:
        """Of all ranks, now."""
        return self._subscriptions.forward_passes()

    def statistics(self) -> WorkerStatistics:
        """A snapshot of the worker."""
        engine = self._engine.statistics() if self._engine is not None else EngineStatistics()
        open_now, feeds = len(self._subscriptions.open), len(self._subscriptions)
        found = self._counts
        counts = (found.accepted, open_now, found.cancelled, found.refused, feeds)
        handoff = next((one for part in self.parts.values() if (one := part.statistics()) is not None), None)
        pool, steps = "" if self.role == "aggregated" else self.role, self.forward_passes()
        model, durations = self._engine.card().name if self._engine is not None else "", found.durations.snapshot()
        return WorkerStatistics(*counts, engine, handoff, pool, self._role_changes, steps, model, durations)

    def inspection(self) -> dict[str, Any]:
        """The worker's statistics."""
        facts: dict[str, Any] = msgspec.to_builtins(self.statistics())
        return facts
