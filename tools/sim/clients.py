"""The workload: requests with shared prefixes whose answers are known, and the clients who read them."""

import random as random_module
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from dynamod.ingress.api.completions import Completions
from dynamod.ingress.base import Job, Run
from dynamod.ingress.in_flight import RequestRun
from dynamod.kvcache.hashes import block_hashes
from dynamod.message import tokens
from dynamod.message.discovery import Instance
from dynamod.message.errors import RequestError
from dynamod.message.openai import CompletionRequest
from dynamod.message.worker import Generate
from dynamod.migration.request import InFlightRequest

from .events import Log
from .model import reference
from .places import Place
from .shape import BLOCK, MODEL, POISON, Poison, Shape
from .wire import Process

_ENDPOINT = Completions()

End = Literal["", "finished", "failed", "left", "cut off", "refused"]


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """A request before it is sent. `leaves`: tokens after which the client goes; None: it stays."""

    number: int
    at: float
    prompt: tuple[int, ...]
    max_tokens: int
    seed: int
    leaves: int | None
    ingress: float  # a number from 0 to 1 that chooses among those that are there
    session: str = ""  # its prompt_cache_key
    poison: Poison | None = None
    model: str = MODEL


LONG = 200
"""Tokens that clients ask for who leave before: what goes on for them would go on for long."""


def workload(random: random_module.Random, shape: Shape, poison: Sequence[Poison] = ()) -> list[PlannedRequest]:
    """A workload: bursts of requests behind a few prefixes that many share, `poison` among them."""
    prefixes = [tuple(random.choices(range(1, 1000), k=random.choice((32, 64, 96)))) for _ in range(4)]
    found: list[PlannedRequest] = []
    at = 0.0
    for number in range(shape.requests):
        at += random.expovariate(shape.requests / shape.span) if random.random() < 0.8 else 0.0
        prefix = random.choice(prefixes)
        tail = tuple(random.choices(range(1, 1000), k=random.randint(1, 40)))
        most = random.randint(3, 28)
        leaves = random.randint(0, most) if "leave" in shape.faults and random.random() < 0.1 else None
        seed, ingress = random.getrandbits(31), random.random()
        session = f"s{random.randrange(6)}" if random.random() < 0.5 else ""
        most = most if leaves is None else LONG
        found.append(PlannedRequest(number, at, prefix + tail, most, seed, leaves, ingress, session))
    for kind in poison:
        number = random.randrange(len(found))
        prompt = (*found[number].prompt, POISON[kind])
        found[number] = replace(found[number], prompt=prompt, leaves=None, poison=kind)
    return found


class Client:
    """Who sent a request: a `ResponseSink` that knows what it has to get."""

    def __init__(
        self, planned: PlannedRequest, log: Log, now: Callable[[], float], failed: "Callable[[Client], None]"
    ) -> None:
        self.planned, self._log, self._now, self._failed = planned, log, now, failed
        self.id = f"r{planned.number}"
        self.expected = reference(list(planned.prompt), planned.seed, planned.max_tokens)
        self.text_so_far = ""
        self.tokens = 0
        self.sends: list[int] = []  # instances that it was sent to
        self.at, self.since = "", 0.0  # the process of the last one, and when
        self.on = self.base = 0  # the instance of the last one, and the tokens before it
        self.handed = False  # a prefill worker has its prompt
        self.computing = ""  # the process of that prefill worker, from when it is asked until the next token
        self.needs_prefill = False  # who answers computes no prompts
        self.asked: set[int] = set()  # instances that were asked to compute its prompt
        self.vain: set[int] = set()  # instances that waited for its prompt in vain: they may have it again
        self.hit: set[str] = set()  # processes that crashed or hung while it was there
        self.room: set[str] = set()  # processes that it left only for the trial of another
        self.relinked = False  # a link between nodes has failed while it was there: it may try all again
        self.strikes = 0  # workers that it has crashed or stopped
        self.blocks = frozenset(block_hashes(tokens.pack(planned.prompt), BLOCK))
        self.end: End = ""
        self.error: RequestError | None = None
        self.begun = self.active = now()
        self.place: Place | None = None
        self.process: Process | None = None  # the ingress process that serves it
        self.run: Run | None = None
        self._last: InFlightRequest | None = None
        self.ended: Callable[[Client], None] = lambda _client: None
        self._announced = False

    def job(self) -> Job:
        """The request as it comes in."""
        planned = self.planned
        request = CompletionRequest(
            model=planned.model,
            prompt=list(planned.prompt),
            max_tokens=planned.max_tokens,
            seed=planned.seed,
            stream=True,
            prompt_cache_key=planned.session or None,
        )
        return Job(self.id, _ENDPOINT, request, b"")

    def ends(self, end: End, detail: str = "") -> None:
        """It is over."""
        if self.end:
            self._log.violate("one end", f"{self.id} {end} after it was {self.end}: {detail}")
            return
        self.end = end
        self.ended(self)
        self._log("request", f"{self.id} {end} with {self.tokens} tokens, {len(self.sends)} sends{detail}")

    def was_at(self, process: Process, *, untried: bool = False) -> None:
        """Count a worker that crashed or hung while it had the request or its prompt.

        `untried`: the worker has not begun the trial for which others have left: it ended in a step that had these.
        """
        if process.name in (self.at, self.computing) or (untried and process.name in self.room):
            self.hit.add(process.name)

    def waits_at(self, process: Process) -> bool:
        """Whether the request is at a worker that has not taken it."""
        return (
            self.at == process.name and not self.end and (found := self._in_flight) is not None and not found.accepted
        )

    def leave(self) -> None:
        """The client goes away."""
        if not self.end:
            self.ends("left")
            if self.run is not None:
                self.run.cancel()

    def sent(self, instance: Instance, request: Generate) -> None:
        """The ingress sends the request to an instance."""
        prior = tokens.count(request.prior_output)
        if self.needs_prefill and self.tokens == self.base:
            self.vain.add(self.on)
        self.handed = request.handoff is not None and not request.handoff.stored
        self.computing = self.computing if self.handed else ""
        handed = ", prompt computed elsewhere" if self.handed else ""
        self._log("send", f"{self.id} to {instance.process} behind {prior} tokens{handed}")
        self.active = self._now()
        if self.end:
            self._log.violate("nothing after the end", f"{self.id} was sent again after it was {self.end}")
        room = self._made_room()
        if self.on in room:
            self.room.add(self.at)
        self.room.discard(instance.process)
        again = room | self.vain  # seen at each send: later the request may have left its run
        met = instance.instance_id in self.sends and instance.instance_id not in again
        if met and not self.relinked:
            self._log.violate("no instance twice", f"{self.id} was sent to {instance.process} again")
        if prior != self.tokens:
            self._log.violate("prior output", f"{self.id}: {prior} tokens are handed on, the client has {self.tokens}")
        self.sends.append(instance.instance_id)
        self.at, self.since = instance.process, self.active
        self.on, self.base = instance.instance_id, self.tokens

    @property
    def _in_flight(self) -> InFlightRequest | None:
        """The request at its ingress, also that of a model on demand."""
        run = getattr(self.run, "inner", self.run)  # of a request under a claim
        if self._last is None and isinstance(run, RequestRun):
            self._last = next(iter(run.in_flight), None)  # which leaves the run before the client hears of its end
        return self._last

    def _made_room(self) -> set[int]:
        """Instances to which the request may come back, because it left them only for the trial of another."""
        return found.tried.made_room if (found := self._in_flight) is not None else set()

    @property
    def bound(self) -> str:
        """The process for which its prompt is being computed elsewhere, or that has it; empty while it has no place."""
        instance = found.instance if (found := self._in_flight) is not None else None
        return instance.process if instance is not None else ""

    @property
    def pauses(self) -> bool:
        """Whether it has left its instance, and is at no other: so it is while the links to all of them fail."""
        return not self.bound and (found := self._in_flight) is not None and not found.attempting

    @property
    def waits_for_prompt(self) -> bool:
        """Whether it has a place, and its prompt is being computed elsewhere."""
        return bool(self.bound) and (found := self._in_flight) is not None and not found.attempting

    @property
    def can_move(self) -> bool:
        """Whether another instance would take it, if its own one failed now."""
        return (found := self._in_flight) is not None and (found.stages.suspect or found.moves.possible)

    @property
    def displaced(self) -> int:
        """How often it made room for the trial of another."""
        return found.tried.displaced if (found := self._in_flight) is not None else 0

    @property
    def tries(self) -> int:
        """How often it was sent, without those sends after which it made room, or was refused by who was ending."""
        refused = found.tried.refused if (found := self._in_flight) is not None else 0
        return len(self.sends) - self.displaced - refused

    # ingress.base.ResponseSink.

    def started(self, choices: int, prompt_tokens: int, annotations: Mapping[str, Any]) -> None:
        """The ingress has taken the request, once."""
        if self._announced or choices != 1 or prompt_tokens != len(self.planned.prompt):
            self._log.violate("started once", f"{self.id}: {choices} choices of {prompt_tokens} tokens")
        self._announced = True

    def text(self, index: int, text: str, tokens: int) -> None:
        """The next part of the reference text."""
        self._expect_open("text")
        self.text_so_far += text
        self.tokens += tokens
        self.computing = ""
        if not self.expected.startswith(self.text_so_far):
            self._log.violate("the text is the reference", f"{self.id} got {self._difference()}")
        if self.planned.leaves is not None and self.tokens >= self.planned.leaves:
            self.leave()

    def logprobs(self, index: int, entries: tuple[Any, ...]) -> None:
        """Nobody asked for them."""
        self._log.violate("nothing unasked", f"{self.id} got log probabilities")

    def recorded(self, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]) -> None:
        """Nobody asked for them."""
        self._log.violate("nothing unasked", f"{self.id} got its ids")

    def prompt_logprobs(self, index: int, entries: tuple[Any, ...], ids: Sequence[Sequence[int]]) -> None:
        """Nobody asked for them."""
        self._log.violate("nothing unasked", f"{self.id} got log probabilities of its prompt")

    def placed(self, index: int, worker: Instance | None, prefill: Instance | None = None) -> None:
        """Nobody asked for it."""
        self._log.violate("nothing unasked", f"{self.id} got its workers")

    def echoed(self, texts: Sequence[str]) -> None:
        """Nobody asked for them."""
        self._log.violate("nothing unasked", f"{self.id} got its prompt")

    def chunk(self, index: int, chunk: Mapping[str, Any]) -> None:
        """Nobody asked for one."""
        self._log.violate("nothing unasked", f"{self.id} got a chunk")

    def counted(self, index: int, *, cached_tokens: int | None = None, reasoning_tokens: int | None = None) -> None:
        """No more was cached than there is, and it is said before the answer."""
        self._expect_open("counted")
        if cached_tokens is None or not 0 <= cached_tokens <= len(self.planned.prompt) or self.tokens:
            self._log.violate("cached tokens", f"{self.id}: {cached_tokens} are cached, behind {self.tokens} tokens")

    def finish(self, index: int, reason: str, completion_tokens: int, prompt_tokens: int | None = None) -> None:
        """All of the reference text has come."""
        self._expect_open("finish")
        self.ends("finished", f" ({reason})")
        if self.text_so_far != self.expected or completion_tokens != self.planned.max_tokens:
            self._log.violate("finished is complete", f"{self.id} got {completion_tokens} tokens, {self._difference()}")

    def fail(self, error: RequestError) -> None:
        """The request has failed; `failed` judges whether it may."""
        if self.process is not None and not self.process.alive:
            return  # what a process that is killed still wants to write reaches nobody
        self._expect_open("fail")
        self.error = error
        over = bool(self.end)
        self.ends("failed", f": {type(error).__name__}: {error}")
        if not over:
            self._failed(self)

    def _expect_open(self, what: str) -> None:
        if self.end:
            self._log.violate("nothing after the end", f"{self.id} gets {what} after it was {self.end}")
        self.active = self._now()

    def _difference(self) -> str:
        got, expected = self.text_so_far, self.expected
        pairs = enumerate(zip(got, expected, strict=False))
        place = next((at for at, (one, other) in pairs if one != other), min(len(got), len(expected)))
        end = place + 20
        return f"{got[place:end]!r} at character {place} of {len(expected)}, not {expected[place:end]!r}"
