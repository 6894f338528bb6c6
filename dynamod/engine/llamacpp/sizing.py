"""How large the KV cache is, and how long steps are, where the user gives no number."""

from dynamod.kvcache.tier_settings import free_memory
from dynamod.message.errors import UserError
from dynamod.preprocess.gguf_file import Metadata

from .arguments import LlamaCppArguments

_SHARE = 4
"""The KV cache takes at most the fourth part of the free memory on its own."""
_LEAST = 512
_CONTEXTS = 4
"""Whole contexts that the KV cache has room for on its own, up to `_CELLS`."""
_CELLS = 8192
"""KV cells of several contexts. Above it one context is enough: few requests need a long one, and all share the cells.

llama.cpp writes to all cells when it starts. Three more contexts of 8,192 tokens would take 0.55 GB for SmolLM2 135M,
a model of 0.1 GB, and 0.25 s of each start.
"""
_BITS = {"f32": 32, "f16": 16, "bf16": 16, "q8_0": 8.5, "q5_1": 6, "q5_0": 5.5, "q4_1": 5, "q4_0": 4.5, "iq4_nl": 4.5}
"""Of a value, with its share of the scales."""


def cell_bytes(metadata: Metadata, arguments: LlamaCppArguments) -> float:
    """Bytes of one KV cell of all layers, by a GGUF file's metadata; 0 for a model that keeps a state instead."""
    architecture = metadata.get("general.architecture")

    def value(key: str, default: int | list[int]) -> list[int]:
        """One number, or one for each layer."""
        found = metadata.get(f"{architecture}.{key}", default)
        return found if isinstance(found, list) else [found]

    [layers], heads = value("block_count", 0), value("attention.head_count", 1)
    width = max(value("embedding_length", 0)) // max(1, *heads)
    key, latent = max(value("attention.key_length", width)), value("attention.key_length_mla", 0) != [0]
    values = 0 if latent else max(value("attention.value_length", width))
    key, values = max(key, *value("attention.key_length_swa", 0)), max(values, *value("attention.value_length_swa", 0))
    kept = value("attention.head_count_kv", heads)
    kept = (kept * layers if len(kept) == 1 else kept)[: layers - value("attention.shared_kv_layers", 0)[0]]
    every = value("full_attention_interval", 1)[0]  # the layers between keep a state
    bits = key * _BITS[arguments.cache_type_k] + values * _BITS[arguments.cache_type_v]
    return sum(kept) / max(1, every) * bits / 8


def cells_for(
    arguments: LlamaCppArguments, trained: int, cell: float, context_length: int | None, free: int | None = None
) -> int:
    """KV cells, whole blocks. `trained`: tokens the model was made for, 0 when unknown; `cell`: bytes of one KV cell;
    `context_length`: what a user wants for one sequence; `free`: bytes of memory.

    Raises UserError when what the user wants does not fit what the user allows.
    """
    size = arguments.block_size
    wanted = arguments.n_ctx if arguments.num_blocks is None else arguments.num_blocks * size
    if wanted is not None:
        cells = wanted // size * size
        if context_length is not None and cells < context_length:
            problem = f"llamacpp: {cells} KV cells are fewer than one context of {context_length} tokens"
            raise UserError(problem, "raise n_ctx (or num_blocks), or lower the context length")
        return cells
    context = context_length or trained or 4096
    room = int((free_memory() if free is None else free) // _SHARE / max(1, cell))
    least = context_length or min(context, _LEAST)
    return -(-max(least, min(max(context, min(_CONTEXTS * context, _CELLS)), room)) // size) * size


class StepBudget:
    """How much of a prompt a step may compute, from what earlier steps took.

    Keeps steps near `seconds` while answers run alongside the prompt, and a few times that when none do.
    """

    ALONE = 4.0
    """Longer steps are cheaper, but a cancel waits for the end of one."""

    def __init__(self, seconds: float, least: int, most: int) -> None:
        self._seconds, self._least, self._most = seconds, least, most
        self.rate = 0.0  # prompt tokens per second, 0 while not known
        self._guessed = True

    def chunk(self, decoding: bool) -> int:
        """Prompt tokens of the next step."""
        if not self.rate:
            return min(self._most, 4 * self._least)
        wanted = int(self.rate * self._seconds * (1 if decoding else self.ALONE))
        return max(self._least, min(self._most, wanted))

    def guess(self, rate: float) -> None:
        """Use a rate until a step of prompts has been computed."""
        self.rate = rate

    def took(self, tokens: int, seconds: float) -> None:
        """A step has computed so many tokens of prompts. Small ones are not representative."""
        if tokens >= self._least and seconds > 0:
            rate = tokens / seconds
            self.rate = rate if self._guessed else (self.rate + rate) / 2
            self._guessed = False
