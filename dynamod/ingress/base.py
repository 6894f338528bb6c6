"""The interface between the API and the backend that serves models: jobs in, calls of a response sink out.

An endpoint makes a `Job` of each request and a `ResponseSink` for its answer. The backend finds the model, lets the
endpoint lower the job to engine requests, and sends those. From then on the sink is called directly, from the event
loop, once per engine step and stream: no queue and no task switch per token.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from dynamod.message.discovery import Instance, ModelCard
from dynamod.message.errors import RequestError
from dynamod.message.openai import EngineFields
from dynamod.observe.records import Facts
from dynamod.observe.timeline import Timeline
from dynamod.router.decision import Decision
from dynamod.router.eligible import Need

if TYPE_CHECKING:
    from dynamod.preprocess.model import Model

    from .lowering import Lowered, Served


class Lowering(Protocol):
    """The part of an endpoint that the backend calls."""

    async def lower(self, job: "Job", served: "Served") -> "Lowered":
        """Check a job against its model and make its engine requests, one per choice. Raises RequestError."""
        ...


class CallForm(msgspec.Struct, frozen=True):
    """How calls of tools reach a client. `pieces`: their arguments come as the model writes them. `stays`: so does a
    call whose arguments are no JSON object, with the text that the model wrote; else the text is content.
    """

    pieces: bool = False
    stays: bool = False


NO_CALLS = CallForm()
"""Of a request whose answer has no calls."""


class Job(msgspec.Struct, frozen=True):
    """One accepted HTTP request. `body` is the client's JSON as it came (text engines get it unchanged).

    `priority`: of the client's key, instead of what the request says; None: it has none. `timed`: the sink wants to
    know when a worker was found, and which. `needs`: of its workers. `notes`: what features say of the request, for the
    log and the records of its decisions: texts without spaces, by words of the features. `facts`: gets the tokens of
    prompts and answers; None: no reader wants tokens. `timeline`: gets its marks. `calls`: how the client gets calls.
    """

    id: str
    endpoint: Lowering
    request: EngineFields
    body: bytes
    priority: int | None = None
    timed: bool = False
    needs: Sequence[Need] = ()
    notes: dict[str, str] = {}
    facts: Facts | None = None
    timeline: Timeline | None = None
    calls: CallForm = NO_CALLS


@dataclass(frozen=True, slots=True)
class Logprob:
    """One token with its log probability and the best alternatives as (token text, bytes, value).

    `value`: None for the first token of a prompt.
    """

    token: str
    token_bytes: bytes
    value: float | None
    top: tuple[tuple[str, bytes, float], ...] = ()


class ResponseSink(Protocol):
    """Where an answer goes. All calls come from the event loop; none may block or raise.

    Order: `started` once, then per choice any `logprobs`/`text`/`chunk`/`counted`, then `finish` once per choice; or
    `fail` once at any moment instead of the rest. `index` is the choice: for completions with several prompts it is
    `prompt number * n + sample number`.
    """

    def echoed(self, texts: Sequence[str]) -> None:
        """The prompts as texts, where the request has token ids and wants to have them back; before `started`."""

    def recorded(self, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]) -> None:
        """The ids of each prompt, and by choice a list that gets those of its answer before their text comes.

        Only where the request wants them; before `started`.
        """

    def prompt_logprobs(self, index: int, entries: tuple[Logprob, ...], ids: Sequence[Sequence[int]]) -> None:
        """Log probabilities of the choice's prompt, before its text; `ids`: each token's and its alternatives'."""

    def placed(self, index: int, worker: Instance | None, prefill: Instance | None = None) -> None:
        """A worker will answer the choice, or (`prefill`) one computes its prompt for that.

        Only for jobs that are `timed`, and again when it moves.
        """

    def started(self, choices: int, prompt_tokens: int, annotations: Mapping[str, Any]) -> None:
        """The request is in an engine's hands. `prompt_tokens` may be 0 here for text engines (see `finish`)."""

    def text(self, index: int, text: str, tokens: int) -> None:
        """New text standing for `tokens` new tokens; `text` may be empty while a character is incomplete."""

    def logprobs(self, index: int, entries: tuple[Logprob, ...]) -> None:
        """Log probabilities of the text that follows."""

    def chunk(self, index: int, chunk: Any) -> None:
        """A value that the engine made itself: an OpenAI chunk of a text engine (tool calls and the like; `choices`
        and ids are rewritten), or what else the endpoint's engine requests are answered with.
        """

    def counted(self, index: int, *, cached_tokens: int | None = None, reasoning_tokens: int | None = None) -> None:
        """Tokens of the choice's prompt that its engine had in its cache, tokens of its answer that are reasoning.

        None: nothing new is known. An engine that does not know them never says them.
        """

    def finish(self, index: int, reason: str, completion_tokens: int, prompt_tokens: int | None = None) -> None:
        """The choice is complete. `reason`: stop, length, tool_calls, content_filter."""

    def fail(self, error: RequestError) -> None:
        """The request ends here with an error."""


class Run(Protocol):
    """A request that is being worked on."""

    def cancel(self) -> None:
        """The client disconnected. Release all resources; do not call the sink again."""


class Backend(Protocol):
    """Serves models: the Processor actor, in tests a small class of the test."""

    def models(self) -> Mapping[str, ModelCard]:
        """Models that a request may name now: one whose workers are all stuck waits for them."""

    def loading(self) -> Mapping[str, ModelCard]:
        """Models whose tokenizers are being loaded here, by name: a request may name them soon."""

    def askable(self) -> Mapping[str, ModelCard]:
        """Those of them that a request would be placed for now, by name."""

    def model(self, name: str) -> "Model | None":
        """Tokenizer and chat template of one of these models; None for a text engine's."""

    def health(self) -> Mapping[str, Any]:
        """`endpoints` (dyn://) of models that can be asked now; `instances` (JSON-like rows) that requests go to."""

    @property
    def parts(self) -> Mapping[str, Any]:
        """What features keep with the models, by their names."""
        ...

    def decisions(self) -> Sequence[Decision]:
        """The routing decisions that are kept, the oldest request first."""
        ...

    async def start(self, job: Job, sink: ResponseSink) -> Run:
        """Begin to serve. Raises RequestError (BadRequest, NotFound, Overloaded, ...) when it cannot."""
        ...
