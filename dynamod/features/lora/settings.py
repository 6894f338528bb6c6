"""Settings of the frontend that decide which adapters clients may load."""

from typing import Annotated

import msgspec
from msgspec import Meta

from dynamod.extension.settings import Option

GROUP = "adapters that clients load"


class LoraSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Both are needed: leave to load adapters, and the folder of the adapters. VLLM_... is vLLM's own variable."""

    allow_runtime_lora_updating: Annotated[
        bool,
        Meta(description="clients may load and unload LoRA adapters, from paths below `lora_dir`"),
        Option(
            "BOOL",
            "clients may load and unload LoRA adapters, from paths below --lora-dir (default: off)",
            variable="VLLM_ALLOW_RUNTIME_LORA_UPDATING",
            group=GROUP,
        ),
    ] = False
    lora_dir: Annotated[
        str,
        Meta(description="folder of the adapters that clients may load, on the workers' machines; none: none"),
        Option(
            "FOLDER",
            "folder of these adapters on the workers' machines (default: none)",
            variable="DYN_LORA_DIR",
            group=GROUP,
        ),
    ] = ""
