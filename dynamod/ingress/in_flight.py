"""The requests in flight of an ingress process: how they begin, and the tasks that own them until their end."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Any

from dynamod.actor import ActorUnreachable
from dynamod.extension.installed import enabled, helper_roles, helpers_of
from dynamod.message import tokens
from dynamod.message.discovery import Instance, ModelCard
from dynamod.message.errors import BadRequest, Overloaded, RequestError
from dynamod.message.ingress import Logprobs, PromptLogprobs
from dynamod.message.worker import REPLAY, Generate, form_words
from dynamod.migration.base import Choice
from dynamod.migration.request import InFlightRequest
from dynamod.migration.stages import Ask, MakeStage, StageContext
from dynamod.observe.records import Facts, PromptTokens
from dynamod.observe.timeline import ASKED, CHOICES, FINISHED, NOWHERE, PLACED, Mark
from dynamod.preprocess.model import Model
from dynamod.preprocess.output import RecordedOutput
from dynamod.router.placement import Placement
from dynamod.router.router import Prompt

from .base import Job, Logprob, ResponseSink, Run
from .counts import Stage
from .dispatcher import ModelCounts
from .lowering import Lowered
from .parsing import ParsedSink, most_calls
from .parts import ProcessorParts

Spawn = Callable[[Coroutine[Any, Any, Any], str], Any]

Told = Callable[[Instance], None] | None
"""Called with a worker; None: no caller needs to know."""

Marked = tuple[Callable[[Mark], None], int] | None
"""What takes the marks of a choice, and the number of the choice; None: no caller needs to know."""

TOGETHER = 32
"""Choices of a request that begin in one turn of the event loop: its 2,048 would keep other streams waiting."""


class RequestsInFlight:
    """`start` requests, each choice in a task of the processor's; let their clocks act, and leave silent workers.

    `migration_limit`: instead of the cards' own. `longest`: tokens above which an answer does not move.
    """

    def __init__(
        self,
        context: StageContext,
        spawn: Spawn,
        counts: Mapping[str, ModelCounts],
        *,
        migration_limit: int | None,
        longest: int | None,
        parts: ProcessorParts,
    ) -> None:
        self._view, self._transport, self._dispatcher = context.view, context.transport, context.dispatcher
        self._spawn, self._now, self._counts = spawn, context.now, counts
        self._limits, self._migration_limit, self._longest = context.limits, migration_limit, longest
        self._begins = [one.stages(context) for one in enabled() if one.stages is not None]
        self._parts = parts
        self._helpers = [*helper_roles().items()]
        self._open: dict[InFlightRequest, None] = {}  # in the order of their start: so clocks act, too
        self.started = self.completed = 0

    def __len__(self) -> int:
        return len(self._open)

    def unanswered(self) -> Counter[str]:
        """By model, the choices that an instance has and of which no token has come."""
        return Counter(one.choice.card.base for one in self._open if one.attempting and not one.answer.begun)

    async def start(self, job: Job, sink: ResponseSink, lowered: Lowered) -> Run:
        """Begin to serve a request; the sink is called from now on. Raises BadRequest, Overloaded, PoisonRequest."""
        self.started += 1
        name = lowered.card.name
        stages = [[begin(request) for begin in self._begins] for request in lowered.requests]
        if not self._view.served(name, lowered.card, "").instances:
            raise Overloaded(f"No instance of model {name!r} is ready.", retry_after=1.0)
        for role, needs in self._helpers:
            if getattr(lowered.card.capabilities, needs) and not self._view.served(name, lowered.card, role).instances:
                raise Overloaded(f"No {role} worker of model {name!r} is ready, and it needs one.", retry_after=1.0)
        self._check_instance(job)
        if job.needs:
            self._check_needs(job, lowered.card)
        if job.request.wants("query_instance_id"):
            return await self._answer_where(job, sink, lowered)
        parsed = ParsedSink(sink, lowered.parsers, most_calls(job.request), job.calls) if lowered.parsers else None
        run = RequestRun(sink) if parsed is None else RequestRun(parsed, parsed.stop)
        if lowered.echo:
            sink.echoed(lowered.echo)
        if lowered.prompt_ids:
            sink.recorded(lowered.prompt_ids, [one.ids for one in lowered.outputs if isinstance(one, RecordedOutput)])
        if job.facts is not None:
            _note(job.facts, lowered)
        sink.started(len(stages), sum(lowered.prompt_tokens[:: lowered.samples]), lowered.annotations)
        try:
            choices = [partial(self._choice, job, run, lowered, *one) for one in enumerate(stages)]
            await self._begin(run, choices, lowered.at_once or len(choices))
        except ActorUnreachable as error:
            run.fail(Overloaded(f"the processor is not available: {error}", retry_after=1.0))
        except asyncio.CancelledError:
            run.cancel()
            raise
        return run

    async def _begin(self, run: "RequestRun", choices: Sequence[Callable[[], InFlightRequest]], at_once: int) -> None:
        places = asyncio.Semaphore(at_once) if at_once < len(choices) else None
        for first in range(0, len(choices), TOGETHER):
            if first:
                await asyncio.sleep(0)
            for choice in choices[first : first + TOGETHER] if not run.over else ():
                request = choice()
                run.in_flight[request] = None
                self._open[request] = None
                work = request.run() if places is None else _in_turn(places, request)
                self._spawn(work, request.request.request_id)

    def look(self) -> None:
        """Let the clocks of all requests act."""
        for request in list(self._open):
            request.expire(self._limits)

    def instances_changed(self) -> None:
        """Move requests away from workers whose process does not answer its daemon; others may try some again.

        A request that no other instance can take waits: the process may respond again, else its daemon kills it.
        """
        for request in list(self._open):
            instance = request.instance
            if not request.attempting:
                request.moves.reconsider()
            if instance is not None and self._view.quarantined(instance) and _can_move(request):
                request.leave("the worker's process does not answer any more")
            elif instance is not None and not request.attempting and self._view.gone(instance):
                request.leave("the worker is gone")

    def _check_instance(self, job: Job) -> None:
        """Refuse an instance that is not there: no repetition of the request would help. Raises BadRequest."""
        wanted = job.request.nvext.backend_instance_id if job.request.nvext is not None else None
        if wanted is not None and all(one.instance_id != wanted for one in self._view.all_instances()):
            field = "nvext.backend_instance_id"
            raise BadRequest(f"`{field}` is {wanted}, which is no instance here; /health lists them", param=field)

    def _check_needs(self, job: Job, card: ModelCard) -> None:
        """Refuse what no worker that is there can compute. Raises what the need says."""
        for pool in ("", *helpers_of(card.capabilities)):
            for need in job.needs:
                instances = self._view.served(card.name, card, pool).instances
                cards = [one for instance in instances if (one := self._view.card_of(card.name, instance)) is not None]
                if all(need.lacks(one) for one in cards):
                    raise need.unmet(cards)

    def _choice(
        self, job: Job, run: "RequestRun", lowered: Lowered, index: int, stages: Sequence[MakeStage]
    ) -> InFlightRequest:
        card, model, request = lowered.card, lowered.model, lowered.requests[index]
        prompt, can = prompt_of(job, lowered, index), card.capabilities
        note = job.timeline.marks.append if job.timeline is not None and index < CHOICES else NOWHERE
        traced = job.timeline.trace if job.timeline is not None else None
        told = run.sink.placed if job.timed else None
        choice = Choice(
            request,
            lowered.outputs[index],
            run,
            index,
            exact=isinstance(request, Generate) and can.continues and self._replays(card, prompt),
            limit=card.migration_limit if self._migration_limit is None else self._migration_limit,
            longest=self._longest,
            prompt_tokens=prompt.tokens,
            logprobs=partial(_pass_logprobs, model, run.sink) if model is not None else None,
            stages=stages if traced is None else (*stages, traced.stage),
            card=card,
            prompt=prompt,
            placed=told and partial(told, index),
            mark=note,
            timeline=job.timeline,
        )
        told_of = told and partial(told, index)
        places = ChoicePlaces(self, card, prompt, _priority(job), told_of, (note, index))
        migrations = self._counts[card.base].migrations
        completed = partial(self._completed, run)
        return InFlightRequest(choice, places, self._transport, self._now, migrations, completed)

    def acquire(
        self, card: ModelCard, prompt: Prompt, priority: int, told: Told, ask: Ask, mark: Marked = None
    ) -> Awaitable[Placement]:
        """A place for a choice. `told` gets the worker. Awaiting it raises Overloaded."""
        # others are tried before one that is tried alone: its wait is bounded as that for a long prompt is
        timeout = self._limits.first if ask.alone else self._limits.queue
        exclude, again, alone, received = ask
        place = self._dispatcher.acquire(
            card, prompt, exclude, priority=priority, again=again, alone=alone, received=received, timeout=timeout
        )
        place = self._wanting(card, place) if self._parts.starts(card) else place
        return _placed(place, self._counts[card.base].route, told, mark)

    async def _wanting(self, card: ModelCard, place: Awaitable[Placement]) -> Placement:
        with self._parts.wanted(card.base):
            return await place

    def _replays(self, card: ModelCard, prompt: Prompt) -> bool:
        """Whether an answer that keeps to a form may continue elsewhere: else its form would begin anew there."""
        return prompt.form is None or REPLAY in card.capabilities.forms

    def available(self, card: ModelCard, prompt: Prompt, tried: Collection[int], received: int) -> bool:
        """As `Places.available`. A worker that is started for the model counts."""
        return self._dispatcher.available(card, prompt, tried, received=received) or self._parts.starts(card)

    def neighbours(self, instance: Instance) -> list[int]:
        """Instances on the same node: where the link to one is lost, the whole node may be away."""
        return [one.instance_id for one in self._view.all_instances() if one.node == instance.node != ""]

    def _completed(self, run: "RequestRun", request: InFlightRequest) -> None:
        self._open.pop(request, None)
        request.choice.mark((FINISHED, request.choice.index, perf_counter(), None))
        run.completed(request)
        self.completed += 1

    async def _answer_where(self, job: Job, sink: ResponseSink, lowered: Lowered) -> Run:
        """Answer where the request would go, and what it would be; nothing is generated."""
        with await self._dispatcher.acquire(lowered.card, prompt_of(job, lowered, 0), waits=False) as placement:
            found: dict[str, Any] = {**lowered.annotations, "worker_instance_id": placement.instance.instance_id}
        request = lowered.requests[0]
        if isinstance(request, Generate):
            found["token_data"] = list(tokens.unpack(request.token_ids))
        sink.started(1, lowered.prompt_tokens[0], found)
        sink.finish(0, "stop", 0)
        return RequestRun(sink)


def _note(facts: Facts, lowered: Lowered) -> None:
    """Note the tokens of a request for its record."""
    card, samples = lowered.card, lowered.samples
    prompts = []
    for index, request in list(enumerate(lowered.requests))[::samples]:
        if isinstance(request, Generate):
            blocks = lowered.blocks[index] if lowered.blocks else ()
            prompts.append(PromptTokens(request.token_ids, blocks, card.kv_cache_block_size, card.salt))
    facts.samples = samples
    if len(prompts) * samples == len(lowered.requests):
        facts.prompts = prompts
        facts.answers = [one.ids for one in lowered.outputs if isinstance(one, RecordedOutput)]


def _can_move(request: InFlightRequest) -> bool:
    """Whether another instance would get it, if this one failed now; a suspect always leaves."""
    return request.stages.suspect or request.moves.possible


async def _in_turn(places: asyncio.Semaphore, request: InFlightRequest) -> None:
    """Run a choice when others of its request have made room; each of these has its own deadlines."""
    async with places:
        await request.run()


class ChoicePlaces:
    """`migration.base.Places` of one choice. `told` gets the instance of each place, `mark` each place."""

    __slots__ = ("acquire", "available", "neighbours")

    def __init__(
        self, requests: RequestsInFlight, card: ModelCard, prompt: Prompt, priority: int, told: Told, mark: Marked
    ) -> None:
        self.neighbours = requests.neighbours
        self.acquire = partial(requests.acquire, card, prompt, priority, told, mark=mark)
        self.available = partial(requests.available, card, prompt)


class RequestRun:
    """All choices of one request; the first failure ends them all."""

    def __init__(self, sink: ResponseSink, stop: Callable[[], None] | None = None) -> None:
        self.sink, self._stop = sink, stop
        self.in_flight: dict[InFlightRequest, None] = {}
        self.over = False
        self.text, self.chunk, self.counted, self.finish = sink.text, sink.chunk, sink.counted, sink.finish

    def fail(self, error: RequestError) -> None:
        """One choice failed."""
        if not self.over:
            self.cancel()
            self.sink.fail(error)

    def cancel(self) -> None:
        """The client has left: free everything, call the sink no more."""
        self.over = True
        if self._stop is not None:
            self._stop()
        for request in list(self.in_flight):
            request.cancel()

    def completed(self, request: InFlightRequest) -> None:
        """A choice is over."""
        self.in_flight.pop(request, None)


async def _placed(place: Awaitable[Placement], stage: Stage, told: Told, mark: Marked) -> Placement:
    entered = stage.enter()
    if mark is not None:
        note, choice = mark
        note((ASKED, choice, perf_counter(), None))
    try:
        placement = await place
    finally:
        stage.leave(entered)
    if mark is not None:
        note((PLACED, choice, perf_counter(), placement.found))
    if told is not None:
        told(placement.instance)
    return placement


def prompt_of(job: Job, lowered: Lowered, index: int) -> Prompt:
    """What routing knows of a choice."""
    nvext, request = job.request.nvext, lowered.requests[index]
    override = nvext.router_config_override if nvext is not None else None
    return Prompt(
        job.id,
        lowered.prompt_tokens[index],
        lowered.blocks[index] if lowered.blocks else (),
        nvext.backend_instance_id if nvext is not None else None,
        override.overlap_score_weight if override is not None else None,
        override.router_temperature if override is not None else None,
        job.request.prompt_cache_key or "",
        form_words(request) if getattr(request, "grammar", None) is not None else None,
        job.needs,
        job.notes,
    )


def _priority(job: Job) -> int:
    """The key's, else `nvext.agent_hints.priority`: higher ones are served first when requests wait."""
    if job.priority is not None:
        return job.priority
    hints = job.request.nvext.agent_hints if job.request.nvext is not None else None
    priority = hints.get("priority") if isinstance(hints, dict) else None
    return priority if isinstance(priority, int) else 0


def _pass_logprobs(
    model: Model, sink: ResponseSink, index: int, delta: Logprobs | PromptLogprobs, ids: Sequence[int]
) -> None:
    """Give the log probabilities of `ids` to the sink, with the texts of the tokens."""

    def entry(token: int) -> tuple[str, bytes]:
        raw = model.tokenizer.token_bytes(token) or b""
        return raw.decode(errors="replace"), raw

    tops = delta.top or ((),) * len(delta.chosen)
    entries = [
        Logprob(*entry(token), value, tuple((*entry(other), logprob) for other, logprob in top))
        for token, value, top in zip(ids, delta.chosen, tops, strict=False)
    ]
    if isinstance(delta, PromptLogprobs):
        sink.prompt_logprobs(
            index,
            tuple(entries),
            [(token, *(other for other, _ in top)) for token, top in zip(ids, tops, strict=False)],
        )
    else:
        sink.logprobs(index, tuple(entries))
