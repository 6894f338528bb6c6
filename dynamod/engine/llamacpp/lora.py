"""LoRA adapters in llama.cpp: their files, checked by the header; the loaded ones, and which of them computes.

A context computes with one set of adapters at a time, here with one adapter or none.
"""

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dynamod.message.discovery import Adapter
from dynamod.message.errors import UserError
from dynamod.preprocess.gguf_file import is_gguf, read_metadata

from .library import last_error, last_errors

_MADE = "convert_lora_to_gguf.py of llama.cpp makes one of a PEFT folder"


def check(adapters: Sequence[Adapter], model: Path | None) -> None:
    """Look at the headers of the files. `model`: a GGUF file, or None where it is not known. Raises UserError."""
    architecture = ""
    if adapters and model is not None and is_gguf(model):
        architecture = str(read_metadata(model).get("general.architecture", ""))
    for one in adapters:
        _check_file(one, architecture)


def _check_file(adapter: Adapter, architecture: str) -> None:
    path = Path(adapter.path)
    if not path.exists():
        raise UserError(f"lora {adapter.name}: {path} does not exist", "give the path of a GGUF file")
    if not is_gguf(path):
        raise UserError(f"lora {adapter.name}: {path} is no GGUF file", _MADE)
    found = read_metadata(path)
    kind, form = found.get("general.type"), found.get("adapter.type")
    if kind != "adapter":
        raise UserError(f"lora {adapter.name}: {path} is of type {kind or 'model'}, and no adapter", _MADE)
    if form != "lora":
        raise UserError(f"lora {adapter.name}: {path} is an adapter of type {form}, and lora is served")
    if "adapter.alora.invocation_tokens" in found:
        raise UserError(f"lora {adapter.name}: {path} is an activated LoRA, which is not served")
    made_for = found.get("general.architecture")
    if architecture and made_for != architecture:
        raise UserError(f"lora {adapter.name}: {path} is for the architecture {made_for}, the model is {architecture}")


class LoadedAdapters:
    """The adapters of one model, by their digests. Blocks; one thread at a time, that of the model."""

    def __init__(self, api: Any, model: Any) -> None:
        self._api, self._model = api, model
        self._loaded: dict[str, tuple[Any, Any]] = {}  # arrays of one: the adapter, its scale
        self._active = ""

    def load(self, adapter: Adapter) -> None:
        """Raises UserError. One that is loaded already stays."""
        if adapter.digest in self._loaded:
            return
        last_errors.clear()
        handle = self._api.llama_adapter_lora_init(self._model, os.fsencode(adapter.path))
        if not handle:
            raise UserError(f"llama.cpp cannot load the adapter {adapter.name} ({adapter.path}): {last_error()}")
        handles = (self._api.llama_adapter_lora_p_ctypes * 1)(handle)
        self._loaded[adapter.digest] = handles, (ctypes.c_float * 1)(adapter.scale)

    def use(self, context: Any, digest: str) -> None:
        """The next steps compute with this adapter; empty: with none. Changes cost some milliseconds, so few are best.

        Raises KeyError for one that is not loaded.
        """
        if digest == self._active:
            return
        if digest:
            handles, scales = self._loaded[digest]
            self._api.llama_set_adapters_lora(context, handles, 1, scales)
        else:
            self._api.llama_set_adapters_lora(context, None, 0, None)
        self._active = digest

    def drop(self, context: Any, digest: str) -> None:
        """Give its memory back; no later step may use it."""
        if digest == self._active:
            self.use(context, "")
        handles, _ = self._loaded.pop(digest, (None, None))
        if handles is not None:
            self._api.llama_adapter_lora_free(handles[0])
