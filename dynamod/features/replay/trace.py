"""Requests to replay: recorded traces (Mooncake's JSON lines), and made conversations with shared system prompts."""

import gzip
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


class _Replay(msgspec.Struct, frozen=True):
    trace_block_size: int
    input_length: int
    input_sequence_hashes: list[int]


class _Choice(msgspec.Struct, frozen=True):
    output_tokens: int
    replay: _Replay | None = None


class _Request(msgspec.Struct, frozen=True):
    request_received_ms: float
    output_tokens: int
    replay: _Replay | None = None
    choices: list[_Choice] = []


class _Row(msgspec.Struct, frozen=True):
    event_type: str
    request: _Request | None = None


class RequestTrace(msgspec.Struct, frozen=True):
    """A request trace. `skipped`: requests without lengths and hashes, or without an answer."""

    arrivals: list[Arrival]
    block_size: int
    skipped: int


def read_request_trace(path: Path) -> RequestTrace | None:
    """Rows of `dynamo.request.trace.v1`, plain or packed; None: the file has others. Raises UserError.

    Each choice is a request of its own.
    """
    try:
        data = path.read_bytes()
        data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    except (OSError, EOFError) as error:
        raise UserError(f"trace {path}: {error}", "give a file of JSON lines") from None
    if b'"dynamo.request.trace.v1"' not in data.partition(b"\n")[0]:
        return None
    decoder = msgspec.json.Decoder(_Row)
    found: list[Arrival] = []
    sizes, skipped = set[int](), 0
    for number, line in enumerate(data.splitlines(), 1):
        try:
            row = decoder.decode(line)
        except msgspec.MsgspecError as error:
            raise UserError(f"{path}:{number}: {error}", "each line is a row of a request trace") from None
        if row.event_type != "request_end" or row.request is None:
            continue
        request = row.request
        for choice in request.choices or [_Choice(request.output_tokens, request.replay)]:
            if choice.replay is None or choice.output_tokens < 1 or choice.replay.input_length < 1:
                skipped += 1
                continue
            sizes.add(choice.replay.trace_block_size)
            blocks = tuple(choice.replay.input_sequence_hashes[: choice.replay.input_length // min(sizes)])
            found.append(Arrival(request.request_received_ms, choice.replay.input_length, choice.output_tokens, blocks))
    if len(sizes) != 1:
        what = f"has blocks of {', '.join(map(str, sorted(sizes)))} tokens" if sizes else "has no request to replay"
        raise UserError(f"trace {path} {what}", "give the rows of models with one block size")
    began = min(one.at for one in found)
    arrivals = [msgspec.structs.replace(one, at=one.at - began) for one in found]
    return RequestTrace(sorted(arrivals, key=lambda one: one.at), sizes.pop(), skipped)


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
