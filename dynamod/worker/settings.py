"""The keys of a worker's section in a config file, and the engine's options made of them."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from dynamod.engine.base import EngineOptions
from dynamod.engine.names import DEFAULT, ENGINES, arguments_with, canonical
from dynamod.message.errors import UserError


def _about(description: str) -> Meta:
    return Meta(description=description)


_SAME = ("context_length", "kv_cache_block_size", "migration_limit")
"""Settings that are options of the engine."""
Positive = Annotated[int, Meta(gt=0)]
Seconds = Annotated[float, Meta(gt=0)]


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An engine with one model."""

    engine: Annotated[str, _about(f"{', '.join(ENGINES)}; behind pystr: and pytok: a FILE")] = DEFAULT
    model: Annotated[str, _about("folder, GGUF file, Hugging Face repository, or `sample`")] = ""
    model_config: Annotated[str, _about("tokenizer and template from here")] = ""
    served_model_name: Annotated[str, _about("name that clients use; default: from the model's path")] = ""
    endpoint: str = "generate"
    context_length: Annotated[Positive | None, _about("reduce the model's context to this")] = None
    kv_cache_block_size: Annotated[Positive | None, _about("tokens per block; the engine's own (mocker 64)")] = None
    migration_limit: Annotated[int, Meta(ge=0, le=1023)] = 3
    tensor_parallel_size: Annotated[int, Meta(ge=1, le=255)] = 1
    base_gpu_id: Annotated[int, Meta(ge=0)] = 0
    static: Annotated[bool, _about("serve at a fixed address that needs no discovery, and publish no model")] = False
    heartbeat_timeout: Annotated[
        Seconds | None, _about("seconds without a heartbeat: the process is unresponsive (2)")
    ] = None
    stall_timeout: Annotated[Seconds | None, _about("seconds that a step of the engine may take (10)")] = None
    stall_per_token: Annotated[Seconds | None, _about("seconds more for each token of the step (0.01)")] = None
    kill_timeout: Annotated[
        Seconds | None, Meta(description="seconds that it may be unresponsive until it is killed (10 heartbeats)")
    ] = None
    engine_args: Annotated[dict[str, Any], _about("handed to the engine as they are")] = {}

    @property
    def name(self) -> str:
        """The engine's own name."""
        return canonical(self.engine)

    def options(self) -> EngineOptions:
        """The engine's options, with the model found. Raises UserError."""
        from dynamod.preprocess.locate import locate, model_name  # not needed to check settings

        name, path = self.name, None
        if ENGINES[name].model:
            if not self.model:
                raise UserError(f"engine '{name}' needs a model", "give a model path, for example: sample")
            path = locate(self.model)
        return EngineOptions(
            name=self.served_model_name or (model_name(self.model, path) if path is not None else ""),
            path=path,
            config_path=locate(self.model_config) if self.model_config else None,
            arguments=arguments_with(self.engine, self.engine_args),
            **{key: getattr(self, key) for key in _SAME},
        )
