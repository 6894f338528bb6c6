"""The backend of models on demand: a processor's, whose requests wait until their model is loaded."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

from dynamod.actor import ActorUnreachable, DeadlineExceeded, Ref
from dynamod.ingress.api.stream import StreamWriter
from dynamod.ingress.base import Job, ResponseSink, Run
from dynamod.ingress.processor import ProcessorBackend
from dynamod.message.discovery import ModelCard
from dynamod.message.errors import BadRequest, Internal, Overloaded, RequestError

from .keeper import Claim, ModelKeeper, Release
from .settings import duration

if TYPE_CHECKING:
    from dynamod.ingress.api.endpoint import Endpoint

log = logging.getLogger("dynamod.frontend")

NO_LIMIT = 1e9
"""Seconds to wait for a model where no limit is set."""
FIRST, TELL = 0.25, 1.0
"""Seconds until the first comment about a model that loads, so that a refusal at once is a status; and between two."""


class ClaimedSink:
    """Passes an answer on and calls `over` when its last choice is complete, or it fails."""

    def __init__(self, sink: ResponseSink, over: Callable[[], None]) -> None:
        self._sink, self._over, self._left = sink, over, 0
        self.text, self.logprobs, self.chunk = sink.text, sink.logprobs, sink.chunk  # the hot path is as it was
        self.counted, self.echoed, self.prompt_logprobs = sink.counted, sink.echoed, sink.prompt_logprobs
        self.placed, self.recorded = sink.placed, sink.recorded

    def started(self, choices: int, prompt_tokens: int, annotations: Mapping[str, Any]) -> None:
        """So many choices will finish."""
        self._left = choices
        self._sink.started(choices, prompt_tokens, annotations)

    def finish(self, index: int, reason: str, completion_tokens: int, prompt_tokens: int | None = None) -> None:
        """One choice is complete."""
        self._left -= 1
        self._sink.finish(index, reason, completion_tokens, prompt_tokens)
        if self._left <= 0:
            self._over()

    def fail(self, error: RequestError) -> None:
        """The request ends here."""
        self._sink.fail(error)
        self._over()


class ClaimedRun:
    """A request that is being worked on, under a claim."""

    def __init__(self, run: Run, over: Callable[[], None]) -> None:
        self.inner, self._over = run, over

    def cancel(self) -> None:
        """The client disconnected."""
        self.inner.cancel()
        self._over()


class LoadingRun:
    """A stream whose model is not ready. `say()`: what its client may know now. `begin()`: wait, then start."""

    def __init__(self, sink: StreamWriter, say: Callable[[], str], begin: Callable[[], Awaitable[Run]]) -> None:
        self._sink, self._say, self._begin = sink, say, begin
        self._run: Run | None = None
        self.task: asyncio.Task[Any] | None = None

    async def wait(self) -> None:
        """Send comments until the model is ready, or the request fails."""
        self._timer = asyncio.get_running_loop().call_later(FIRST, self._tell)
        try:
            self._run = await self._begin()
        except RequestError as error:
            self._sink.fail(error)
        except asyncio.CancelledError:
            self._sink.fail(Overloaded("the processor is ending", retry_after=1.0))
            raise
        except Exception:
            log.exception("a request failed behind the load of its model")
            self._sink.fail(Internal("internal error; the log has it"))
        finally:
            self._timer.cancel()

    def _tell(self) -> None:
        self._sink.comment(self._say())
        self._timer = asyncio.get_running_loop().call_later(TELL, self._tell)

    def cancel(self) -> None:
        """The client disconnected."""
        if self._run is not None:
            self._run.cancel()
        elif self.task is not None:
            self.task.cancel()


class OnDemandBackend:
    """`names`: each name for clients, aliases too, with that of its model. `places`: where models are served when they
    are loaded, dyn://... `timeout`: seconds to wait for a model.
    """

    def __init__(
        self,
        inner: ProcessorBackend,
        keeper: ModelKeeper,
        ref: Ref,
        names: Mapping[str, str],
        places: Mapping[str, str],
        timeout: float | None,
    ) -> None:
        self._inner, self.keeper, self._ref, self._timeout = inner, keeper, ref, timeout
        self._names, self._places = names, places
        self._numbers = count(1)
        self.model, self.parts = inner.model, inner.parts

    def health(self) -> Mapping[str, Any]:
        """As the processor's; models that can be loaded have endpoints too."""
        found, cards = self._inner.health(), self._inner.askable()
        places = {place for name, place in self._places.items() if name in cards}
        return {**found, "endpoints": sorted(places.union(found["endpoints"]))}

    @property
    def endpoints(self) -> "tuple[Endpoint, ...]":
        """Those of models on demand."""
        from .api import endpoints

        return endpoints(self)

    def models(self) -> Mapping[str, ModelCard]:
        """Models that a request may name, loaded or not; an alias has its model's card."""
        return self._with_aliases(self._inner.models())

    def askable(self) -> Mapping[str, ModelCard]:
        """Those of them that can be asked now, loaded or not."""
        return self._with_aliases(self._inner.askable())

    def _with_aliases(self, cards: Mapping[str, ModelCard]) -> Mapping[str, ModelCard]:
        aliases = {alias: cards[name] for alias, name in self._names.items() if alias != name and name in cards}
        return {**cards, **aliases} if aliases else cards

    async def ask(self, message: Any, model: str) -> Any:
        """The keeper's reply about a model. Raises Overloaded, also when it does not come in time."""
        timeout = NO_LIMIT if self._timeout is None else self._timeout
        try:
            return await self._ref.ask(message, timeout=timeout)
        except DeadlineExceeded:
            after = self.keeper.estimate(model)
            raise Overloaded(f"the model {model!r} was not ready within {timeout:g} s", retry_after=after) from None
        except ActorUnreachable as error:
            raise Overloaded(f"the processor is not available: {error}", retry_after=1.0) from None

    async def start(self, job: Job, sink: ResponseSink) -> Run:
        """Wait for the model, of an adapter that below it, then begin to serve. Raises RequestError."""
        asked = self._inner.models().get(job.request.model)
        model = asked.base if asked is not None and asked.parent else job.request.model
        if model not in self._names:
            return await self._inner.start(job, sink)  # of another graph
        claim = Claim(model, f"{next(self._numbers)}", _keep_alive(job))
        begin = partial(self._begin, job, sink, claim)
        if not (job.request.send_loading_state and isinstance(sink, StreamWriter)) or self._state(model)[0] == "ready":
            return await begin()
        loading = LoadingRun(sink, lambda: "{} is {} for {:.0f} s".format(model, *self._state(model)), begin)
        loading.task = self.keeper.context.task(loading.wait(), f"wait for {model}")
        return loading

    def _state(self, model: str) -> tuple[str, float]:
        report = self.keeper.report(model)
        return report.state, report.seconds

    async def _begin(self, job: Job, sink: ResponseSink, claim: Claim) -> Run:
        if self._state(claim.model)[0] != "ready":
            await self._inner.check(job)  # no model leaves for a request that is wrong
        over = self._releaser(claim)
        try:
            await self.ask(claim, claim.model)
            return ClaimedRun(await self._inner.start(job, ClaimedSink(sink, over)), over)
        except BaseException:
            over()
            raise

    @asynccontextmanager
    async def held(self, model: str) -> AsyncGenerator[None]:
        """See `ProcessorContext`; of a model of another graph nothing is held."""
        if model not in self._names:
            yield
            return
        claim = Claim(model, f"{next(self._numbers)}")
        try:
            await self.ask(claim, model)
            yield
        finally:
            self._releaser(claim)()

    def _releaser(self, claim: Claim) -> Callable[[], None]:
        def over() -> None:
            if not claim.left:
                claim.left = True
                self._ref.send_nowait(Release(claim))

        return over


def _keep_alive(job: Job) -> float | None:
    value = job.request.keep_alive
    try:
        return None if value is None else duration(value)
    except ValueError as error:
        raise BadRequest(f"`keep_alive`: {error}", param="keep_alive") from None
