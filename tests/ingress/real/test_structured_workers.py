"""Requests with a form and workers that know less of forms than others: where they go, and what happens to an answer
whose worker dies in the middle of it.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from dynamod.engine.base import EngineOptions, Spawn
from dynamod.engine.mocker.engine import Mocker
from dynamod.message.discovery import Capabilities
from dynamod.message.errors import BadRequest, EngineFailed
from dynamod.message.worker import BEHIND, LATER_TAGS, MATCHED, REPLAY

FORM = {"regex": "[a-z]{20}"}


class Seen(Mocker):
    """Keeps what it was asked."""

    def __init__(self, options: EngineOptions, spawn: Spawn) -> None:
        options.arguments.update(speedup_ratio=options.arguments.pop("speed", 0), num_gpu_blocks=200, block_size=16)
        super().__init__(options, spawn)
        self.requests: list[Any] = []

    def submit(self, request: Any, reply: Any) -> None:
        self.requests.append(request)
        super().submit(request, reply)


def slow(options: EngineOptions, spawn: Spawn) -> Mocker:
    options.arguments["speed"] = 0.1  # an answer takes longer than another worker needs to begin
    return Seen(options, spawn)


def knows(*forms: str, **fields: Any) -> Capabilities:
    return Capabilities(**{"exact_continuation": True, "seed": True, "grammars": True, "forms": forms, **fields})


async def ready(house: Any, until: Callable[..., Any], count: int) -> None:
    await until(lambda: len(house.view.serving("sample")) == count and house.processor.cards)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_a_form_behind_reasoning_goes_only_where_it_is_understood(house: Any, until: Any, order: Any) -> None:
    await house.start()
    kinds = [knows(), knows(*MATCHED)]
    made = {place: await house.worker(Seen, capabilities=kinds[place], reasoning_parser="basic") for place in order}
    old, new = made[0], made[1]
    await ready(house, until, 2)
    for _ in range(8):
        assert len((await (await house.ask(structured_outputs=FORM)).answers())[0]) == 20
    assert (len(old.engine.requests), len(new.engine.requests)) == (0, 8)
    for _ in range(8):  # a form that the answer begins with is understood by both
        await (await house.ask(structured_outputs=FORM, reasoning_effort="none")).answers()
    assert old.engine.requests
    house.leave(new)
    await ready(house, until, 1)
    with pytest.raises(BadRequest, match="keeps to no form that stands after reasoning") as found:
        await house.ask(structured_outputs=FORM)
    assert found.value.param == "structured_outputs"


async def test_a_worker_without_forms_gets_none(house: Any, until: Any) -> None:
    await house.start()
    await house.worker(Seen, capabilities=knows(*MATCHED))
    without = await house.worker(Seen, capabilities=knows(grammars=False))
    await ready(house, until, 2)
    for _ in range(8):
        await (await house.ask(structured_outputs=FORM)).answers()
    assert not without.engine.requests


@pytest.mark.parametrize(
    ("first", "second", "error"),
    [
        (MATCHED, MATCHED, ""),
        ((REPLAY,), (BEHIND,), "no other instance is ready"),
        ((BEHIND,), (BEHIND,), "cannot continue an answer that has been sent in part, and keeps to a form"),
    ],
)
async def test_a_worker_dies_in_the_middle(house: Any, until: Any, first: Any, second: Any, error: str) -> None:
    """The answer goes on only where the form does: at a worker that says that it replays what has come."""
    await house.start()
    dies = await house.worker(slow, capabilities=knows(*first))
    await ready(house, until, 1)
    fields: dict[str, Any] = {"structured_outputs": FORM, "seed": 3}
    whole = await (await house.ask(**fields)).answers()
    client = await house.ask(**fields)
    await until(lambda: client.counts.get(0))
    await house.worker(Seen, capabilities=knows(*second))
    await ready(house, until, 2)
    await house.die(dies)
    if not error:
        assert await client.answers() == whole
        return
    with pytest.raises(Exception, match=error):
        await client.answers()


async def test_before_the_first_token_any_worker_takes_it(house: Any, until: Any) -> None:
    await house.start()
    dies = await house.worker(Seen, capabilities=knows())
    await ready(house, until, 1)
    gate = asyncio.Event()

    async def prepare(_grammar: Any) -> None:
        await gate.wait()

    dies.engine.prepare = prepare
    client = await house.ask(structured_outputs=FORM)
    await until(lambda: dies.open)
    await house.worker(Seen, capabilities=knows())
    await ready(house, until, 2)
    await house.die(dies)
    assert len((await client.answers())[0]) == 20
    gate.set()


async def test_a_worker_refuses_to_begin_a_form_anew(house: Any, until: Any, monkeypatch: Any) -> None:
    """Also where a frontend of another version has sent it."""
    monkeypatch.setattr(Seen, "capabilities", knows())
    await house.start()
    dies = await house.worker(slow, capabilities=knows(*MATCHED))
    await ready(house, until, 1)
    client = await house.ask(structured_outputs=FORM, seed=3)
    await until(lambda: client.counts.get(0))
    await house.worker(Seen, capabilities=knows(*MATCHED))
    await ready(house, until, 2)
    await house.die(dies)
    with pytest.raises(EngineFailed, match="cannot continue in an answer that keeps to a form"):
        await client.answers()


@pytest.mark.parametrize("first", [0, 1])
async def test_what_a_model_can_do_follows_its_workers(house: Any, until: Any, first: int) -> None:
    """In an update workers that know no forms leave, and others have come: nothing is restarted for that."""
    await house.start()
    kinds = [knows(grammars=False), knows(*MATCHED)]
    made = {at: await house.worker(Seen, capabilities=kinds[at]) for at in (first, 1 - first)}
    await ready(house, until, 2)
    assert len((await (await house.ask(structured_outputs=FORM)).answers())[0]) == 20
    house.leave(made[0])
    await ready(house, until, 1)
    assert len((await (await house.ask(structured_outputs=FORM)).answers())[0]) == 20
    old = await house.worker(Seen, capabilities=kinds[0])
    await ready(house, until, 2)
    house.leave(made[1])
    await ready(house, until, 1)
    with pytest.raises(BadRequest, match="has no grammars"):
        await house.ask(structured_outputs=FORM)
    await (await house.ask(max_tokens=1)).answers()
    assert old.engine.requests


async def test_what_any_worker_may_be_asked_all_must_know(house: Any, until: Any) -> None:
    await house.start()
    more = await house.worker(Seen, capabilities=knows(logprobs=True))
    await ready(house, until, 1)
    fields: dict[str, Any] = {"logprobs": True, "max_tokens": 1}
    await (await house.ask(**fields)).answers()
    less = await house.worker(Seen, capabilities=knows(logprobs=False))
    await ready(house, until, 2)
    with pytest.raises(BadRequest, match="offers no logprobs"):
        await house.ask(**fields)
    house.leave(less)
    await ready(house, until, 1)
    await (await house.ask(**fields)).answers()
    assert len(more.engine.requests) == 2


async def test_later_tags_go_only_where_they_are_read(house: Any, until: Any) -> None:
    await house.start()
    old = await house.worker(Seen, capabilities=knows(*(word for word in MATCHED if word != LATER_TAGS)))
    new = await house.worker(Seen, capabilities=knows(*MATCHED))
    await ready(house, until, 2)
    plain = {"type": "structural_tag", "format": {"type": "const_string", "value": "a"}}
    later = {"type": "structural_tag", "format": {"type": "star", "content": plain["format"]}}
    for _ in range(8):
        await (await house.ask(structured_outputs={"structural_tag": later}, max_tokens=5)).answers()
    assert (len(old.engine.requests), len(new.engine.requests)) == (0, 8)
    house.leave(new)
    await ready(house, until, 1)
    assert await (await house.ask(structured_outputs={"structural_tag": plain})).answers() == ["a"]
    with pytest.raises(BadRequest, match="a structural tag with such parts"):
        await house.ask(structured_outputs={"structural_tag": later})
