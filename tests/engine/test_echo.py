"""The echo engines in a real worker, in virtual time: what they say, when, and how they end."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamod import sample
from dynamod.actor import ActorUnreachable, System
from dynamod.actor.testing import run, virtual
from dynamod.engine.base import Engine, EngineOptions
from dynamod.engine.echo import DELAY, EchoCore, EchoFull
from dynamod.engine.names import ENGINES
from dynamod.message.discovery import ModelCard
from dynamod.message.errors import UserError
from dynamod.message.worker import Chat


class Core(EchoCore):
    """echo_core without a model's files: reading them takes a thread, which virtual time does not allow."""

    async def start(self) -> None:
        self._card = ModelCard(self.options.name)
        await super(EchoCore, self).start()


async def core(words: Any, system: System) -> Any:
    return await words.House(system, Core, EngineOptions("m")).start()


async def full(words: Any, system: System) -> Any:
    return await words.House(system, EchoFull, EngineOptions("m")).start()


@pytest.fixture(autouse=True)
def pace(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv(DELAY, "100")
    return monkeypatch


@virtual
async def test_ids_come_back_one_per_step(words: Any) -> None:
    async with System() as system:
        house = await core(words, system)
        answer = await house.ask(words.generate([5, 6, 7])).wait()
    assert answer.accepted
    assert answer.ids == [5, 6, 7]
    assert answer.finish == "stop"
    gaps = [after - before for before, after in zip(answer.times[1:], answer.times[2:], strict=False)]
    assert gaps == pytest.approx([0.1, 0.1])


@virtual
async def test_without_the_variable_a_token_takes_10_ms(words: Any, pace: pytest.MonkeyPatch) -> None:
    pace.delenv(DELAY)
    async with System() as system:
        house = await core(words, system)
        answer = await house.ask(words.generate([1, 2, 3, 4, 5])).wait()
    assert answer.times[-1] - answer.times[0] == pytest.approx(0.05)


@virtual
async def test_a_delay_of_0_takes_no_time(words: Any, pace: pytest.MonkeyPatch) -> None:
    pace.setenv(DELAY, "0")
    async with System() as system:
        house = await core(words, system)
        answer = await house.ask(words.generate(list(range(100)))).wait()
    assert answer.ids == list(range(100))
    assert answer.times[-1] == answer.times[0]


@virtual
async def test_one_step_serves_all_streams(words: Any) -> None:
    async with System() as system:
        house = await core(words, system)
        answers = [house.ask(words.generate([n, n, n, n])) for n in range(20)]
        for answer in answers:
            await answer.wait()
        engine = house.statistics.engine
    assert [answer.ids for answer in answers] == [[n] * 4 for n in range(20)]
    assert (engine.tokens, engine.steps, engine.running) == (80, 4, 0)


@pytest.mark.parametrize(
    ("limit", "ids", "finish"),
    [(1, [5], "length"), (2, [5, 6], "length"), (3, [5, 6, 7], "stop"), (9, [5, 6, 7], "stop")],
)
def test_max_tokens(words: Any, limit: int, ids: list[int], finish: str) -> None:
    async def main() -> None:
        async with System() as system:
            answer = await (await core(words, system)).ask(words.generate([5, 6, 7], max_tokens=limit)).wait()
            assert (answer.ids, answer.finish) == (ids, finish)

    run(main())


@given(ids=st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=12), data=st.data())
def test_another_instance_goes_on_where_the_first_stopped(words: Any, ids: list[int], data: Any) -> None:
    limit = data.draw(st.none() | st.integers(1, len(ids) + 2))

    async def main() -> None:
        async with System() as system:
            house = await core(words, system)
            whole = await house.ask(words.generate(ids, max_tokens=limit)).wait()
            cut = data.draw(st.integers(0, len(whole.ids)))
            rest = await house.ask(words.generate(ids, whole.ids[:cut], max_tokens=limit)).wait()
            assert whole.ids[:cut] + rest.ids == whole.ids
            assert rest.finish == whole.finish

    run(main())


@virtual
async def test_a_reader_that_leaves_frees_its_slot(words: Any) -> None:
    async with System() as system:
        house = await core(words, system)
        long, other = house.ask(words.generate([1] * 1000)), house.ask(words.generate([2] * 8))
        await asyncio.sleep(0.35)
        assert house.statistics.engine.running == 2
        long.stream.cancel()
        await asyncio.sleep(0.1)
        statistics = house.statistics
        assert (statistics.open, statistics.cancelled, statistics.engine.running) == (1, 1, 1)
        assert (await other.wait()).ids == [2] * 8
        assert len(long.ids) == 3
        assert house.statistics.open == 0


@virtual
async def test_an_idle_engine_does_not_step(words: Any) -> None:
    async with System() as system:
        house = await core(words, system)
        await asyncio.sleep(3600)
        assert house.statistics.engine.steps == 0
        assert (await house.ask(words.generate([1])).wait()).ids == [1]
        await asyncio.sleep(3600)
        assert house.statistics.engine.steps == 1


@pytest.mark.parametrize(
    ("value", "why"), [("fast", "is no number"), ("-1", "out of range"), ("inf", "out of range"), ("nan", "range")]
)
def test_a_pace_that_is_none(words: Any, pace: pytest.MonkeyPatch, value: str, why: str) -> None:
    pace.setenv(DELAY, value)

    async def main() -> None:
        async with System() as system:
            with pytest.raises(ActorUnreachable, match=f"{DELAY}={value}.*{why}"):
                await core(words, system)

    run(main())


async def test_the_card_of_echo_core_is_the_models(words: Any) -> None:
    async with System() as system:
        options = EngineOptions("mine", sample.path("sample"), context_length=512, migration_limit=7)
        house = await words.House(system, EchoCore, options).start()
        [card] = house.published
    assert (card.name, card.engine, card.kind, card.context_length) == ("mine", "echo_core", "tokens", 512)
    assert card.capabilities.exact_continuation
    assert card.migration_limit == 7
    assert card.eos_token_ids


async def test_echo_core_without_a_model_says_so(words: Any, tmp_path: Any) -> None:
    (tmp_path / "config.json").write_text("{}")

    def none(work: Any, name: str) -> None:
        raise AssertionError("nothing may run")

    with pytest.raises(UserError, match=r"tokenizer\.json"):
        await EchoCore(EngineOptions("m", tmp_path), none).start()


@virtual
async def test_the_last_user_message_comes_back_by_characters(words: Any) -> None:
    messages = [
        {"role": "user", "content": "first"},
        {"role": "user", "content": [{"type": "text", "text": "hé"}, {"type": "text", "text": "😀"}]},
        {"role": "assistant", "content": "no"},
    ]
    async with System() as system:
        house = await full(words, system)
        answer = await house.ask(words.chat(messages=messages)).wait()
    assert [delta.text for delta in answer.texts] == ["h", "é", "😀"]
    assert (answer.count, answer.finish, answer.prompt_tokens) == (3, "stop", 3)
    assert [delta.offset for delta in answer.texts] == [0, 1, 2]


@virtual
async def test_echo_full_takes_completions_and_limits(words: Any) -> None:
    async with System() as system:
        house = await full(words, system)
        short = await house.ask(words.completion("abcdef", max_tokens=2)).wait()
        empty = await house.ask(words.completion("")).wait()
    assert (short.text, short.finish, short.prompt_tokens) == ("ab", "length", 6)
    assert (empty.text, empty.count, empty.finish) == ("", 0, "stop")


@virtual
async def test_echo_full_with_nothing_to_echo(words: Any) -> None:
    async with System() as system:
        house = await full(words, system)
        cases = [
            (words.completion([1, 2, 3]), "prompt"),
            (words.chat(messages=[]), "messages"),
            (words.chat(messages=[{"role": "user"}]), "messages"),
            (Chat("r", "m", "chat", b"{no json"), "messages"),
        ]
        for request, param in cases:
            error = (await house.ask(request).wait()).error
            assert error is not None
            assert (error.error, error.param, error.retry) == ("BadRequest", param, False)
        assert (await house.ask(words.chat("still here")).wait()).text == "still here"


def test_echo_full_needs_no_model() -> None:
    async def main() -> None:
        def none(work: Any, name: str) -> None:
            raise AssertionError("nothing may run")

        engine: Engine = EchoFull(EngineOptions(context_length=99), none)
        card = engine.card()
        assert (card.name, card.kind, card.context_length, card.path) == ("echo_full", "text", 99, "")

    run(main())
    assert not ENGINES[EchoFull.name].model


@virtual
async def test_min_tokens_beyond_the_prompt_start_it_over(words: Any) -> None:
    async with System() as system:
        house = await core(words, system)
        whole = await house.ask(words.generate([1, 2, 3], min_tokens=7)).wait()
        cut = await house.ask(words.generate([1, 2, 3], min_tokens=7, max_tokens=5)).wait()
        rest = await house.ask(words.generate([1, 2, 3], [1, 2, 3, 1], min_tokens=7)).wait()
    assert (whole.ids, whole.finish) == ([1, 2, 3, 1, 2, 3, 1], "stop")
    assert (cut.ids, cut.finish) == ([1, 2, 3, 1, 2], "length")
    assert (rest.ids, rest.finish) == ([2, 3, 1], "stop")
