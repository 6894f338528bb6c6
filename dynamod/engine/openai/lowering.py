"""From a client's request to the server's."""

from typing import Any

import msgspec

from dynamod.message.worker import Chat

_OURS = ("backend_instance_id", "annotations", "router_config_override")
"""Members of `nvext` that speak of our instances and events."""
_INT64 = 2**63
_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode


def lower(request: Chat, model: str) -> bytes:
    """The client's JSON as it came, but: one choice, streamed, with usage, under the server's name of the model.

    Choices are requests of their own here (`id#1`), so the seed of each is another one. The ingress itself puts before
    the answers what `echo` asks for.
    """
    body: dict[str, Any] = dict(_decode(request.body))
    number = request.request_id.rpartition("#")[2]
    samples = msgspec.json.decode(body.pop("n", b"null")) or 1
    for name in ("best_of", "echo", "nvext"):
        value = body.pop(name, None)
        if name == "nvext" and value is not None:
            body |= _nvext(msgspec.json.decode(value))
    if number.isdigit() and (seed := msgspec.json.decode(body.get("seed", b"null"))) is not None:
        body["seed"] = (seed + int(number) % samples + _INT64) % (2 * _INT64) - _INT64
    return _encode({**body, "model": model, "stream": True, "stream_options": {"include_usage": True}})


def lower_embedding(request: Chat, model: str) -> tuple[bytes, int | None]:
    """The client's JSON as it came, under the server's name of the model, and how many numbers a vector is to have.

    The ingress itself writes vectors as the client wants them.
    """
    body: dict[str, Any] = dict(_decode(request.body))
    for name in ("nvext", "encoding_format"):
        body.pop(name, None)
    dimensions: int | None = msgspec.json.decode(body.get("dimensions", b"null"))
    return _encode({**body, "model": model}), dimensions


def _nvext(nvext: dict[str, Any] | None) -> dict[str, Any]:
    left = {name: value for name, value in (nvext or {}).items() if name not in _OURS and value is not None}
    return {"nvext": left} if left else {}
