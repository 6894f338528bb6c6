"""What the registry stores: instances and model cards, both as JSON values under readable keys."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, TypeVar, get_args

import msgspec
from msgspec import Meta

T = TypeVar("T")

EngineKind = Literal["tokens", "text"]

Word = Annotated[str, Meta(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e]+\Z")]
"""A name. It is shown in terminals, logs and metrics, so it has no control characters."""
Label = Annotated[str, Meta(max_length=512, pattern=r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e]*\Z")]
Count = Annotated[int, Meta(ge=0, le=2**31)]

DisaggregationMode = Literal["aggregated", "prefill", "decode"]
ROLES: tuple[str, ...] = get_args(DisaggregationMode)
PREFILL: Final = "prefill"
"""The pool of workers that compute prompts for others."""
LOAD_METRICS: Final = "load_metrics"
"""An endpoint of every worker, for its load: it takes no requests of clients."""


class Instance(msgspec.Struct, frozen=True, omit_defaults=True):
    """One live process of an endpoint. `transport` maps a transport's name to where it listens: {"unix": PATH}.

    `pool`: which phase of a request it is for; the empty one has the ordinary workers, which do all of it.
    `protocol`, `since`: the protocol that its release speaks, and the oldest one that it works with; releases before
    0.2.0 do not say it.
    """

    namespace: Word
    component: Word
    endpoint: Word
    instance_id: Annotated[int, Meta(ge=0)]
    transport: dict[str, Label]
    state: Literal["ready", "draining"] = "ready"
    node: Label = ""
    pid: Count = 0
    process: Label = ""
    pool: Label = ""
    protocol: Count = 1
    since: Count = 1

    @property
    def path(self) -> str:
        """The address all instances of this endpoint share: `namespace.component.endpoint`."""
        return f"{self.namespace}.{self.component}.{self.endpoint}"


class NodeRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a daemon says of itself to other nodes. All fields are empty for releases that only say their node's name.

    `version`: of its release. `protocol`, `since`: as of an instance. `started`: seconds since the epoch. `sections`:
    what features say of the daemon, by their names.
    """

    version: Label = ""
    protocol: Count = 0
    since: Count = 0
    pid: Count = 0
    started: float = 0.0
    sections: dict[str, Any] = {}

    def section(self, name: str, kind: type[T]) -> T:
        """What a feature says of the daemon, by the feature's name; `kind()` where that is missing or undecodable."""
        return section_of(self.sections, name, kind)


def section_of(sections: Mapping[str, Any], name: str, kind: type[T]) -> T:
    """The section of a feature, by the feature's name; `kind()` where that is missing or undecodable."""
    try:
        return msgspec.convert(sections.get(name, {}), kind)
    except msgspec.ValidationError:
        return kind()


OfPart = Annotated[bool, Meta(extra={"of_part": True})]
"""A capability of an engine that a worker has only with a part of a feature that makes use of it."""


class Capabilities(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an engine can do exactly; the ingress refuses or repairs the rest.

    `deterministic`: without a seed, equal prompts get equal answers. `grammars`: its answers keep to a form.
    `forms`: what it knows of forms in addition to the kinds of the first version, in words of `message.worker`:
    `behind`, `replay`, `with_chat`, `later_tags`, and further kinds.
    `greedy_continuation`: an answer of another instance is continued, a greedy one exactly, a sampled one with other
    noise than it would have had: a seed is no promise then, so the engine draws its own where the client gives none.
    `handoff`: it computes prompts for other instances, and takes the KV blocks of prompts from them. `needs_prefill`:
    it computes no prompts, so that others always do. `stored_blocks`: it gives other instances the KV blocks that it
    has, and computes nothing for that. `role_switch`: it changes between prefill and decode while it runs.
    `matryoshka`: the first numbers of its vectors are vectors too. `pairs`: it is given two texts as one input, and
    makes one number of them, their score. `lora`: it loads adapters and unloads them while it runs. `verbatim`: its
    answers are shown with their special tokens, where a request does not say otherwise.
    """

    exact_continuation: bool = False
    kv_events: bool = False
    logprobs: bool = False
    seed: bool = False
    deterministic: bool = False
    min_tokens: bool = False
    logit_bias: bool = False
    grammars: bool = False
    forms: tuple[Word, ...] = ()
    greedy_continuation: bool = False
    handoff: OfPart = False
    needs_prefill: OfPart = False
    stored_blocks: OfPart = False
    role_switch: OfPart = False
    matryoshka: bool = False
    pairs: bool = False
    prompt_logprobs: bool = False
    lora: bool = False
    verbatim: bool = False

    @property
    def continues(self) -> bool:
        """Whether an answer of another instance can be continued."""
        return self.exact_continuation or self.greedy_continuation

    def keeps(self, words: Collection[str]) -> bool:
        """Whether answers keep to a form that needs these words of `forms`."""
        return self.grammars and all(word in self.forms for word in words)

    @classmethod
    def shared(cls, several: "Collection[Capabilities]") -> "Capabilities":
        """What a model can do whose workers (at least one) can do that: what all of them can, for any may be asked.

        Of forms what at least one can: they go to workers that know them. Some need others to compute prompts: all do.
        """
        kinds = {*several}
        if len(kinds) == 1:
            return kinds.pop()
        rules: dict[str, Callable[[Any], Any]] = {"forms": _union, "grammars": any, "needs_prefill": any}
        columns = {name: [getattr(one, name) for one in several] for name in cls.__struct_fields__}
        return cls(**{name: rules.get(name, all)(column) for name, column in columns.items()})


def _union(several: "Sequence[tuple[Word, ...]]") -> tuple[Word, ...]:
    return tuple(sorted({word for words in several for word in words}))


ReasoningField = Literal["reasoning_content", "reasoning"]
"""What clients may get the reasoning of an answer as."""


class Adapter(msgspec.Struct, frozen=True, omit_defaults=True):
    """A LoRA adapter, which is a model of its own for clients, called `name`. `path`: on the worker's machine.

    `digest`: hexadecimal, over what the adapter computes: its files and `scale`, the factor of its change. Adapters
    with one digest make the same KV blocks, whatever they are called.
    """

    name: Word
    path: Label = ""
    digest: Annotated[str, Meta(max_length=64, pattern=r"^[0-9a-f]*\Z")] = ""
    scale: float = 1.0


class ModelCard(msgspec.Struct, frozen=True, omit_defaults=True):
    """Everything an ingress needs to serve a model that a worker announces.

    `types`: what clients may ask for; none where the worker only helps others. `chat`, `completions`, `embeddings`, and
    `score`: its vectors say how alike two texts are, or it scores pairs.

    `kind`: "tokens" engines get `Generate`, "text" engines get `Chat`. `path`: folder or GGUF file on the worker's
    machine (empty for an engine without a model). `mdc_sum`: checksum over the files that decide how text becomes
    tokens; sent with each request so that a mismatch is seen. `tool_call_parser`, `reasoning_parser`: how its answers
    say calls of tools and reasoning; empty: as its chat template says; `none`: not at all. `reasoning_field_name`: what
    clients get reasoning as; empty: as the frontend says. `embedding_length`: numbers of a vector, 0 where that is not
    known. `adapters`: loaded by the worker. `adapter`, `parent`: of the card of an adapter, which an ingress makes
    of that: which one it is, and the name of the model below it. `protocol`, `since`: as of the instance. `sections`:
    what features say of the worker, by their names; workers of one model may differ in them.
    """

    name: Word
    kind: EngineKind = "tokens"
    types: tuple[Word, ...] = ("chat", "completions")
    path: str = ""
    config_path: str = ""
    context_length: Count = 0
    kv_cache_block_size: Annotated[int, Meta(ge=1, le=2**20)] = 16
    migration_limit: Annotated[int, Meta(ge=0, le=1023)] = 3
    eos_token_ids: tuple[Count, ...] = ()
    bos_token_id: Count | None = None
    sampling_defaults: dict[str, float] = {}
    mdc_sum: str = ""
    created: int = 0
    engine: str = ""
    capabilities: Capabilities = Capabilities()
    tool_call_parser: Label = ""
    reasoning_parser: Label = ""
    reasoning_field_name: Label = ""
    user_data: dict[str, Any] | None = None
    embedding_length: Count = 0
    adapters: tuple[Adapter, ...] = ()
    adapter: Adapter | None = None
    parent: Label = ""
    protocol: Count = 1
    since: Count = 1
    sections: dict[str, Any] = {}

    def section(self, name: str, kind: type[T]) -> T:
        """What a feature says of the worker, by the feature's name; `kind()` where that is missing or undecodable."""
        return section_of(self.sections, name, kind)

    @property
    def base(self) -> str:
        """The model whose workers answer, and whose router decides: of an adapter that below it."""
        return self.parent or self.name

    @property
    def salt(self) -> str:
        """What KV blocks depend on in addition to tokens."""
        return self.adapter.digest if self.adapter is not None else ""

    def each(self) -> "tuple[ModelCard, ...]":
        """The card itself, and one for each adapter."""
        if not self.adapters:
            return (self,)
        types = tuple(kind for kind in self.types if kind in ("chat", "completions"))
        made = [
            msgspec.structs.replace(self, name=one.name, types=types, adapters=(), adapter=one, parent=self.name)
            for one in self.adapters
            if one.name != self.name
        ]
        return (self, *made)

    @property
    def inputs(self) -> tuple[bool, bool, bool]:
        """Whether its workers take prompts, texts whose vectors are wanted, and pairs of texts."""
        types = {*self.types}
        return bool(types - {"embeddings", "score"}), bool(types & {"embeddings", "score"}), self.capabilities.pairs
