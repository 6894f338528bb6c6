"""The real llama.cpp with the shipped sample model: answers, batches, the prefix cache, cancels, faults."""

import asyncio
import dataclasses
import logging
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # the sample model is too small for more

pytest.importorskip("llama_cpp", reason="needs the extra llama_cpp")

from dynamod import sample
from dynamod.actor import System
from dynamod.engine.base import EngineOptions
from dynamod.engine.llamacpp.arguments import arguments_of
from dynamod.engine.llamacpp.engine import LlamaCpp
from dynamod.engine.llamacpp.model import Model as LoadedModel
from dynamod.engine.llamacpp.sizing import cell_bytes
from dynamod.engine.llamacpp.statistics import LlamaCppStatistics
from dynamod.kvcache.hashes import block_hashes
from dynamod.message import tokens
from dynamod.message.discovery import ModelCard
from dynamod.message.errors import UserError
from dynamod.message.ingress import Logprobs
from dynamod.message.kv_events import Removed, Snapshot, Stored
from dynamod.message.openai import ChatRequest, Message
from dynamod.message.worker import Generate, Sampling, Stops
from dynamod.preprocess.gguf_file import read_metadata
from dynamod.preprocess.model import Model
from tests.preprocess.conftest import train_bytes, write_folder

pytestmark = pytest.mark.engine

PATH = sample.path("sample.gguf")
MODEL = Model.load(ModelCard("m", path=str(PATH), context_length=2048, eos_token_ids=(1023, 1021)))
CAPITALS = {"France": "Paris", "Spain": "Madrid", "Japan": "Tokyo", "Kenya": "Nairobi", "Norway": "Oslo"}


def ids_of(text: str) -> list[int]:
    request = ChatRequest(model="m", messages=[Message(role="user", content=text)])
    return list(tokens.unpack(MODEL.encode(MODEL.prepare_chat(request), "r").token_ids))


def asked(
    text: str | list[int], *, prior: list[int] | None = None, stops: dict[str, Any] | None = None, **sampling: Any
) -> Generate:
    ids = ids_of(text) if isinstance(text, str) else text
    return Generate(
        "r",
        "m",
        tokens.pack(ids),
        Stops(**{"stop_token_ids_hidden": (1023, 1021), **(stops or {})}),
        Sampling(**{"temperature": 0.0, **sampling}),
        (1023, 1021),
        prior_output=tokens.pack(prior or []),
    )


def said(answer: Any) -> str:
    return MODEL.tokenizer.decode([index for index in answer.ids if index not in (1023, 1021)])


class Served:
    """A worker with the engine."""

    def __init__(self, house: Any) -> None:
        self.house = house
        self.engine: LlamaCpp = house.workers[-1]._engine

    @property
    def now(self) -> LlamaCppStatistics:
        return self.engine.statistics()

    async def ask(self, *arguments: Any, **fields: Any) -> Any:
        return await self.house.ask(asked(*arguments, **fields)).wait(30)

    async def computing(self, *arguments: Any, **fields: Any) -> tuple[Any, int]:
        """An answer, and how many tokens were computed for it."""
        before = self.now.computed_total
        answer = await self.ask(*arguments, **fields)
        return answer, self.now.computed_total - before


async def serve(
    words: Any, system: System, name: str = "worker", context: int | None = None, **arguments: Any
) -> Served:
    options = EngineOptions("m", PATH, context_length=context, arguments=arguments)
    return Served(await words.House(system, LlamaCpp, options).start(name))


async def test_it_knows_what_it_was_taught(words: Any, system: System) -> None:
    served = await serve(words, system)
    card = served.house.published[0]
    assert (card.engine, card.kind, card.context_length, card.kv_cache_block_size) == ("llamacpp", "tokens", 2048, 16)
    assert card.capabilities.exact_continuation
    assert served.engine._model is not None
    assert set(card.eos_token_ids) == set(served.engine._model.vocabulary.ends) == {1023, 1021}
    for country, capital in CAPITALS.items():
        answer = await served.ask(f"What is the capital of {country}?")
        assert said(answer) == f"The capital of {country} is {capital}."
        assert (answer.finish, answer.ids[-1]) == ("stop", 1023)
    counted = await served.ask("Count from 3 to 12.", stops={"max_tokens": 5})
    assert (len(counted.ids), counted.finish) == (5, "length")
    assert said(counted).startswith("3, 4")
    longer = await served.ask("ping", stops={"min_tokens": 12, "max_tokens": 40})
    assert 1023 not in longer.ids[:11]
    ignoring = await served.ask("ping", stops={"ignore_eos": True, "stop_token_ids_hidden": (), "max_tokens": 40})
    assert (len(ignoring.ids), ignoring.finish) == (40, "length")


async def test_mistral_rs_says_the_same(words: Any, system: System) -> None:
    pytest.importorskip("mistralrs", reason="needs the extra mistralrs")
    from dynamod.engine.mistralrs import MistralRs

    theirs = await words.House(system, MistralRs, EngineOptions("m", PATH)).start("theirs")
    ours = await serve(words, system)
    for text in (*[f"What is the capital of {country}?" for country in CAPITALS], "Tell me a story.", "Who are you?"):
        answer = await theirs.ask(words.chat(text, temperature=0)).wait(60)
        assert said(await ours.ask(text)) == answer.text


async def test_eight_at_once_answer_as_each_alone(words: Any, system: System) -> None:
    served = await serve(words, system, step_seconds=0.01)
    texts = ["Tell me a story.", "Who are you?", *[f"Count from {n} to {n + 30}." for n in range(1, 7)]]
    alone = [(await served.ask(text)).ids for text in texts]
    before = served.now.steps
    together = [served.house.ask(asked(text)) for text in texts]
    assert [(await answer.wait(30)).ids for answer in together] == alone
    steps = served.now.steps - before
    assert steps < max(map(len, alone)) + 60, "they share steps"
    assert (served.now.running, served.now.waiting, served.now.in_step_for) == (0, 0, None)


async def test_a_seed_says_the_same_again_and_from_any_place_on(words: Any, system: System) -> None:
    """Continued token by token or computed as a prompt, logits differ in the third digit: rarely a token does too."""
    served = await serve(words, system)
    wild = {"temperature": 2.0, "top_p": 0.98, "presence_penalty": 0.4, "repetition_penalty": 1.05}
    stops = {"max_tokens": 60, "ignore_eos": True, "stop_token_ids_hidden": ()}
    found, same = set(), []
    for seed in range(4):
        prompt = [100 + seed, 500, 30]
        whole = (await served.ask(prompt, seed=seed, stops=stops, **wild)).ids
        assert len(set(whole)) > 10, "it is wild indeed"
        found.add(tuple(whole))
        for cut in (1, 30, 59):
            rest = await served.ask(prompt, prior=whole[:cut], seed=seed, stops=stops, **wild)
            same.append(whole[:cut] + rest.ids == whole)
        other = await served.ask(prompt, seed=seed + 100, stops=stops, **wild)
        assert other.ids != whole
    assert len(found) == 4
    assert sum(same) >= 10


async def test_a_long_prompt_does_not_stop_others(words: Any, system: System) -> None:
    served = await serve(words, system, step_seconds=0.001)
    stream = served.house.ask(asked("Count from 1 to 100.", stops={"max_tokens": 300}))
    await words.until(lambda: len(stream.ids) > 3)
    before = len(stream.ids)
    long = served.house.ask(asked([5 + n % 900 for n in range(1500)], stops={"max_tokens": 1}))
    await long.wait(30)
    assert len(stream.ids) - before >= 1500 / 128, "it had a token per piece of the prompt"
    assert not stream.done.is_set() or stream.finish == "stop"
    await stream.wait(30)
    assert said(stream).startswith("1, 2, 3, 4, 5")
    assert said(stream) == said(await served.ask("Count from 1 to 100.", stops={"max_tokens": 300}))


async def test_a_known_prefix_is_not_computed_and_told(words: Any, system: System) -> None:
    served = await serve(words, system)
    feed = served.house.subscribe()
    text = "Repeat: " + "apple river stone " * 8
    first, cold = await served.computing(text)
    size, length = 16, len(ids_of(text))
    request = asked(text)
    blocks = block_hashes(request.token_ids, size)
    assert served.engine.footprint(request) == (tuple(blocks), length - (length - 1) // size * size)
    second, warm = await served.computing(text)
    assert second.ids == first.ids
    assert cold - warm == (length - 1) // size * size
    held: set[int] = set()
    await words.until(lambda: any(isinstance(item, Stored) for items in feed.news for item in items))
    for item in [item for items in feed.news for item in items]:
        if isinstance(item, Stored):
            assert item.parent is None or item.parent in held
            held |= set(item.blocks)
    whole = block_hashes(request.token_ids + tokens.pack(first.ids[:-1]), size)
    assert held == set(whole), "what was computed, of prompt and answer"
    later = served.house.subscribe()
    await words.until(lambda: later.news)
    [holds] = [item for item in later.news[0] if isinstance(item, Snapshot)]
    assert set(holds.blocks) == set(holds.hashes) == held
    assert served.now.hit_rate > 0.3
    off = await serve(words, system, "off", enable_prefix_caching=False)
    assert not off.house.published[0].capabilities.kv_events
    assert (await off.computing(text))[0].ids == first.ids
    assert (await off.computing(text))[1] == cold
    assert off.engine.snapshot()[0] == Snapshot((), ())


async def test_few_cells_make_no_difference_but_time(words: Any, system: System) -> None:
    plenty, few = await serve(words, system), await serve(words, system, "few", num_blocks=20, max_num_seqs=8)
    assert (few.now.total_blocks, few.house.published[0].context_length) == (20, 320)
    feed = few.house.subscribe()
    texts = [f"Count from {n} to {n + 15}." for n in range(1, 13)]
    wanted = [(await plenty.ask(text)).ids for text in texts]
    got = [few.house.ask(asked(text)) for text in texts]
    assert [(await answer.wait(30)).ids for answer in got] == wanted
    assert few.now.preemptions > 0
    assert few.now.active_blocks == 0
    await asyncio.sleep(0)
    held: set[int] = set()
    for item in [item for items in feed.news for item in items]:
        if isinstance(item, Stored):
            held |= set(item.blocks)
        elif isinstance(item, Removed):
            held -= set(item.blocks)
    assert held == set(few.engine._cells.pool.names())
    assert 0 < len(held) <= 20


async def test_steps_may_be_smaller_than_the_slots(words: Any, system: System) -> None:
    served = await serve(words, system, n_batch=8, max_num_seqs=8)
    assert served.engine._model is not None
    assert served.engine._model.slots > 100
    texts = [f"What is the capital of {country}?" for country in CAPITALS] * 2
    answers = [served.house.ask(asked(text)) for text in texts]
    found = [said(await answer.wait(30)) for answer in answers]
    assert [text.split()[-1] for text in found] == [f"{capital}." for capital in CAPITALS.values()] * 2


def test_the_cache_is_as_large_as_was_reckoned(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "dynamod.engine.llamacpp")
    arguments = arguments_of({"n_ctx": 16384, "cache_type_k": "q8_0"})
    model = LoadedModel(PATH, arguments, None, lambda: True)
    model.free()
    [mebibytes] = re.findall(r"llama_kv_cache: size = +([\d.]+) MiB", caplog.text)
    assert cell_bytes(read_metadata(PATH), arguments) * 16384 / 2**20 == pytest.approx(float(mebibytes), abs=0.01)


def test_an_abort_of_llamacpp_is_a_line_not_a_debugger(tmp_path: Path) -> None:
    code = (
        "from dynamod.engine.llamacpp.library import library\n"
        "api = library()\nfrom llama_cpp._ggml import libggml\nlibggml.ggml_abort(b'here.c', 7, b'%s', b'because')"
    )
    environ = {name: value for name, value in os.environ.items() if name != "GGML_NO_BACKTRACE"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environ, capture_output=True, timeout=60, text=True
    )
    assert done.returncode == -signal.SIGABRT
    assert "here.c:7: because" in done.stderr
    assert len(done.stderr.splitlines()) < 5, done.stderr


def test_the_whole_package_is_there_for_who_imports_it_later(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom dynamod.engine.llamacpp.library import library, version\napi = library()\n"
        "assert not {'llama_cpp', 'llama_cpp.llama', 'jinja2'} & sys.modules.keys()\n"
        "import llama_cpp\nassert llama_cpp.llama_cpp is api and llama_cpp.Llama and version() == llama_cpp.__version__"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, timeout=60)


async def test_who_leaves_is_forgotten_within_a_step(words: Any, system: System) -> None:
    served = await serve(words, system, max_num_seqs=1)
    endless = asked("Tell me a story.", stops={"ignore_eos": True, "stop_token_ids_hidden": ()})
    first, second = served.house.ask(endless), served.house.ask(endless)
    await words.until(lambda: len(first.ids) > 5)
    assert (served.now.running, served.now.waiting) == (1, 1)
    first.stream.cancel()
    await words.until(lambda: len(second.ids) > 5)
    second.stream.cancel()
    await words.until(lambda: served.now.running == 0)
    steps = served.now.steps
    await asyncio.sleep(0.05)
    assert served.now.steps <= steps + 1
    assert served.now.active_blocks == 0
    assert served.house.statistics.cancelled == 2
    assert said(await served.ask("What is the capital of France?")) == "The capital of France is Paris."


async def test_bad_input_is_refused_and_harms_nobody(words: Any, system: System) -> None:
    served = await serve(words, system, context=200)
    for ids, words_of_it, code in (
        ([], "empty", None),
        ([5, 1024], "`token_ids[1]` is 1024, but token ids of this model are 0 to 1023", None),
        ([-1, 5], "`token_ids[0]` is -1", None),
        ([5] * 200, "room for 200", "context_length_exceeded"),
    ):
        answer = await served.ask(ids)
        assert answer.error.error == "BadRequest"
        assert words_of_it in answer.error.message
        assert answer.error.code == code
    assert (await served.ask("ping", prior=[4000])).error.error == "BadRequest"
    assert (await served.ask("ping", logit_bias={1024: 1.0})).error.error == "BadRequest"
    endless = {"ignore_eos": True, "stop_token_ids_hidden": ()}
    full = await served.ask([5] * 150, stops=endless)
    assert (len(full.ids), full.finish) == (50, "length")
    nothing = await served.ask("ping", prior=[5, 6], stops={"max_tokens": 2})
    assert (nothing.ids, nothing.finish) == ([], "length")
    assert said(await served.ask("ping")) == "pong"


async def test_logprobs_and_bias(words: Any, system: System) -> None:
    served = await serve(words, system)
    answer = await served.ask("What is the capital of France?", logprobs=3)
    told = [delta for delta in answer.deltas if isinstance(delta, Logprobs)]
    assert len(told) == len(answer.ids)
    for delta, index in zip(told, answer.ids, strict=True):
        assert delta.top[0][0] == (index, delta.chosen[0])
        assert len(delta.top[0]) == 3
        assert -0.7 < delta.chosen[0] <= 0
    spanish = MODEL.tokenizer.encode(" Madrid")
    biased = await served.ask(
        "What is the capital of France?", logit_bias=dict.fromkeys(answer.ids, -100.0), stops={"max_tokens": 20}
    )
    assert set(biased.ids).isdisjoint(answer.ids)
    forced = await served.ask("ping", logit_bias={spanish[0]: 100.0}, stops={"max_tokens": 3})
    assert forced.ids == [spanish[0]] * 3


async def test_a_step_that_fails_ends_only_who_is_at_fault(
    words: Any, system: System, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    served = await serve(words, system)
    model = served.engine._model
    assert model is not None
    real, poison = model.step, 77

    def step(operations: Any, work: Any, *adapter: str) -> Any:
        """llama.cpp refuses a batch with an id that the model does not have."""
        spoilt = [dataclasses.replace(one, ids=[10**6]) if poison in one.ids else one for one in work]
        return real(operations, spoilt, *adapter)

    monkeypatch.setattr(model, "step", step)
    texts = ["Tell me a story.", "Count from 1 to 60."]
    good = [served.house.ask(asked(text)) for text in texts]
    await words.until(lambda: all(len(answer.ids) > 5 for answer in good))
    bad = await served.ask([5, poison, 6])
    assert bad.error is not None
    assert bad.error.error == "EngineFailed"
    assert bad.error.message == "llamacpp could not compute request r; the worker's log says why under this id"
    assert "request r failed: llama.cpp could not compute a step: llama_decode: failed to decode" in caplog.text
    assert served.now.preemptions >= 3, "the step of all was tried again, one by one"
    monkeypatch.undo()
    for answer, text in zip(good, texts, strict=True):
        assert (await answer.wait(30)).ids == (await served.ask(text)).ids


async def test_it_does_not_block_the_loop_and_ends_in_the_middle(words: Any) -> None:
    async with System() as system:
        served = await serve(words, system)
        stream = served.house.ask(asked("Count from 1 to 100."))
        await words.until(lambda: stream.ids)
        model = served.engine._model
        assert model is not None
        assert model._context
    assert not model._context, "the memory is given back"
    assert stream.error is not None
    assert stream.error.retry


@pytest.mark.parametrize(
    ("options", "words_of_it"),
    [
        ({"path": Path(sample.path("sample"))}, "needs a GGUF file"),
        ({"path": Path(sample.path("sample"))}, "did you mean `sample.gguf`? give a .gguf file"),
        ({"context_length": 4096}, "larger than the model's 2048"),
        ({"context_length": 1024, "arguments": {"n_ctx": 512}}, "fewer than one context"),
        ({"path": "broken.gguf"}, "data is not within the file bounds"),
        ({"config_path": "other"}, "the tokenizer is not that of the model"),
    ],
)
async def test_what_a_user_can_mend_is_said(tmp_path: Path, options: dict[str, Any], words_of_it: str) -> None:
    if options.get("path") == "broken.gguf":
        options = {"path": tmp_path / "broken.gguf"}
        options["path"].write_bytes(PATH.read_bytes()[:1_000_000])
    if "config_path" in options:
        options = {"config_path": write_folder(tmp_path, train_bytes(), config={}, tokenizer_config={})}
    engine = LlamaCpp(EngineOptions(**{"name": "m", "path": PATH, **options}), lambda *_: None)
    try:
        with pytest.raises(UserError) as error:
            await engine.start()
        assert words_of_it in error.value.line()
    finally:
        await engine.close()
