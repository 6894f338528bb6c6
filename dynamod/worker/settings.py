"""The keys of a worker's section in a config file, and the engine's options made of them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from dynamod.engine.base import EngineOptions
from dynamod.engine.entry import EngineEntry
from dynamod.engine.lora import AdapterSetting, adapters_of
from dynamod.engine.names import DEFAULT, ENGINES, add_flags, arguments_with, canonical, default
from dynamod.engine.placement import Placement
from dynamod.message.discovery import PREFILL, DisaggregationMode, ReasoningField
from dynamod.message.errors import UserError


def _about(description: str) -> Meta:
    return Meta(description=description)


def _dashed(key: str) -> str:
    return key.replace("_", "-")


_PLACEMENT = ("tensor_parallel_size", "base_gpu_id", "num_nodes", "node_rank", "leader_addr")
_SAME = ("context_length", "kv_cache_block_size", "migration_limit", *_PLACEMENT)
"""Settings that are options of the engine."""
Positive = Annotated[int, Meta(gt=0)]
Seconds = Annotated[float, Meta(gt=0)]


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An engine with one model."""

    SECTION: ClassVar = "worker"
    engine: Annotated[
        str,
        _about(
            f"{', '.join(ENGINES)}; after pystr: and pytok: a FILE, after openai: a URL; "
            f"default: {DEFAULT}, for GGUF files llamacpp"
        ),
    ] = ""
    model: Annotated[
        str, _about("folder, GGUF file, Hugging Face repository (org/name, org/name:Q4_K_M), or `sample`")
    ] = ""
    model_config: Annotated[str, _about("tokenizer and template from here")] = ""
    chat_template: Annotated[
        str, _about("file with a chat template, or the template itself; replaces the model's template")
    ] = ""
    served_model_name: Annotated[str, _about("name that clients use; default: from the model's path")] = ""
    endpoint: str = "generate"
    context_length: Annotated[Positive | None, _about("reduce the model's context to this")] = None
    kv_cache_block_size: Annotated[Positive | None, _about("tokens per block; the engine's own (mocker 64)")] = None
    migration_limit: Annotated[int, Meta(ge=0, le=1023)] = 3
    tool_call_parser: Annotated[
        str, _about("format in which the model calls tools, or none; default, auto: as its chat template says")
    ] = ""
    reasoning_parser: Annotated[
        str, _about("format in which the model reasons, or none; default, auto: as its chat template says")
    ] = ""
    reasoning_field_name: Annotated[
        Literal["", ReasoningField], _about("member of chat answers that has the reasoning; default: the frontend's")
    ] = ""
    tensor_parallel_size: Annotated[int, Meta(ge=1, le=255)] = 1
    base_gpu_id: Annotated[int, Meta(ge=0)] = 0
    num_nodes: Annotated[int, Meta(ge=1, le=1024, description="nodes of this one engine")] = 1
    node_rank: Annotated[int, Meta(ge=0, description="which of them this is; only 0, the leader, gets requests")] = 0
    leader_addr: Annotated[str, _about("HOST:PORT of the node with rank 0")] = ""
    disaggregation_mode: Annotated[
        DisaggregationMode | None,
        _about("prefill: compute prompts for the other workers of the model; default: as the component's type says"),
    ] = None
    transfer_host: Annotated[
        str, _about("address at which workers of other nodes read blocks; default: that of the way to the brokers")
    ] = ""
    static: Annotated[bool, _about("serve at a fixed address that needs no discovery, and publish no model")] = False
    heartbeat_timeout: Annotated[
        Seconds | None,
        _about("seconds without a heartbeat and without work, as the kernel sees it: the process is stuck (2)"),
    ] = None
    stall_timeout: Annotated[
        Seconds | None, _about("seconds that a step of the engine may take without progress and without work (60)")
    ] = None
    stall_per_token: Annotated[Seconds | None, _about("has no effect since 0.2.0")] = None
    compute_timeout: Annotated[
        Seconds | None,
        _about("seconds that a step may compute without progress, at least 20 times what is usual (600)"),
    ] = None
    slow_timeout: Annotated[
        Seconds | None, _about("seconds after which a step is slow, if it takes 8 times what is usual (30)")
    ] = None
    kill_timeout: Annotated[
        Seconds | None, Meta(description="seconds that a process may be stuck until it is killed (4 heartbeat_timeout)")
    ] = None
    lora: Annotated[
        str | list[str | AdapterSetting],
        _about("LoRA adapters, models of their own for clients: NAME=PATH, or objects with name, path and scale"),
    ] = []
    engine_args: Annotated[dict[str, Any], _about("handed to the engine as they are")] = {}

    @classmethod
    def belongs(cls, key: str, config: Mapping[str, Any]) -> str:
        """Where an unknown key belongs: to the arguments of its engine, if that has such a one."""
        found: set[str] = set()
        try:
            engine = canonical(str(config.get("engine") or default(str(config.get("model") or ""))))
            add_flags(engine, lambda *flags, **_: found.update(flag.removeprefix("--") for flag in flags))
        except (UserError, ImportError):  # of the engine's name, or it is not installed
            return ""
        return f"it is an argument of engine '{engine}': give it under engine_args" if _dashed(key) in found else ""

    @property
    def name(self) -> str:
        """The engine's own name."""
        return canonical(self.engine or default(self.model))

    @property
    def entry(self) -> EngineEntry:
        """What is known of the engine. Raises UserError when it needs a model and there is none."""
        entry = ENGINES[self.name]
        if entry.model and not self.model:
            raise UserError(f"engine '{self.name}' needs a model", "give a model path, for example: sample")
        return entry

    @property
    def placement(self) -> Placement:
        """Its GPUs and nodes."""
        return Placement(**{key: getattr(self, key) for key in _PLACEMENT})

    @property
    def arguments(self) -> dict[str, Any]:
        """The engine's own arguments, with the text after the colon of its name."""
        return arguments_with(self.engine, self.engine_args)

    def mode(self, component_type: str) -> DisaggregationMode:
        """Which part of requests it is for at first; where it is not set, as the component's type says."""
        return self.disaggregation_mode or (PREFILL if component_type == PREFILL else "aggregated")

    def options(self, path: Path | None = None, config_path: Path | None = None) -> EngineOptions:
        """The engine's options; `path` and `config_path`: where `model` and `model_config` are."""
        from dynamod.preprocess.reference import model_name  # not needed to check settings

        name = self.served_model_name or (model_name(self.model, path) if path is not None else "")
        return EngineOptions(
            name=name,
            lora=adapters_of(self.lora, name),
            model=self.model,
            path=path,
            config_path=config_path,
            arguments=self.arguments,
            **{key: getattr(self, key) for key in _SAME},
        )
