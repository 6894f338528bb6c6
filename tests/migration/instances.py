"""A request in flight with a transport that only records: the test plays the instances. Not a test."""

import asyncio
import functools
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any, ParamSpec, Self

from dynamod.actor import testing
from dynamod.discovery.view import UNRESPONSIVE
from dynamod.features.isolation.stage import IsolationStage
from dynamod.features.prefill.stage import PromptStage
from dynamod.message import tokens
from dynamod.message.discovery import Instance
from dynamod.message.errors import Overloaded, PoisonRequest, RequestError
from dynamod.message.ingress import Accepted, Failed, Items, Text, Tokens
from dynamod.message.worker import Chat, Generate, Request, Stops
from dynamod.migration.base import Choice
from dynamod.migration.request import InFlightRequest
from dynamod.migration.stages import Ask, MakeStage
from dynamod.preprocess.output import TextOutput
from dynamod.transport.base import Sink

P = ParamSpec("P")


class Letters:
    """Stands for preprocess.output.Output: token 1 is "a", and so on; 0 is the end of a text."""

    def __init__(self, limit: int = 10**9) -> None:
        self.finish: str | None = None
        self.completion_tokens = 0
        self._limit = limit

    def push(self, ids: Any, engine_finish: str | None = None) -> str:
        text = ""
        for index in ids:
            if self.finish is not None:
                break
            self.completion_tokens += 1
            if index == 0:
                self.finish = "stop"
            else:
                text += chr(96 + index)
                if self.completion_tokens >= self._limit:
                    self.finish = engine_finish or "length"
        return text

    def token(self, index: int) -> str:
        return self.push((index,))

    def end(self, finish: str) -> str:
        self.finish = self.finish or finish
        return ""


class Client:
    """A listener that keeps what it hears."""

    def __init__(self) -> None:
        self.shown: list[tuple[str, int]] = []
        self.chunks: list[Any] = []
        self.finished: list[tuple[str, int, int | None]] = []
        self.errors: list[RequestError] = []
        self.cached: list[int | None] = []

    def text(self, index: int, text: str, tokens: int) -> None:
        assert not self.over
        self.shown.append((text, tokens))

    def chunk(self, index: int, chunk: Any) -> None:
        assert not self.over
        self.chunks.append(chunk)

    def counted(self, index: int, *, cached_tokens: int | None = None, reasoning_tokens: int | None = None) -> None:
        assert not self.over
        self.cached.append(cached_tokens)

    def finish(self, index: int, reason: str, completion_tokens: int, prompt_tokens: int | None = None) -> None:
        assert not self.over
        self.finished.append((reason, completion_tokens, prompt_tokens))

    def fail(self, error: RequestError) -> None:
        assert not self.over
        self.errors.append(error)

    @property
    def over(self) -> bool:
        return bool(self.finished or self.errors)

    @property
    def answer(self) -> str:
        return "".join(text for text, _ in self.shown)


class Send:
    """One request that reached an instance; its methods are what the instance says.

    `columns`: single tokens come as posts read them from a `Step`.
    """

    def __init__(self, instance: Instance, request: Request, sink: Sink, columns: bool) -> None:
        self.instance, self.request, self.sink = instance, request, sink
        self._columns = columns
        self._gone = False
        self.cancelled = self.confirmed = 0
        self.offset = 0

    def cancel(self) -> None:
        self.cancelled += 1

    def confirm(self) -> None:
        self.confirmed += 1

    @property
    def prior(self) -> list[int]:
        assert isinstance(self.request, Generate)
        return list(tokens.unpack(self.request.prior_output))

    def accept(self) -> None:
        self.sink.delta(Accepted(1))

    def tokens(self, *ids: int, finish: str | None = None, offset: int | None = None) -> None:
        at = self.offset if offset is None else offset
        if self._columns and len(ids) == 1 and finish is None and not self._gone and not self.cancelled:
            self.sink.token(at, *ids)
        else:
            self.sink.delta(Tokens(1, at, tokens.pack(ids), finish))
        self.offset = max(self.offset, at + len(ids))

    def cached(self, count: int) -> None:
        """What an engine has found of the prompt."""
        self.sink.delta(Tokens(0, self.offset, b"", None, count))

    def text(
        self, text: str, finish: str | None = None, count: int = 1, offset: int | None = None, prompt: int | None = None
    ) -> None:
        at = self.offset if offset is None else offset
        self.sink.delta(Text(1, at, text, count, finish, prompt))
        self.offset = max(self.offset, at + len(text))

    def items(self, *items: Any, finish: str | None = None, offset: int | None = None) -> None:
        at = self.offset if offset is None else offset
        self.sink.delta(Items(1, at, items, finish))
        self.offset = max(self.offset, at + len(items))

    def fail(self, error: str = "EngineFailed", message: str = "broken", **more: Any) -> None:
        self._gone = True
        self.sink.delta(Failed(1, error, message, **more))

    def lose(self) -> None:
        self._gone = True
        self.sink.lost("connection lost")

    def lose_link(self) -> None:
        self._gone = True
        self.sink.link_lost("connection lost")


class Charge:
    """Stands for a Placement: what is charged to an instance until it is released."""

    def __init__(self, air: "Air", instance: Instance, alone: bool = False) -> None:
        self.air, self.instance, self.alone = air, instance, alone
        self.shared = self.guilty = False
        self.untried = air.untried
        self.made_room: Sequence[Charge] = ()
        self.cause = ""
        self.leave: Any = None
        self.passes = 0

    def passed(self) -> None:
        assert self.alone
        self.alone = False
        self.passes += 1

    def prefill_completed(self) -> None:
        assert self.air.charged is self
        self.air.computed_at.append(self.instance.instance_id)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self.air.charged is self
        self.air.charged = None


class Air:
    """A request in flight and all around it. Instances whose ids are in `full` refuse in the call, as a transport
    inside the process does. After something was said `settle` lets the request act on it.
    """

    made: list["Air"] = []  # noqa: RUF012 - of one test, emptied by `run`

    def __init__(
        self,
        instances: int = 3,
        *,
        text: bool = False,
        exact: bool = True,
        limit: int = 3,
        max_tokens: int | None = None,
        full: Collection[int] = (),
        logprobs: Any = None,
        columns: bool = False,
        busy: Collection[int] = (),
        patient: bool = False,
        longest: int | None = None,
        request: Any = None,
        output: Any = None,
        suspect: bool = False,
        prefill: Any = None,
        needs_prefill: bool = False,
        outer: Sequence[MakeStage] = (),
    ) -> None:
        self.crashes: dict[int, str] = {}  # instance -> why its process crashed
        self.patience: list[float | None] = []  # how long it was to be waited for the cause of an end
        self.suspected: list[str] = []
        self.acquitted = 0
        self.guilty: list[str] = []
        self.alone: list[bool] = []  # of each acquire
        self.acquits = False  # whether each suspect gets an ordinary place
        self.untried = False  # whether that is for lack of time
        self.made.append(self)
        self.too_longs = 0
        self._columns = columns
        self.busy = set(busy)  # ready, and nothing may be sent to them now
        self.patient, self.waiting = patient, 0
        self.freed = asyncio.Event()
        self.judging = asyncio.Event()
        self.judging.set()
        self.broken: list[bool] = []
        self.settlings: list[tuple[float, bool]] = []
        self.instances = [Instance("n", "c", "e", number, {}) for number in range(1, instances + 1)]
        self.full = full
        self.sends: list[Send] = []
        self.client = Client()
        self.charged: Charge | None = None
        self.computed_at: list[int] = []
        self.completed = 0
        self.cut = max_tokens
        if request is None and text:
            request = Chat("r", "m", "chat", b"{}", max_tokens)
            output = TextOutput(Stops(max_tokens=max_tokens))
        elif request is None:
            request = Generate("r", "m", tokens.pack([9, 9]), Stops(max_tokens=max_tokens))
            output = Letters(max_tokens or 10**9)
        stages: list[Any] = [*outer, functools.partial(IsolationStage, self, suspect)]
        if prefill is not None:
            stages.insert(0, functools.partial(PromptStage, prefill, needs_prefill))
        choice = Choice(
            request,
            output,
            self.client,
            0,
            exact=exact and not text,
            limit=limit,
            longest=longest,
            prompt_tokens=2,
            logprobs=logprobs,
            stages=stages,
        )
        now = asyncio.get_running_loop().time
        around: Any = self  # transport, places and counts
        self.inflight = InFlightRequest(choice, around, around, now, around, self._landed)

    # The dispatcher: what is charged is on the books until it is released.

    def neighbours(self, lost: Instance) -> list[int]:
        return [one.instance_id for one in self.instances if one.node == lost.node != ""]

    async def acquire(self, ask: Ask) -> Charge:
        tried, alone = ask.exclude, ask.alone
        assert ask.again is (bool(self.sends) or len(self.alone) > 0)
        self.alone.append(alone)
        assert self.charged is None, "the account of the attempt before must be closed"
        while True:
            there = [one for one in self.instances if one.instance_id not in tried]
            free = next((one for one in there if one.instance_id not in self.busy), None)
            if free is not None:
                self.charged = Charge(self, free, alone and not self.acquits)
                return self.charged
            self.waiting += 1
            if not self.patient:
                raise Overloaded("nobody can take it", retry_after=1.0)
            try:
                async with asyncio.timeout(30):
                    await self.freed.wait()
            except TimeoutError:
                why = "no instance took the request within 30 s: all are busy"
                raise Overloaded(why, retry_after=1.0) from None

    def available(self, tried: Collection[int], received: int) -> bool:
        return any(instance.instance_id not in tried for instance in self.instances)

    def free(self) -> None:
        """No instance is busy any more."""
        self.busy.clear()
        self.freed.set()

    # Who knows why instances ended.

    async def cause(self, instance: Instance, timeout: float | None = None) -> str:
        assert (timeout is None) is (instance.endpoint != "prefill")
        self.patience.append(timeout)
        await self.judging.wait()
        return self.crashes.get(instance.instance_id, "")

    def hangs(self, instance: Instance) -> bool:
        return self.crashes.get(instance.instance_id) == UNRESPONSIVE

    def suspect(self, request: Request) -> None:
        self.suspected.append(request.request_id)

    def acquit(self, request: Request) -> None:
        self.acquitted += 1

    def convict(self, request: Request, cause: str) -> RequestError:
        self.guilty.append(cause)
        return PoisonRequest(cause)

    # Its moves.

    def broke(self, ongoing: bool) -> None:
        self.broken.append(ongoing)

    def too_long(self) -> None:
        self.too_longs += 1

    def settled(self, seconds: float, ok: bool) -> None:
        self.settlings.append((seconds, ok))

    def _landed(self, inflight: InFlightRequest) -> None:
        assert inflight is self.inflight
        self.completed += 1

    def open(self, instance: Instance, request: Request, sink: Sink) -> Send:
        send = Send(instance, request, sink, self._columns)
        self.sends.append(send)
        if instance.instance_id in self.full:
            send.fail("Overloaded", "full", retry=True)
        return send

    async def close(self) -> None: ...

    async def start(self) -> Send:
        """Let it run, until the first attempt is open."""
        await self.run()
        return self.sends[-1]

    async def run(self) -> None:
        """Let it run as far as it gets by itself."""
        self.task = asyncio.get_running_loop().create_task(self.inflight.run())
        await self.settle()

    async def settle(self) -> None:
        """Let all that is due happen; no time passes."""
        for _ in range(10):
            await asyncio.sleep(0)
        if self.inflight.over:
            assert self.charged is None
            assert self.task.done()

    @property
    def last(self) -> Send:
        return self.sends[-1]

    @property
    def error(self) -> RequestError:
        (error,) = self.client.errors
        assert self.inflight.over
        assert self.completed == 1
        return error


def run(test: Coroutine[Any, Any, None]) -> None:
    """`dynamod.actor.testing.run`, with an end for requests that the test leaves in flight."""

    async def main() -> None:
        Air.made.clear()
        await test
        for air in Air.made:
            air.inflight.cancel()
            await air.settle()

    testing.run(main())


def virtual(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """`dynamod.actor.testing.virtual` by the `run` above."""

    @functools.wraps(test)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        run(test(*args, **kwargs))

    return wrapped


async def passes(air: Any, limits: Any, seconds: float, every: float = 0.5) -> None:
    """Let time pass as the processor does: with a look at the clocks twice a second."""
    for _ in range(round(seconds / every)):
        await asyncio.sleep(every)
        if not air.inflight.over:
            air.inflight.expire(limits)
            await air.settle()
