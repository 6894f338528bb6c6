"""A user's file that chooses its own tokens, behind the whole frontend: it gets a mask for the form of the answer."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dynamod.engine.base import Engine, EngineOptions, Spawn
from dynamod.engine.python.engine import PyTok
from dynamod.message.discovery import Capabilities
from dynamod.message.errors import BadRequest
from dynamod.message.worker import BEHIND, MATCHED

SAMPLES = """
import asyncio, random

async def generate(request, mask=None):
    said = []
    while len(said) < request["stop_conditions"]["max_tokens"]:
        random.seed(len(request["token_ids"]) + len(said))  # by the place, so that another goes on alike
        logits = [random.random() for _ in range(1024)]
        if mask is not None:
            if mask.must_end(said):
                break
            mask.apply(logits, said)
        best = max(range(1024), key=logits.__getitem__)
        if best in request["eos_token_ids"]:
            break
        said.append(best)
        yield {"token_ids": [best]}
        await asyncio.sleep(0.01)
"""
UNAWARE = "async def generate(request, context):\n    yield {'token_ids': request['token_ids'][:1]}\n"
FORM: dict[str, Any] = {"structured_outputs": {"regex": "[a-z]{20}"}, "max_tokens": 100}


@pytest.fixture
def of(tmp_path: Path) -> Callable[[str], Callable[[EngineOptions, Spawn], Engine[Any]]]:
    def write(text: str) -> Callable[[EngineOptions, Spawn], Engine[Any]]:
        file = tmp_path / "mine.py"
        file.write_text(text)
        return functools.partial(_made, file)

    return write


def _made(file: Path, options: EngineOptions, spawn: Spawn) -> Engine[Any]:
    options.arguments["file"] = str(file)
    return PyTok(options, spawn)


async def ready(house: Any, until: Any, count: int) -> None:
    await until(lambda: len(house.view.serving("sample")) == count and house.processor.cards)


async def test_a_file_that_takes_a_mask_keeps_to_forms(house: Any, until: Any, of: Any) -> None:
    await house.start()
    member = await house.worker(of(SAMPLES))
    await ready(house, until, 1)
    assert set(MATCHED) >= {BEHIND}
    assert member.engine.card().capabilities.forms == MATCHED
    [text] = await (await house.ask(**FORM)).answers()
    assert len(text) == 20
    assert text.isalpha()
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}, "b": {"type": "boolean"}}, "required": ["a", "b"]}
    [found] = await (await house.ask(guided_json=schema, max_tokens=200)).answers()
    assert json.loads(found).keys() == {"a", "b"}
    [free] = await (await house.ask(max_tokens=20)).answers()
    assert not free.isalpha(), "without a form there is no mask"


async def test_a_file_that_takes_none_refuses_forms(house: Any, until: Any, of: Any) -> None:
    await house.start()
    await house.worker(of(UNAWARE))
    await ready(house, until, 1)
    with pytest.raises(BadRequest, match="has no grammars"):
        await house.ask(**FORM)
    assert await (await house.ask()).answers()


async def test_a_file_dies_in_the_middle_and_another_goes_on(house: Any, until: Any, of: Any) -> None:
    can = Capabilities(exact_continuation=True, grammars=True, forms=MATCHED)
    await house.start()
    dies = await house.worker(of(SAMPLES), capabilities=can)
    await ready(house, until, 1)
    whole = await (await house.ask(**FORM)).answers()
    client = await house.ask(**FORM)
    await until(lambda: client.counts.get(0, 0) > 2)
    await house.worker(of(SAMPLES), capabilities=can)
    await ready(house, until, 2)
    await house.die(dies)
    assert await client.answers() == whole
