"""The part of a processor that keeps models: requests wait until their model is loaded."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from itertools import count
from typing import Any

from dynamod.actor import ActorUnreachable, DeadlineExceeded, Ref
from dynamod.ingress.api.stream import StreamWriter
from dynamod.ingress.base import Job, ResponseSink, Run
from dynamod.ingress.parts import Begin, ProcessorContext, ProcessorPart
from dynamod.message.discovery import ModelCard
from dynamod.message.errors import BadRequest, Internal, Overloaded, RequestError

from .keeper import Claim, ModelKeeper, Release, Unload
from .parked import has_worker
from .reports import ModelReport
from .settings import duration

log = logging.getLogger("dynamod.frontend")

NO_LIMIT = 1e9
"""Seconds to wait for a model where no limit is set."""
PART = "models"
"""Its name among the parts of the processor."""
FIRST, TELL = 0.25, 1.0
"""Seconds until the first comment about a model that loads, so that a refusal at once is a status; and between two."""


class Conflict(RequestError):
    """Requests wait for the model."""

    status = 409
    kind = "invalid_request_error"
    code_default = "model_in_use"


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
            log.exception("a request failed after the load of its model")
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


class ModelsOnDemand(ProcessorPart):
    """What the processor of the kind `ondemand` has in addition to the part of each processor: models with a keeper.

    `names`: each name for clients, aliases too, with the name of its model. `places`: by model, where its worker serves
    it, dyn://...
    """

    def __init__(
        self,
        context: ProcessorContext,
        keeper: ModelKeeper,
        ref: Ref,
        names: Mapping[str, str],
        places: Mapping[str, str],
    ) -> None:
        super().__init__(context)
        self.keeper, self._ref, self._names, self._places = keeper, ref, names, places
        self._numbers = count(1)

    def starts(self, card: ModelCard) -> bool:
        """Whether the worker of a model that is wanted starts again, so that requests that had begun wait for it."""
        name = card.base
        coming = name in self._places and self.keeper.core.models[name].state in ("loading", "ready")
        return coming and not has_worker(self.context.view, card)

    def places(self, names: Collection[str]) -> set[str]:
        """Where workers of these models are started."""
        return {place for name, place in self._places.items() if name in names}

    def aliases(self) -> Mapping[str, str]:
        """Those of `models:`."""
        return self._names

    def states(self) -> Mapping[str, ModelReport]:
        """All models of `models:`."""
        return {one.model: one for one in self.keeper.published.all()}

    async def ask(self, message: Any, model: str) -> Any:
        """The keeper's reply about a model. Raises Overloaded, also when the reply does not come in time."""
        timeout = NO_LIMIT if self.context.queue_timeout is None else self.context.queue_timeout
        try:
            return await self._ref.ask(message, timeout=timeout)
        except DeadlineExceeded:
            after = self.keeper.published.estimate(model)
            raise Overloaded(f"the model {model!r} was not ready within {timeout:g} s", retry_after=after) from None
        except ActorUnreachable as error:
            raise Overloaded(f"the processor is not available: {error}", retry_after=1.0) from None

    async def start(self, job: Job, sink: ResponseSink, begin: Begin) -> Run:
        """Wait for the model, of an adapter for the model below it, then begin."""
        asked = self.context.cards().get(job.request.model)
        model = asked.base if asked is not None and asked.parent else job.request.model
        if model not in self._names:
            return await begin(job, sink)
        claim = Claim(model, f"{next(self._numbers)}", _keep_alive(job.request.keep_alive))
        claimed = partial(self._begin, job, sink, claim, begin)
        if not (job.request.send_loading_state and isinstance(sink, StreamWriter)) or self._state(model)[0] == "ready":
            return await claimed()
        loading = LoadingRun(sink, lambda: "{} is {} for {:.0f} s".format(model, *self._state(model)), claimed)
        loading.task = self.context.spawn(loading.wait(), f"wait for {model}")
        return loading

    def _state(self, model: str) -> tuple[str, float]:
        report = self.keeper.published.of(model)
        return report.state, report.seconds

    async def _begin(self, job: Job, sink: ResponseSink, claim: Claim, begin: Begin) -> Run:
        if self._state(claim.model)[0] != "ready":
            await self.context.check(job)  # no model leaves for a request that is wrong
        over = self._releaser(claim)
        try:
            await self.ask(claim, claim.model)
            return ClaimedRun(await begin(job, ClaimedSink(sink, over)), over)
        except BaseException:
            over()
            raise

    @asynccontextmanager
    async def held(self, model: str) -> AsyncGenerator[None]:
        """Keep the model loaded meanwhile."""
        async with self._claimed(model, None) if model in self._names else nullcontext():
            yield

    @asynccontextmanager
    async def _claimed(self, model: str, keep_alive: float | None) -> AsyncGenerator[None]:
        claim = Claim(model, f"{next(self._numbers)}", keep_alive)
        try:
            await self.ask(claim, model)
            yield
        finally:
            self._releaser(claim)()

    async def load_model(self, model: str, keep_alive: float | str | None = None) -> bool:
        """Load one of `models:`."""
        if model not in self._names:
            return False
        async with self._claimed(self._names[model], _keep_alive(keep_alive)):
            return True

    async def unload_model(self, model: str) -> bool:
        """Begin to unload one of `models:`. Raises Conflict."""
        if model not in self._names:
            return False
        if not await self.ask(Unload(self._names[model]), model):
            raise Conflict(f"requests wait for the model `{model}` to be loaded", param="model")
        return True

    def _releaser(self, claim: Claim) -> Callable[[], None]:
        def over() -> None:
            if not claim.left:
                claim.left = True
                self._ref.send_nowait(Release(claim))

        return over


def _keep_alive(value: float | str | None) -> float | None:
    try:
        return None if value is None else duration(value)
    except ValueError as error:
        raise BadRequest(f"`keep_alive`: {error}", param="keep_alive") from None
