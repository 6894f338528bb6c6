"""What a worker receives: requests (two kinds, because engines come in two kinds) and control of their streams.

`Generate` goes to token engines (ids in, ids out), `Chat` to text engines (the client's own request in, text out),
`Embed` to engines that make vectors of ids,
`Call` to the endpoints of a user's own components; `Subscribe` asks a worker for news of its cache and load, `Describe`
for its model card, `Files` for its files; `LoadAdapter` and `UnloadAdapter` change what it serves. `Open`
wraps any of them with a stream number of the sender's choice; answers come back as `dynamod.message.ingress` deltas
under that number.
"""

from typing import Any, Literal

import msgspec

from .discovery import Adapter

PASSED = 8
"""Tokens of an answer (or characters) after which a request that is tried alone is no suspect any more."""

TRIAL_TAKEN = "trial_taken"
"""Code of the refusal of a request that is to be tried alone by a worker where another one is."""

TRIAL_PAUSE = 0.05
"""Seconds until a worker is asked again that has refused a request with `TRIAL_TAKEN`."""

LEAVING = "leaving"
"""Code of the refusal of a request that came to a worker which drains, or has ended: it was not begun."""

HANDOFF_FAILED = "handoff_failed"
"""Code of the failure of a request whose prompt an instance lacks and cannot compute; it may be sent there again."""


class Stops(msgspec.Struct, frozen=True, array_like=True):
    """When generation ends. Field names are those of NVIDIA Dynamo's `stop_conditions`."""

    max_tokens: int | None = None
    stop: tuple[str, ...] | None = None
    stop_token_ids_hidden: tuple[int, ...] = ()
    min_tokens: int | None = None
    ignore_eos: bool | None = None


class Sampling(msgspec.Struct, frozen=True, array_like=True):
    """How the next token is chosen. None means: not said, the engine's default. `logprobs`: how many per token.

    `prompt_logprobs`: the same of each token of the prompt but the first, for engines with that capability.
    """

    n: int | None = None
    best_of: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    use_beam_search: bool | None = None
    length_penalty: float | None = None
    seed: int | None = None
    logit_bias: dict[int, float] | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None


TransferShape = Literal["pull", "rendezvous"]
"""How engines move KV blocks on their own: they are read when the prompt has been computed, or both engines are told
at once and the one that computes it sends them."""


class Handoff(msgspec.Struct, frozen=True, array_like=True):
    """KV blocks of a prompt at the instance that computes it, for the instance that answers.

    `session`: their name there, which cannot be guessed. `layout`: digest of what must agree for the bytes to mean the
    same. `addresses`: where they are read, by transfer backend. `params`: instead of these, what the engine there says
    to the engine here, where engines move blocks on their own, in the given `shape`; no process between them reads it.
    `stored`: the blocks are there already, and nothing is computed for them. `cached_tokens`: tokens of the prompt that
    were in the cache of the instance that computes it; None: it does not know.
    """

    session: str
    layout: str = ""
    addresses: dict[str, str] = {}
    params: dict[str, Any] = {}
    shape: TransferShape = "pull"
    stored: bool = False
    cached_tokens: int | None = None


GrammarKind = Literal["json", "regex", "choice", "grammar", "structural_tag"]

FIRST_KINDS = ("json", "regex", "choice", "grammar")
"""Kinds that every worker with the capability `grammars` takes."""
BEHIND = "behind"
"""Word of `Capabilities.forms`: the form may follow reasoning, or calls may come instead."""
REPLAY = "replay"
"""Word of `Capabilities.forms`: an answer that another instance has begun is continued within its form."""
LATER_TAGS = "later_tags"
"""Word of `Capabilities.forms`: structural tags with what the first version did not read in them."""
MATCHED = (BEHIND, REPLAY, "structural_tag", LATER_TAGS)
"""What engines know of forms that choose tokens by a `structured.matcher`."""
WITH_CHAT = "with_chat"
"""Word of `Capabilities.forms`: a text engine takes the form next to the client's JSON, and not out of it."""


class Grammar(msgspec.Struct, frozen=True, array_like=True):
    """The form that an answer keeps to. `text`: by `kind` a JSON Schema, a regular expression, a JSON list of strings
    of which the answer is one, a grammar as Lark or GBNF writes it, or the JSON of a structural tag, which says what
    stands between given strings.

    `closing`: the form follows reasoning that ends with this marker; `opening`: if the answer begins with this
    one, else the prompt has begun the reasoning. Empty: the answer begins with the form. `calls`: an answer that begins
    with this marker has no form. `needs`: further words of `Capabilities.forms`.
    """

    kind: GrammarKind
    text: str
    opening: str = ""
    closing: str = ""
    calls: str = ""
    needs: tuple[str, ...] = ()

    @property
    def words(self) -> tuple[str, ...]:
        """What a worker must say in `Capabilities.forms` to get it."""
        behind: tuple[str, ...] = (BEHIND,) if self.closing or self.calls else ()
        return (*behind, *(() if self.kind in FIRST_KINDS else (self.kind,)), *self.needs)


class Generate(msgspec.Struct, frozen=True, array_like=True, tag="generate"):
    """One request to a token engine.

    `token_ids`: the prompt, packed (see `message.tokens`). `prior_output`: ids that another instance generated for
    the same answer; the engine continues after them and counts them as output, not as prompt. `alone`: it may have
    crashed a worker, and no other such request may be where it is; it begins when its acceptance is confirmed.
    `handoff`: blocks of the prompt, and of the prior output, that another instance computes. `grammar`: the form of
    the answer, which the ingress has checked; for engines with that capability. `adapter`: what answers instead of the
    model alone, for engines with the capability `lora`. `trace`: headers of its trace, as W3C has them.
    """

    request_id: str
    model: str
    token_ids: bytes
    stops: Stops = Stops()
    sampling: Sampling = Sampling()
    eos_token_ids: tuple[int, ...] = ()
    mdc_sum: str = ""
    annotations: tuple[str, ...] = ()
    prior_output: bytes = b""
    alone: bool = False
    handoff: Handoff | None = None
    grammar: Grammar | None = None
    adapter: Adapter | None = None
    trace: dict[str, str] = {}

    @property
    def salt(self) -> str:
        """What its KV blocks depend on in addition to tokens."""
        return self.adapter.digest if self.adapter is not None else ""


class Prefill(msgspec.Struct, frozen=True, array_like=True, tag="prefill"):
    """Compute the prompt of a request, and its prior output, for another instance.

    Answered by one item, the `Handoff`, as soon as the request may be sent to the other instance: before the prompt is
    computed, unless its engine must know more first. The blocks are needed until the stream ends: a cancel
    releases them. `stored`: compute nothing, but give the first blocks as far as they are there.
    """

    request: Generate
    stored: bool = False

    @property
    def request_id(self) -> str:
        """Of the request whose prompt it is."""
        return self.request.request_id

    @property
    def alone(self) -> bool:
        """As of the request: it is tried there before any worker answers it."""
        return self.request.alone


class Embed(msgspec.Struct, frozen=True, array_like=True, tag="embed"):
    """Vectors of some inputs. `inputs`: their token ids, each packed as in `Generate`, none of them empty.

    Answered by one delta with a vector for each input, in their order, packed (see `message.vectors`) and of unit
    length, or with one number each where the engine scores pairs. Either all of it has come or nothing, so that any
    other instance may take the request. `trace`: as in `Generate`.
    """

    request_id: str
    model: str
    inputs: tuple[bytes, ...]
    mdc_sum: str = ""
    alone: bool = False
    trace: dict[str, str] = {}


class Chat(msgspec.Struct, frozen=True, array_like=True, tag="chat"):
    """One request to a text engine: the client's OpenAI request as JSON bytes.

    `kind` says which route it came by; a request for embeddings is answered as `Embed` is. `max_tokens` and `stop` are
    repeated in clear because the caller enforces them whatever the engine does. `alone`: as in `Generate`. `grammar`:
    the form of the answer, checked, for engines that say `WITH_CHAT`; others read it in the JSON. `trace`: as there.
    """

    request_id: str
    model: str
    kind: Literal["chat", "completion", "embedding"]
    body: bytes
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    alone: bool = False
    grammar: Grammar | None = None
    trace: dict[str, str] = {}


class Call(msgspec.Struct, frozen=True, array_like=True, tag="call"):
    """One request to an endpoint of a user's component: `payload` is any JSON-like value."""

    request_id: str
    payload: Any = None


class Subscribe(msgspec.Struct, frozen=True, array_like=True, tag="subscribe"):
    """Send the worker's events (`message.kv_events`) as the items of this stream, until it is cancelled.

    `steps`: of these the load, requests of all processes as they start (without blocks), and steps of the engine.
    """

    request_id: str
    steps: bool = False


class Describe(msgspec.Struct, frozen=True, array_like=True, tag="describe"):
    """Say what you serve: answered by one item, the worker's `ModelCard` as JSON bytes."""

    request_id: str


class Files(msgspec.Struct, frozen=True, array_like=True, tag="files"):
    """Send the files that an ingress needs to serve your model: tokenizer, configuration and templates, no weights.

    Answered by byte strings, one per item: a list of the files, then their content in pieces, in order
    (`preprocess.model_files`). `seconds_left`: time budget at the moment of sending, because clocks of two machines are
    never compared.
    """

    request_id: str
    seconds_left: float | None = None


def form_words(request: object) -> tuple[str, ...] | None:
    """What a worker must say in `Capabilities.forms` to get a request; None: it has no form."""
    if isinstance(request, Chat) and request.grammar is not None:
        return (*request.grammar.words, WITH_CHAT)
    return request.grammar.words if isinstance(request, Generate) and request.grammar is not None else None


class LoadAdapter(msgspec.Struct, frozen=True, array_like=True, tag="load_adapter"):
    """Load an adapter, whose digest the worker finds; answered by one item, the `Adapter` as JSON bytes.

    `inplace`: one of that name gives way; else it is refused unless it is the same.
    """

    request_id: str
    adapter: Adapter
    inplace: bool = False


class UnloadAdapter(msgspec.Struct, frozen=True, array_like=True, tag="unload_adapter"):
    """Forget an adapter; answers that it has begun are finished. Answered by a stream without items."""

    request_id: str
    name: str


Request = Generate | Prefill | Embed | Chat | Call | Subscribe | Describe | Files | LoadAdapter | UnloadAdapter


class Open(msgspec.Struct, frozen=True, array_like=True, tag="open"):
    """Start stream `stream` (unique per connection) at endpoint `endpoint` with `request`."""

    stream: int
    endpoint: str
    request: Request


class Cancel(msgspec.Struct, frozen=True, array_like=True, tag="cancel"):
    """The reader of `stream` has left: free its slot."""

    stream: int


class Confirm(msgspec.Struct, frozen=True, array_like=True, tag="confirm"):
    """The reader of `stream` knows that its request is accepted: one that is tried alone may begin.

    Accepted again, it asks whether it may compute a prompt whose blocks do not come. That is confirmed unless the
    prompt is taken for the cause.
    """

    stream: int


class Credit(msgspec.Struct, frozen=True, array_like=True, tag="credit"):
    """The reader has processed `frames` more frames; the worker may send as many again."""

    frames: int


ToWorker = Open | Cancel | Confirm | Credit
"""Everything a worker's connection may carry toward it."""
