"""What others write into the registry: values that are malformed, of another system, of a newer version, or absurd."""

import json
from collections.abc import Iterator

import msgspec

from dynamod.discovery.keys import CARDS, EXITED, INSTANCES, QUARANTINED, Address, card_key, instance_key, place_of
from dynamod.message.discovery import Instance, ModelCard

from .shape import MODEL

_PLACE = f"{place_of(Address())}/"

_BROKEN = (b"", b"\xff\xfe\x00", b"{", b"[]", b"null", b"[" * 5000)
_CARDS = (
    {"display_name": "Qwen/Qwen3-0.6B", "slug": "qwen_qwen3-0_6b", "model_info": {"hf_config_json": "x"}},
    {"name": MODEL, "kind": "video"},
    {"name": [MODEL]},
    {"name": MODEL, "kv_cache_block_size": 0},
    {"name": MODEL, "migration_limit": 10**30},
    {"name": MODEL, "context_length": -1},
    {"name": "\x1b[2J" + MODEL},
    {"name": "x" * 50_000},
)
_INSTANCES = (
    {"component": "backend", "endpoint": "generate", "namespace": "dynamo", "lease": 7},
    {"component": "", "endpoint": "generate", "namespace": "dynamo", "instance_id": 7, "transport": {}},
    {"component": "backend", "endpoint": "generate", "namespace": "dynamo", "instance_id": -7, "transport": {}},
    {"component": "backend", "endpoint": "generate", "namespace": "dynamo", "instance_id": 7, "transport": "nats"},
)


def _foreign() -> Iterator[tuple[str, bytes]]:
    """All of them, each at a place of its own; behind the malformed ones a whole worker that speaks other protocols."""
    for prefix, records in ((CARDS, _CARDS), (INSTANCES, _INSTANCES)):
        for number, value in enumerate((*_BROKEN, *(json.dumps(record).encode() for record in records)), 1):
            yield f"{prefix}{_PLACE}{number:x}", value
            yield f"{prefix}{number}", value
    for prefix in (EXITED, QUARANTINED):
        yield f"{prefix}nobody", b"\xff"
        yield f"{prefix}7", b"\xff"
    other = Instance("dynamo", "backend", "generate", 0xF0E1, {"tcp": "10.0.0.1:1"}, node="elsewhere")
    yield instance_key(other), msgspec.json.encode(other)
    yield card_key(other), msgspec.json.encode(ModelCard("another model", "text"))


FOREIGN = tuple(_foreign())
"""Keys and values."""
