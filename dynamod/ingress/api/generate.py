"""What endpoints that answer with text share: how a request is lowered, and which writer takes its answer."""

import time
from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Literal, TypeVar, cast

from aiohttp import HttpVersion11

from dynamod.http.context import RequestContext
from dynamod.http.metrics import ModelMetrics
from dynamod.ingress.base import Job
from dynamod.ingress.lowering import Lowered, Served, check_served, lower_text, lower_tokens
from dynamod.message.openai import Common
from dynamod.preprocess.model import Model, Prepared

from .chunks import ChunkFrames
from .endpoint import EngineEndpoint, Frontend
from .form import Form, Head
from .response import ResponseWriter
from .stream import StreamWriter
from .unary import UnaryWriter

G = TypeVar("G", bound=Common)


class Generation(EngineEndpoint[G], Form):
    """Answers with text: one choice or several, whole or streamed.

    `kind`: the route's name for text engines. `continuing`: answers go on from their prompts.
    """

    streams = True
    kind: ClassVar[Literal["chat", "completion"]]
    continuing: ClassVar[bool] = False

    @abstractmethod
    def prompts(self, model: Model, request: G) -> Sequence[Prepared]:
        """The prompts of a request, checked for the model. Raises BadRequest."""

    def echo(self, request: G) -> Sequence[str]:
        """What stands before the answers, by prompt; empty: nothing."""
        return ()

    async def lower(self, job: Job, served: Served) -> Lowered:
        """One engine request per prompt and sample. Raises BadRequest."""
        request = cast("G", job.request)  # a job's endpoint is the one that has read its request
        check_served(request, served.card)
        if served.model is None:
            return lower_text(job, request, served.card, self.kind)
        return await lower_tokens(job, request, served, self.prompts(served.model, request), self.continuing)

    def streamed(self, request: G) -> bool:
        """As the request says."""
        return bool(request.stream)

    def writer(
        self, frontend: Frontend, context: RequestContext, request: G, job: Job, meter: ModelMetrics
    ) -> ResponseWriter:
        """A writer of events or of the answer in one piece."""
        head = Head(job.id, int(time.time()), request.model)
        samples, echo = request.n or 1, self.echo(request)
        if not request.stream:
            return UnaryWriter(self, head, meter, context.begun, samples=samples, echo=echo)
        options = request.stream_options
        usage = frontend.settings.force_include_usage or (options is not None and options.include_usage)
        return StreamWriter(
            ChunkFrames(self, head, chunked=context.request.version >= HttpVersion11, usage_null=usage),
            meter,
            context.begun,
            samples=samples,
            echo=echo,
            usage=usage,
            usage_each=options is not None and options.continuous_usage_stats,
            keep_alive=frontend.settings.keep_alive,
            request_id=job.id if request.wants("request_id") else "",
        )
