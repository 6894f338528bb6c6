"""What the registry stores: instances and model cards, both as JSON values under readable keys."""

from typing import Any, Literal

import msgspec

EngineKind = Literal["tokens", "text"]


class Instance(msgspec.Struct, frozen=True, omit_defaults=True):
    """One live process behind an endpoint. `transport` maps a transport's name to where it listens: {"unix": PATH}.

    `pool`: which phase of a request it is for; the empty one has the ordinary workers, which do all of it.
    """

    namespace: str
    component: str
    endpoint: str
    instance_id: int
    transport: dict[str, str]
    state: Literal["ready", "draining"] = "ready"
    node: str = ""
    pid: int = 0
    process: str = ""
    pool: str = ""

    @property
    def path(self) -> str:
        """The address all instances of this endpoint share: `namespace.component.endpoint`."""
        return f"{self.namespace}.{self.component}.{self.endpoint}"


class Capabilities(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an engine can do exactly; the ingress refuses or repairs the rest.

    `deterministic`: without a seed, equal prompts get equal answers. `grammars`: it keeps to a `response_format`.
    """

    exact_continuation: bool = False
    kv_events: bool = False
    logprobs: bool = False
    seed: bool = False
    deterministic: bool = False
    min_tokens: bool = False
    logit_bias: bool = False
    grammars: bool = False


class ModelCard(msgspec.Struct, frozen=True, omit_defaults=True):
    """Everything an ingress needs to serve a model that a worker announces.

    `kind`: "tokens" engines get `Generate`, "text" engines get `Chat`. `path`: folder or GGUF file on the worker's
    machine (empty for an engine without a model). `mdc_sum`: checksum over the files that decide how text becomes
    tokens; sent with each request so that a mismatch is seen.
    """

    name: str
    kind: EngineKind = "tokens"
    types: tuple[str, ...] = ("chat", "completions")
    path: str = ""
    config_path: str = ""
    context_length: int = 0
    kv_cache_block_size: int = 16
    migration_limit: int = 3
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    sampling_defaults: dict[str, float] = {}
    mdc_sum: str = ""
    created: int = 0
    engine: str = ""
    capabilities: Capabilities = Capabilities()
    user_data: dict[str, Any] | None = None
