"""Texts whose vectors are wanted, as the requests of engines: groups of them, which go to workers on their own."""

import asyncio
from collections.abc import Callable, Sequence

from dynamod.ingress.base import Job
from dynamod.ingress.lowering import Lowered, Served, named
from dynamod.message import tokens
from dynamod.message.errors import BadRequest, unsupported
from dynamod.message.openai import EngineFields
from dynamod.message.worker import Chat, Embed, Stops
from dynamod.preprocess.conditions import check_token_ids, check_whole_input
from dynamod.preprocess.model import Model
from dynamod.preprocess.output import TextOutput

MOST = 2048
"""Texts of one request, as OpenAI has it."""
MOST_TOKENS = 2**21
"""Tokens of all pairs of one request, which hold one text up to `MOST` times: 16 MB of ids."""
GROUP, GROUP_TOKENS = 32, 8192
"""Texts, and tokens, that one request of an engine has at most; a longer text is a group of its own."""
AT_ONCE = 8
"""Groups of one request that are in flight at a time: the others leave the workers to other clients."""
_THREAD_AT = 10_000
"""Characters of all texts: at most about 5 ms of work for the slower tokenizer."""
_EACH = 20
"""Characters that take as long as one more text, however short it is."""
_LONGEST_TOKEN = 256

Name = Callable[[int], str]
"""How the request calls the text at a place."""


def check_count(count: int, param: str) -> None:
    """Raises BadRequest for more texts than one request may have."""
    if count > MOST:
        raise BadRequest(f"`{param}` has {count} texts; {MOST} are allowed in one request", param=param)


def check_options(request: EngineFields) -> None:
    """Refuse members of `nvext` that say something of answers, which there are none of. Raises BadRequest."""
    known = ("backend_instance_id", "agent_hints", "router_config_override")
    if request.nvext is not None:
        for name in request.nvext.__struct_fields__:
            if name not in known and getattr(request.nvext, name) is not None:
                raise unsupported(f"nvext.{name}", f"`nvext.{name}` is not served here")


async def lower_texts(job: Job, served: Served, texts: Sequence[str | list[int]], name: Name) -> Lowered:
    """The requests for a token engine. Raises BadRequest, which names the text that is too long."""
    card, model = served.card, served.model
    if model is None:
        raise BadRequest(f"The model {card.name!r} takes text: it serves /v1/embeddings alone.", param="model")
    arguments = (model, texts, card.context_length, name)
    large = sum(map(len, texts)) + _EACH * len(texts) > _THREAD_AT
    encoded = await asyncio.to_thread(_encoded, *arguments) if large else _encoded(*arguments)
    groups = _groups(encoded)
    requests = named([Embed(job.id, card.name, tuple(group), card.mdc_sum) for group in groups])
    counts = [sum(map(tokens.count, group)) for group in groups]
    outputs = [TextOutput(Stops()) for _ in groups]
    return Lowered(card, model, requests, outputs, counts, {}, at_once=AT_ONCE)


async def lower_pairs(job: Job, served: Served, pairs: Sequence[tuple[str, str]], name: Name) -> Lowered:
    """The requests for an engine that scores pairs: each pair is one input, as its tokenizer frames two texts.

    Raises BadRequest, which names what is too long.
    """
    model = served.model
    assert model is not None, "an engine that scores pairs takes tokens"
    characters = sum(len(one) + len(other) for one, other in pairs)
    large = characters + 2 * _EACH * len(pairs) > _THREAD_AT
    arguments = (model, pairs, served.card.context_length, name)
    inputs = await asyncio.to_thread(framed, *arguments) if large else framed(*arguments)
    return await lower_texts(job, served, inputs, name)


def framed(
    model: Model, pairs: Sequence[tuple[str, str]], context_length: int = 0, name: Name = "pairs[{}]".format
) -> list[list[int]]:
    """The ids of each pair: first token, one text, last token, the other text, last token. Safe in a thread.

    What the model puts before a text, at most one token, is not put before the second one. Raises BadRequest at the
    first pair that is too long, or with which all have more than `MOST_TOKENS`: one text may stand in all pairs, which
    together are far longer than the body.
    """
    encode = model.tokenizer.encode
    before = min(1, len(encode("", True)))
    first: dict[str, list[int]] = {}
    found: list[list[int]] = []
    total = 0
    for place, (one, other) in enumerate(pairs):
        _check_characters(len(one) + len(other), context_length, name(place))
        if one not in first:
            first[one] = encode(one, True)
        ids = [*first[one], *encode(other, True)[before:]]
        check_whole_input(len(ids), context_length, name(place))
        if (total := total + len(ids)) > MOST_TOKENS:
            many = f"{place + 1} pairs of texts have {total} tokens; {MOST_TOKENS} are allowed in one request"
            raise BadRequest(f"`{name(place)}`: the first {many}", param=name(place))
        found.append(ids)
    return found


def lower_body(job: Job, served: Served) -> Lowered:
    """The request for a text engine: the client's own JSON."""
    request = Chat(job.id, served.card.name, "embedding", job.body)
    return Lowered(served.card, None, [request], [TextOutput(Stops())], [0], {})


def _encoded(model: Model, texts: Sequence[str | list[int]], context_length: int, name: Name) -> list[bytes]:
    """Packed ids of each text. Safe in a thread. Raises BadRequest."""
    found: list[bytes] = []
    for place, text in enumerate(texts):
        if isinstance(text, str):
            _check_characters(len(text), context_length, name(place))
            ids = model.tokenizer.encode_packed(text, True) if text else b""
        else:
            check_token_ids(text, name(place), model.tokenizer.vocab_size)
            ids = tokens.pack(text)
        check_whole_input(tokens.count(ids), context_length, name(place))
        found.append(ids)
    return found


def _check_characters(characters: int, context_length: int, name: str) -> None:
    """Refuse what is too long however few tokens it may have, before it is tokenised. Raises BadRequest."""
    if context_length and characters > context_length * _LONGEST_TOKEN:
        check_whole_input(characters // _LONGEST_TOKEN, context_length, name)


def _groups(inputs: Sequence[bytes]) -> list[list[bytes]]:
    groups: list[list[bytes]] = []
    room = 0
    for ids in inputs:
        count = tokens.count(ids)
        if not groups or len(groups[-1]) == GROUP or count > room:
            groups.append([])
            room = GROUP_TOKENS
        groups[-1].append(ids)
        room -= count
    return groups
