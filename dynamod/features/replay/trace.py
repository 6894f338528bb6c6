"""Requests to replay: recorded traces (Mooncake's JSON lines), and made conversations with shared system prompts."""

import json
import random as random_module
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from dynamod.kvcache.hashes import chain
from dynamod.message.errors import UserError


class TraceRow(msgspec.Struct, frozen=True):
    """One line of a trace. `timestamp` in milliseconds; `hash_ids` name the prompt's blocks, a partial one too."""

    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int]


class Arrival(msgspec.Struct, frozen=True, gc=False):
    """One request: when it comes (ms), tokens in and out, sequence hashes of the prompt's full blocks."""

    at: float
    length: int
    output: int
    blocks: tuple[int, ...]


def read_trace(path: Path, block_size: int) -> list[Arrival]:
    """Read JSON lines, in the order of their timestamps. Raises UserError with the line's number."""
    decoder = msgspec.json.Decoder(TraceRow)
    arrivals: list[Arrival] = []
    try:
        text = path.read_bytes()
    except OSError as error:
        raise UserError(f"trace {path}: {error.strerror}", "give a file of JSON lines") from None
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = decoder.decode(line)
        except msgspec.MsgspecError as error:
            keys = "timestamp, input_length, output_length, hash_ids"
            raise UserError(f"{path}:{number}: {error}", f"each line is an object with {keys}") from None
        full, expected = row.input_length // block_size, -(-row.input_length // block_size)
        if len(row.hash_ids) != expected or row.input_length < 1 or row.output_length < 1:
            raise UserError(
                f"{path}:{number}: {len(row.hash_ids)} hash_ids for {row.input_length} tokens",
                f"blocks of {block_size} tokens need {expected}; check --block-size",
            )
        local = [value + 1 for value in row.hash_ids[:full]]
        arrivals.append(Arrival(row.timestamp, row.input_length, row.output_length, tuple(chain(local))))
    if not arrivals:
        raise UserError(f"trace {path} has no requests", "give a file of JSON lines")
    return sorted(arrivals, key=lambda one: one.at)


class Conversations(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A made workload: users that talk over several turns, each beginning with one of a few system prompts.

    Lengths in tokens, times in milliseconds. A turn's prompt is all that was said before plus the new question; the
    next turn comes after the answer's expected time and a pause (exponential).
    """

    users: int = 400
    turns: int = 6
    system_prompts: int = 4
    system_tokens: int = 2048
    question_tokens: int = 300
    answer_tokens: int = 150
    rate: float = 2.0  # new conversations per second
    pause: float = 8000.0
    block_size: int = 64


def make_conversations(plan: Conversations, seed: int) -> list[Arrival]:
    """The arrivals of a made workload; equal seeds give equal ones."""
    random = random_module.Random(seed)
    names = iter(range(1, 1 << 62))
    systems = [[next(names) for _ in range(plan.system_tokens // plan.block_size)] for _ in range(plan.system_prompts)]
    arrivals: list[Arrival] = []
    start = 0.0
    for _ in range(plan.users):
        start += random.expovariate(plan.rate) * 1000
        now = start
        # popular system prompts are much more popular than others
        weights = [1 / (rank + 1) for rank in range(len(systems))]
        local = list(random.choices(systems, weights)[0])
        length = plan.system_tokens
        for _ in range(1 + int(random.expovariate(1 / plan.turns)) if plan.turns > 1 else 1):
            length += max(1, int(random.expovariate(1 / plan.question_tokens)))
            output = max(1, int(random.expovariate(1 / plan.answer_tokens)))
            while len(local) < length // plan.block_size:
                local.append(next(names))
            arrivals.append(Arrival(now, length, output, tuple(chain(local[: length // plan.block_size]))))
            length += output
            now += output * 10 + random.expovariate(1 / plan.pause)
    return sorted(arrivals, key=lambda one: one.at)


def write_trace(path: Path, arrivals: Iterable[Arrival], block_size: int) -> None:
    """Write arrivals as JSON lines that `read_trace` takes."""
    names: dict[int, int] = {}
    fresh = iter(range(1 << 40, 1 << 62))
    with path.open("w") as file:
        for one in arrivals:
            ids = [names.setdefault(block, len(names)) for block in one.blocks]
            if one.length % block_size:
                ids.append(next(fresh))
            row = {"timestamp": one.at, "input_length": one.length, "output_length": one.output, "hash_ids": ids}
            file.write(json.dumps(row) + "\n")


def faster(arrivals: Sequence[Arrival], speedup: float) -> list[Arrival]:
    """The same requests, coming `speedup` times as fast."""
    return [msgspec.structs.replace(one, at=one.at / speedup) for one in arrivals]
