"""What the mocker is told: engine arguments (`--extra-engine-args`, `engine_args` in YAML), checked."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from dynamod.message.errors import UserError

from .timing import TimingName

_Count = Annotated[int, Meta(ge=1)]


class MockerArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Names and defaults are the original's (facts: its `mocker/protocols.rs`).

    `block_size`, `max_num_batched_tokens` in tokens, `num_gpu_blocks` in blocks. `watermark`: share of the blocks that
    admission leaves free. `speedup_ratio`: 2 is twice as fast as the real engine, 0 does not wait at all.
    `preemption_mode`: who gives way when the blocks are used up, the newest (lifo) or the oldest (fifo).
    `dp_size`: data-parallel ranks, each with `num_gpu_blocks` and steps of its own; the worker itself places requests.
    `startup_time`: seconds that loading takes. `timing`: see `timing.TIMINGS`. `seed`: for requests without one.
    """

    block_size: _Count = 64
    num_gpu_blocks: _Count = 16384
    max_num_seqs: _Count = 256
    max_num_batched_tokens: _Count = 8192
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    watermark: Annotated[float, Meta(ge=0, lt=1)] = 0.01
    speedup_ratio: Annotated[float, Meta(ge=0)] = 1.0
    dp_size: Annotated[int, Meta(ge=1, le=64)] = 1
    preemption_mode: Literal["lifo", "fifo"] = "lifo"
    startup_time: Annotated[float, Meta(ge=0)] | None = None
    timing: TimingName = "later"
    seed: int = 0

    @property
    def room(self) -> int:
        """Tokens that one sequence may have in all: the blocks that admission may use."""
        return int(self.num_gpu_blocks * (1 - self.watermark)) * self.block_size


def arguments_of(given: Mapping[str, Any], block_size: int | None = None) -> MockerArguments:
    """Check arguments; keys may be spelled with `-`. `block_size`: `kv_cache_block_size`, where a user has set that.

    Raises UserError that names the key and the known ones.
    """
    values: dict[str, Any] = {}
    for key, value in given.items():
        name = key.replace("-", "_")
        if name in values:
            raise _wrong(name, "given twice, with '-' and with '_'")
        values[name] = str(value) if name == "timing" and value == 2025 else value  # YAML reads a number
    if block_size is not None and values.setdefault("block_size", block_size) != block_size:
        raise _wrong("block_size", f"{values['block_size']}, but kv_cache_block_size is {block_size}: give one of them")
    try:
        made = msgspec.convert(values, MockerArguments)
    except msgspec.ValidationError as error:
        raise _translated(str(error), values) from None
    if not made.room:
        raise _wrong("watermark", f"{made.watermark:g} of num_gpu_blocks {made.num_gpu_blocks} leaves no block to use")
    return made


def _translated(problem: str, values: Mapping[str, Any]) -> UserError:
    """Msgspec's sentence as ours."""
    unknown = re.fullmatch(r"Object contains unknown field `(.*)`", problem)
    if unknown is not None:
        return _wrong(unknown[1], "unknown key")
    what, _, place = problem.partition(" - at `$.")
    name = place.rstrip("`")
    value = values.get(name)
    got = f", got {value!r}" if not isinstance(value, dict | list) and "got" not in what else ""
    return _wrong(name, what.replace("Expected", "expected").replace("Invalid", "invalid").replace("`", "") + got)


def _wrong(key: str, problem: str) -> UserError:
    known = ", ".join(sorted(MockerArguments.__struct_fields__))
    return UserError(f"mocker argument {key}: {problem}", f"known keys: {known}")
