"""The engine's arguments as llama.cpp's two structs of parameters."""

import ctypes
import logging
from typing import Any

from dynamod.message.errors import UserError

from .arguments import LlamaCppArguments, items, key_value, shares
from .library import buffers

log = logging.getLogger("dynamod.engine")

FLASH = {None: -1, False: 0, True: 1}
_TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "iq4_nl": 20, "bf16": 30}
_SPLITS = {"none": 0, "layer": 1, "row": 2, "tensor": 3}
_ROPES = {"none": 0, "linear": 1, "yarn": 2}
POOLINGS = {"mean": 1, "cls": 2, "last": 3}
_PLAIN = (
    *("rope_freq_base", "rope_freq_scale", "yarn_orig_ctx", "yarn_ext_factor", "yarn_attn_factor"),
    *("yarn_beta_slow", "yarn_beta_fast"),
)
_EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
"""Tensors of a mixture of experts, by llama.cpp's names."""


class _Placed(ctypes.Structure):
    """llama.cpp's llama_model_tensor_buft_override."""

    _fields_ = (("pattern", ctypes.c_char_p), ("buffer", ctypes.c_void_p))


def model_parameters(api: Any, arguments: LlamaCppArguments) -> tuple[Any, list[Any]]:
    """Parameters of the model, and what they point to: that must live until the model is loaded. Raises UserError."""
    params = api.llama_model_default_params()
    params.n_gpu_layers = arguments.n_gpu_layers
    if hasattr(params, "load_mode"):
        params.load_mode = (1 if arguments.use_mmap else 0) | (2 if arguments.use_mlock else 0)
    else:
        params.use_mmap, params.use_mlock = arguments.use_mmap, arguments.use_mlock
    params.use_extra_bufts = repacks(api, arguments)
    if arguments.split_mode is not None:
        params.split_mode = _SPLITS[arguments.split_mode]
    if arguments.main_gpu is not None:
        params.main_gpu = arguments.main_gpu
    kept: list[Any] = []
    if arguments.tensor_split:
        kept.append(split := _split(arguments.tensor_split, int(api.llama_max_devices())))
        params.tensor_split = split
    if placed := _placed(arguments):
        kept.append(places := (_Placed * (len(placed) + 1))(*placed))  # ends with an empty one, as the next list
        params.tensor_buft_overrides = ctypes.addressof(places)
    if overrides := items(arguments.kv_overrides):
        kept.append(keys := (api.llama_model_kv_override * (len(overrides) + 1))())
        for place, one in zip(keys, overrides, strict=False):
            _override(api, place, one)
        params.kv_overrides = keys
    return params, kept


def repacks(api: Any, arguments: LlamaCppArguments) -> bool:
    """Whether weights are stored in the layout that suits the processor, which a build for AMX does not do unasked.

    Reason: https://github.com/ggml-org/llama.cpp/issues/20824, a crash in the first step.
    """
    if arguments.repack is not None:
        return arguments.repack
    if b"AMX_INT8 = 1" not in api.llama_print_system_info():
        return True
    log.info("llama.cpp is built for Intel AMX, whose kernels can crash: off; the argument repack turns them on")
    return False


def context_parameters(api: Any, arguments: LlamaCppArguments) -> Any:
    """Parameters of the context, except its size."""
    params = api.llama_context_default_params()
    params.flash_attn_type = FLASH[arguments.flash]
    params.type_k, params.type_v = _TYPES[arguments.cache_type_k], _TYPES[arguments.cache_type_v]
    params.offload_kqv, params.no_perf, params.kv_unified = arguments.offload_kqv, True, True
    if arguments.rope_scaling is not None:
        params.rope_scaling_type = _ROPES[arguments.rope_scaling]
    if arguments.rope_scale is not None:
        params.rope_freq_scale = 1 / arguments.rope_scale
    for name in _PLAIN:
        if (value := getattr(arguments, name)) is not None:
            setattr(params, name, value)
    return params


def _split(given: list[float] | str, devices: int) -> Any:
    found = shares(given)
    if len(found) > devices:
        raise UserError(f"llamacpp argument tensor_split: {len(found)} shares, llama.cpp knows {devices} devices")
    return (ctypes.c_float * devices)(*found)


def _placed(arguments: LlamaCppArguments) -> list[_Placed]:
    """Patterns of tensors' names, and the buffers that those are to lie in. Raises UserError."""
    found: list[_Placed] = []
    known = buffers() if arguments.override_tensor or arguments.cpu_moe or arguments.n_cpu_moe else {}
    for one in items(arguments.override_tensor):
        pattern, _, name = one.rpartition("=")
        if name not in known:
            there = f"known are {', '.join(sorted(known))}"
            raise UserError(f"llamacpp argument override_tensor: there is no buffer {name!r}", there)
        found.append(_Placed(pattern.encode(), known[name]))
    layers = [rf"blk\.{layer}{_EXPERTS}" for layer in range(arguments.n_cpu_moe)]
    experts = [_EXPERTS] if arguments.cpu_moe else layers
    return [*found, *(_Placed(pattern.encode(), known["CPU"]) for pattern in experts)]


def _override(api: Any, place: Any, text: str) -> None:
    key, value = key_value(text)
    place.key = key.encode()
    kinds = {int: ("INT", "val_i64"), float: ("FLOAT", "val_f64"), bool: ("BOOL", "val_bool"), str: ("STR", "val_str")}
    kind, field = kinds[type(value)]
    place.tag = getattr(api, f"LLAMA_KV_OVERRIDE_TYPE_{kind}")
    setattr(place.value, field, value.encode() if isinstance(value, str) else value)
