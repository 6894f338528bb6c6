"""Models whose files are on the workers' machines only: fetched over real sockets, checked, kept."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dynamod import sample
from dynamod.ingress import model_files as fetch
from dynamod.ingress.processor import Processor
from dynamod.message.discovery import ModelCard
from dynamod.preprocess import model_files as ship
from dynamod.preprocess.bundle import write_list
from dynamod.preprocess.card import read_card
from dynamod.transport.base import Reply

ELSEWHERE = "/no/such/folder/on/this/machine"
WANTED = {"annotations": ["formatted_prompt", "token_ids"]}


@pytest.fixture(autouse=True)
def info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dynamod.frontend")


async def ready(until: Any, house: Any) -> ModelCard:
    await until(lambda: "sample" in house.processor.cards)
    card: ModelCard = house.processor.cards["sample"]
    return card


async def restart(house: Any, **settings: Any) -> Processor:
    """The frontend once more, as after a restart of its process."""
    await house.system.root.stop_child("Processor", timeout=5)
    processor: Processor = await house.start(**settings)
    return processor


async def answers(house: Any) -> list[Any]:
    """What clients see, ids of prompts included."""
    found: list[Any] = []
    for fields in ({"text": "héllo 😀 wörld"}, {"prompt": "Once upon a time, "}, {"prompt": ["a", "b"], "n": 2}):
        client = await house.ask(**fields, nvext=WANTED)
        found += [await client.answers(), client.reasons, client.prompt_tokens, client.annotations]
    return found


@pytest.mark.parametrize("model", ["sample", "sample.gguf"])
async def test_answers_are_those_of_local_files(house, until, caplog, cache: Path, model: str) -> None:
    await house.start()
    member = await house.worker(model=model)
    await ready(until, house)
    local = await answers(house)
    assert member.asked == []
    await house.die(member)
    await until(lambda: not house.processor.cards)

    member = await house.worker(model=model, path=ELSEWHERE, node="n7")
    card = await ready(until, house)
    assert card.path == ELSEWHERE, "the published card is not changed"
    assert await answers(house) == local
    assert len(member.asked) == 1
    assert "fetching the tokenizer of model sample from dyn://dynamo.backend.generate on n7 (0." in caplog.text
    assert [entry.name for entry in cache.iterdir()] == [card.mdc_sum]


async def test_what_was_fetched_once_is_there(house, until, caplog) -> None:
    await house.start()
    member = await house.worker(path=ELSEWHERE)
    await ready(until, house)
    first = await answers(house)
    await restart(house)
    await ready(until, house)
    assert await answers(house) == first
    assert len(member.asked) == 1
    assert "using the cached tokenizer of model sample" in caplog.text


async def test_a_damaged_cache_is_mended(house, until, caplog, cache: Path) -> None:
    await house.start()
    member = await house.worker(path=ELSEWHERE)
    card = await ready(until, house)
    file = cache / card.mdc_sum / "tokenizer.json"
    whole = file.read_bytes()
    file.write_bytes(whole[:-10])
    await restart(house)
    await ready(until, house)
    assert file.read_bytes() == whole
    assert len(member.asked) == 2
    assert "tokenizer.json is damaged" in caplog.text
    assert len(await answers(house)) == 12


# Workers that do not send what they should.


def dies(house: Any) -> Callable[[Reply], None]:
    """Sends the list and half of the content; then its process is killed."""

    def files(reply: Reply) -> None:
        reply.accepted()
        items = ship.pack(read_card(sample.path("sample"), name="sample"))
        for item in (items[0], items[1][:100]):
            reply.items((item,))
        house.system.cell(house.ref).actor.context.task(house.die(house.members[0]), "kill")

    return files


def sends(*items: Any, finish: str | None = "stop") -> Callable[[Reply], None]:
    def files(reply: Reply) -> None:
        for place, item in enumerate(items, 1):
            reply.items((item,), finish if place == len(items) else None)

    return files


OTHER = {"config.json": b"{}", "tokenizer.json": sample.path("sample").joinpath("tokenizer.json").read_bytes()}


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ("dies", "connection to the worker lost"),
        (lambda reply: reply.failed("EngineFailed", "the disk is broken"), "the disk is broken"),
        (lambda _reply: None, "stopped sending after 0 of unknown bytes"),
        (sends(write_list(OTHER), finish=None), "stopped sending after 0 of"),
        (sends(write_list(OTHER), *OTHER.values()), "not those of the model"),
        (sends(write_list(OTHER), b"{}"), "only 2 of"),
        (sends(write_list(OTHER), b"{}", OTHER["tokenizer.json"], b"more"), "more came than"),
        (sends(b'[["../../../evil",2,""]]', b"{}"), "no part of a model"),
        (sends(b'[["/etc/passwd",2,""]]', b"{}"), "no part of a model"),
        (sends(b'[["template:../../evil",2,""]]', b"{}"), "no part of a model"),
        (sends(b'[["tokenizer.json",99999999999,""]]', b"{}"), "larger than 64 MB"),
        (sends({"tokenizer": "json"}), "no piece of a file"),
        (sends(write_list({}), b"x"), "make no model"),
    ],
)
async def test_the_next_worker_is_asked(
    house, until, caplog, monkeypatch, cache: Path, tmp_path: Path, files: Any, says: str
) -> None:
    if "stopped sending" in says:  # any worker seems to, where the machine stands still for as long
        monkeypatch.setattr(fetch, "SILENCE", 1.0)
    node = {"node": "here"}  # asked first
    bad = await house.worker(path=ELSEWHERE, files=dies(house) if files == "dies" else files, **node)
    good = await house.worker(path=ELSEWHERE, node="there")
    before = {path for path in tmp_path.rglob("*") if path.suffix != ".sock"}
    await house.start(node=lambda: "here")
    card = await ready(until, house)
    assert (len(bad.asked), len(good.asked)) == (1, 1)
    assert says in caplog.text
    assert len(await answers(house)) == 12
    entry = cache / card.mdc_sum
    written = {path for path in tmp_path.rglob("*") if path.is_file()} - before
    assert {path.parent for path in written} == {entry}, "nothing anywhere else"


async def test_a_worker_that_comes_later_is_asked_at_once(house, until, caplog, cache: Path) -> None:
    await house.start()
    bad = await house.worker(path=ELSEWHERE, files=sends(write_list(OTHER), *OTHER.values()))
    await until(lambda: len(bad.asked) > 2)
    assert house.processor.cards == {}
    await until(lambda: not any(cache.iterdir()))  # what was refused is not kept
    for said in ("cannot serve model sample", "cannot be used", "fetching the tokenizer"):
        assert caplog.text.count(said) == 1, "it is said once"
    await house.worker(path=ELSEWHERE)
    await ready(until, house)
    assert len(await answers(house)) == 12


async def test_a_model_that_goes_is_asked_for_no_more(house, until, caplog) -> None:
    await house.start()
    bad = await house.worker(path=ELSEWHERE, files=lambda reply: reply.failed("EngineFailed", "no"))
    await until(lambda: len(bad.asked) == 1)
    house.leave(bad)
    await until(lambda: not any("load sample" in task.get_name() for task in asyncio.all_tasks()))
    again = await house.worker(path=ELSEWHERE)
    await ready(until, house)
    assert len(again.asked) == 1
    assert house.announced == [("sample", True)]


# What lies here is used.


async def test_files_of_this_node_are_trusted(house, until, monkeypatch) -> None:
    def never(*_: Any) -> bool:
        raise AssertionError

    monkeypatch.setattr(ship, "same_model", never)
    await house.start(node=lambda: "here")
    member = await house.worker(node="here")
    await ready(until, house)
    assert member.asked == []


async def test_files_at_the_same_path_are_used_if_they_are_the_same(house, until, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for file in sample.path("sample").glob("*.json"):
        (other / file.name).write_bytes(file.read_bytes())
    (other / "chat_template.jinja").write_text("{{ messages[0].content }}")
    await house.start(node=lambda: "here")
    same = await house.worker(node="there")
    await ready(until, house)
    assert same.asked == []
    house.leave(same)
    await until(lambda: not house.processor.cards)
    differs = await house.worker(node="there", path=str(other))
    await ready(until, house)
    assert len(differs.asked) == 1
    client = await house.ask(text="x", nvext=WANTED)
    await client.answers()
    assert client.annotations["formatted_prompt"] != "x", "the template of the worker, not that of the path here"


async def test_another_workers_path_is_not_trusted(house, until) -> None:
    """The card may be that of a worker elsewhere: its path means nothing here, even if something lies there."""
    await house.start(node=lambda: "here")
    files = sample.path("sample.gguf")
    there = await house.worker(node="there", path=str(files))
    here = await house.worker(node="here", path=str(files))
    await ready(until, house)
    assert len(there.asked) + len(here.asked) == 1
    assert len(await answers(house)) == 12


async def test_text_engines_need_no_files(house, until, words) -> None:
    await house.start()
    member = await house.worker(words.EchoFull, "text", path=ELSEWHERE)
    await until(lambda: "text" in house.processor.cards)
    assert member.asked == []


async def test_models_come_and_go_after_the_processor_has_ended(house, until) -> None:
    await house.start()
    first = await house.worker(path=ELSEWHERE)
    await ready(until, house)
    house.processor.context.stop()
    await until(lambda: house.system.cell(house.ref) is None)
    other = await house.worker(name="other", path=ELSEWHERE)
    house.leave(first)
    assert set(house.processor.cards) == {"sample"}, "the processor takes no notice"
    assert other.asked == []


async def test_two_front_doors_fetch_at_once(house, until, cache: Path) -> None:
    await house.worker(path=ELSEWHERE)
    await house.start()
    one = house.processor
    other = house.system.start("Other", lambda: Processor(house.view, house.transport), restart="temporary")
    await house.system.ready(other, timeout=5)
    two = house.system.cell(other).actor
    await until(lambda: one.cards and two.cards)
    assert len(list(cache.iterdir())) == 1
    assert one.cards == two.cards
