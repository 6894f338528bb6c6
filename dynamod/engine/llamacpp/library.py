"""llama-cpp-python's low-level module, loaded once per process, with its log in ours."""

import ctypes
import functools
import importlib.metadata
import importlib.util
import logging
import os
import sys
from collections import deque
from types import ModuleType
from typing import Any

from dynamod.message.errors import UserError
from dynamod.message.install import extra_hint

log = logging.getLogger("dynamod.engine.llamacpp")

_NEEDED = ("llama_memory_seq_cp", "llama_init_from_model", "llama_model_is_hybrid", "llama_max_parallel_sequences")
_LEVELS = {2: logging.DEBUG, 3: logging.DEBUG, 4: logging.WARNING}  # info, warning, error
_ERROR = 4

last_errors: deque[str] = deque(maxlen=8)
"""Lines that llama.cpp has last logged as errors."""


def last_error(otherwise: str = "llama.cpp gives no reason") -> str:
    """Why the call that has just failed did so."""
    return last_errors[-1] if last_errors else otherwise


def first_error(otherwise: str = "llama.cpp gives no reason") -> str:
    """The cause of several errors, each of which follows from the one before."""
    return last_errors[0] if last_errors else otherwise


@functools.cache
def library() -> Any:
    """The module `llama_cpp.llama_cpp`. Raises UserError when it cannot be loaded, or is too old."""
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")  # or it starts a debugger when it aborts: hundreds of log lines
    try:
        module = _part("llama_cpp")
    except (ImportError, OSError, RuntimeError) as error:  # a wheel built for another processor or CUDA
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(f"llama-cpp-python cannot be loaded: {reason}", f"again: {extra_hint('llama_cpp')}") from None
    fields = {name for name, *_ in module.llama_context_params._fields_}
    if not {"kv_unified", "n_outputs_max"} <= fields or not all(hasattr(module, name) for name in _NEEDED):
        raise UserError(f"llama-cpp-python {version()} is too old", "install 0.3.36 or later")
    module.dynamod_log = module.llama_log_callback(_logged)  # lives as long as the library
    module.llama_log_set(module.dynamod_log, ctypes.c_void_p(0))
    module.llama_backend_init()
    return module


def _part(name: str) -> Any:
    """A module of the package `llama_cpp`, without what its `__init__` imports, which takes four times as long.

    A later import of the package finds all of the package.
    """
    found = None if "llama_cpp" in sys.modules else importlib.util.find_spec("llama_cpp")
    if found is None or found.submodule_search_locations is None:
        return importlib.import_module(f"llama_cpp.{name}")
    package = sys.modules["llama_cpp"] = ModuleType("llama_cpp")
    package.__path__ = found.submodule_search_locations
    try:
        return importlib.import_module(f"llama_cpp.{name}")
    finally:
        del sys.modules["llama_cpp"]


def version() -> str:
    """Of llama-cpp-python, which brings its llama.cpp."""
    try:
        return importlib.metadata.version("llama_cpp_python")
    except importlib.metadata.PackageNotFoundError:  # a build that was not installed
        return str(getattr(importlib.import_module("llama_cpp"), "__version__", "of unknown version"))


def _logged(level: int, text: bytes, _data: object) -> None:
    line = text.decode("utf-8", "replace").strip()
    if not line:
        return
    if level == _ERROR:
        last_errors.append(line)
    log.log(_LEVELS.get(level, logging.DEBUG), "llama.cpp: %s", line)


def buffers() -> dict[str, int]:
    """llama.cpp's kinds of memory by their names, one for each device that it sees, as addresses."""
    library()
    ggml = _part("_ggml").libggml
    count, device, buffer, name = (
        getattr(ggml, f"ggml_backend_{name}") for name in ("dev_count", "dev_get", "dev_buffer_type", "buft_name")
    )
    count.restype, device.argtypes, device.restype = ctypes.c_size_t, [ctypes.c_size_t], ctypes.c_void_p
    buffer.argtypes, buffer.restype = [ctypes.c_void_p], ctypes.c_void_p
    name.argtypes, name.restype = [ctypes.c_void_p], ctypes.c_char_p
    found = [buffer(device(index)) for index in range(count())]
    return {name(one).decode(): one for one in found if one}
