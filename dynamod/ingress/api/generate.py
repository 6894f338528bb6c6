"""What endpoints that answer with text share. A subclass says how requests and answers of its route look."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from time import perf_counter
from typing import Any, ClassVar, Literal, TypeVar

import msgspec

from dynamod.http.context import RequestContext
from dynamod.http.metrics import ModelMetrics
from dynamod.http.settings import FrontendSettings
from dynamod.ingress.base import Job, Logprob
from dynamod.ingress.large import apart
from dynamod.ingress.lowering import Lowered, Served, check_served, lower_text, lower_tokens, unserved_by
from dynamod.ingress.parsing import NewParser
from dynamod.message.discovery import ModelCard
from dynamod.message.errors import BadRequest, unsupported
from dynamod.message.openai import Common
from dynamod.message.worker import Grammar
from dynamod.preprocess.model import Model, Prepared
from dynamod.preprocess.parse import LARGE

from .endpoint import EngineEndpoint
from .response import ResponseWriter
from .rules import either, only, set_to
from .stream import StreamWriter
from .unary import UnaryWriter
from .unserved import Unserved

G = TypeVar("G", bound=Common)
_RULES = (
    either(only(stream=(None, False), stream_options=(None,)), set_to("stream", True, prompt_logprobs=(None,))),
    only(best_of=(None,)),
    either(only(min_tokens=(0, None)), only(max_tokens=(None,), max_completion_tokens=(None,))),
)


class Generation(EngineEndpoint[G]):
    """Answers with text: one choice or several, whole or streamed.

    `kind`: the route's name for text engines. `prompt_ids_in_choice`: what is said of a prompt is a member of its
    choices, else of the whole answer. `unserved`: fields that would change the answer if they were served, with
    the values that would not.
    """

    streams = True
    kind: ClassVar[Literal["chat", "completion"]]
    id_prefix: ClassVar[str]
    chunk_object: ClassVar[str]
    prompt_ids_in_choice: ClassVar[bool]
    _unserved: ClassVar[Callable[[Any], tuple[Any, ...]]]  # the values of these fields of a request
    unserved: ClassVar[dict[str, tuple[Any, ...]]] = {
        "use_beam_search": (False,),
        "length_penalty": (1,),
        "allowed_token_ids": (),
        "bad_words": ([],),
        "truncate_prompt_tokens": (),
        "thinking_token_budget": (),
        "regex": (),
        "ebnf": (),
    }

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        harmless = only(**{name: (None, *values) for name, values in cls.unserved.items()})
        cls.rules = (harmless, *_RULES, *cls.rules)
        cls._unserved = staticmethod(attrgetter(*cls.unserved))

    def unserved_in(self, request: G, card: ModelCard | None = None, model: Model | None = None) -> Unserved:
        """By the values of the fields and, where the model is known, by what its engine can do."""
        found = type(self)._unserved(request)
        if found.count(None) != len(found):
            for (name, harmless), value in zip(self.unserved.items(), found, strict=True):
                if value is not None and value not in harmless:
                    yield name, f"`{name}` is not served"
        if request.prompt_logprobs is not None and request.stream:
            yield "prompt_logprobs", "`prompt_logprobs` with `stream` is not served"
        if request.best_of is not None and request.best_of != (request.n or 1):
            yield "best_of", "`best_of` other than `n` is not served"
        if request.nvext is not None and request.nvext.max_thinking_tokens is not None:
            yield "nvext.max_thinking_tokens", "`nvext.max_thinking_tokens` is not served"
        if card is not None:
            yield from unserved_by(request, card)

    def check(self, request: G) -> None:
        """Check that fields fit each other, and refuse fields that would change the answer but are not served."""
        for path, why in self.unserved_in(request):
            raise unsupported(path, why)
        limit, name = request.token_limit
        if limit is not None and request.min_tokens is not None and request.min_tokens > limit:
            raise BadRequest(f"`min_tokens` is {request.min_tokens}, above `{name}`: {limit}", param="min_tokens")
        if request.stream_options is not None and not request.stream:
            raise BadRequest("`stream_options` needs `stream`: true", param="stream_options")

    def bodies(self, body: bytes, request: G) -> Sequence[bytes]:
        """For a text engine, the body of each prompt."""
        return (body,)

    @abstractmethod
    def prompts(self, model: Model, request: G) -> Sequence[Prepared]:
        """The prompts of a request, checked. Raises BadRequest."""

    def parser(self, request: G, served: Served) -> NewParser | None:
        """What makes the parsers of its choices; None: text is answered as it is."""
        return None

    def echo(self, request: G) -> Sequence[str]:
        """What stands before the answers, by prompt; empty: nothing."""
        return ()

    @abstractmethod
    def delta(self, text: str, first: bool) -> dict[str, Any]:
        """The members of a chunk's choice that carry text, the text last. `first`: nothing of it was sent before."""

    @abstractmethod
    def ending(self, first: bool) -> dict[str, Any]:
        """The members of a choice's last chunk, which carries the finish reason."""

    @abstractmethod
    def part(self, part: Mapping[str, Any], first: bool) -> dict[str, Any] | None:
        """The members for a choice in a text engine's own chunk; None: it says nothing."""

    @abstractmethod
    def logprobs(self, entries: Sequence[Logprob], offset: int) -> dict[str, Any]:
        """Log probabilities; `offset`: characters of the answer's text before the first entry."""

    @abstractmethod
    def choice(self, index: int, text: str, reason: str, logprobs: Any, extra: Mapping[str, Any]) -> msgspec.Struct:
        """A choice of the whole answer. `extra`: what a text engine said besides the text, merged from its chunks."""

    def beside_form(
        self, request: G, served: Served, prompts: Sequence[Prepared], grammar: Grammar, parser: NewParser | None
    ) -> tuple[Grammar, NewParser | None]:
        """The form and the parser where the model may reason before it, or call tools; else as they are.

        `prompts`: none where only the worker renders them. Raises BadRequest.
        """
        return grammar, parser

    async def lower(self, job: Job, served: Served) -> Lowered:
        """One engine request per prompt and sample."""
        request: G = job.request  # type: ignore[assignment]  # a job's endpoint has read its request
        check_served(request, served.card)
        model, large = served.model, len(job.body) > LARGE
        if model is None:
            bodies = await apart(self.bodies, job.body, request) if large else self.bodies(job.body, request)
            parser, grammar = self.parser(request, served), await served.grammar(request)
            if grammar is not None:
                grammar, parser = self.beside_form(request, served, (), grammar, parser)
            return lower_text(job, request, served, self.kind, parser, bodies, grammar)
        prompts = await apart(self._prompts, served, model, request) if large else self._prompts(served, model, request)
        parser = self.parser(request, served)
        grammar = await served.grammar(request)
        if grammar is not None:
            grammar, parser = self.beside_form(request, served, prompts, grammar, parser)
        return await lower_tokens(job, request, served, prompts, parser=parser, grammar=grammar)

    def _prompts(self, served: Served, model: Model, request: G) -> Sequence[Prepared]:
        started = perf_counter()
        found = self.prompts(model, request)
        if served.times is not None and found[0].param == "messages" and not found[0].ids:
            served.times.template.observe(perf_counter() - started)
        return found

    def writer(
        self, request: G, job: Job, context: RequestContext, meter: ModelMetrics, settings: FrontendSettings
    ) -> ResponseWriter:
        """A writer of events or of the answer in one piece."""
        if request.stream:
            return StreamWriter(self, request, job.id, context.begun, meter, settings, context.request.version)
        return UnaryWriter(self, request, job.id, context.begun, meter, settings)
