from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamod.message.worker import Stops
from dynamod.preprocess.output import Output, RecordedOutput, TextOutput
from dynamod.preprocess.source import open_source
from dynamod.preprocess.tokenizer import Tokenizer

EOS = 2
TEXT = "the quick brown fox 😀 jumps"


@pytest.fixture(scope="module")
def tokenizer(bytes_folder: Path) -> Tokenizer:
    return Tokenizer.from_source(open_source(bytes_folder))


@pytest.fixture(scope="module")
def ids(tokenizer: Tokenizer) -> list[int]:
    return list(tokenizer.encode(TEXT))


def test_plain_text_flows(tokenizer: Tokenizer, ids: list[int]) -> None:
    output = Output(tokenizer, Stops(max_tokens=100, stop_token_ids_hidden=(EOS,)), (EOS,))
    assert "".join(output.push([index]) for index in ids) == TEXT
    assert (output.finish, output.completion_tokens) == (None, len(ids))
    assert output.end("length") == ""
    assert output.finish == "length"


def test_eos_ends_hidden_and_counts(tokenizer: Tokenizer, ids: list[int]) -> None:
    output = Output(tokenizer, Stops(stop_token_ids_hidden=(EOS,)), (EOS,), skip_special=False)
    assert output.push([*ids, EOS, *ids]) == TEXT
    assert (output.finish, output.completion_tokens) == ("stop", len(ids) + 1)
    assert output.push(ids) == ""
    assert output.end("length") == ""
    assert (output.finish, output.completion_tokens) == ("stop", len(ids) + 1)


@pytest.mark.parametrize("step", [1, 3, 100])
@pytest.mark.parametrize("limit", [None, 4])
def test_an_output_that_records_has_the_ids_that_count(
    tokenizer: Tokenizer, ids: list[int], step: int, limit: int | None
) -> None:
    stops, all_ids = Stops(max_tokens=limit, stop_token_ids_hidden=(EOS,)), [*ids, EOS, *ids]
    output, plain = RecordedOutput(tokenizer, stops, (EOS,)), Output(tokenizer, stops, (EOS,))
    for first in range(0, len(all_ids), step):
        part = all_ids[first : first + step]
        assert (output.token(part[0]) if step == 1 else output.push(part)) == plain.push(part)
    assert output.ids == all_ids[: output.completion_tokens]
    assert (output.finish, output.completion_tokens) == (plain.finish, limit or len(ids) + 1)


def test_eos_ids_alone_are_enough_but_ignore_eos_wins(tokenizer: Tokenizer, ids: list[int]) -> None:
    output = Output(tokenizer, Stops(), (EOS,))
    output.push([ids[0], EOS])
    assert output.finish == "stop"
    output = Output(tokenizer, Stops(ignore_eos=True), (EOS,))
    assert output.push([*ids, EOS, *ids]) == TEXT + TEXT
    assert (output.finish, output.completion_tokens) == (None, 2 * len(ids) + 1)


def test_a_hidden_stop_token_that_is_text_is_not_shown(tokenizer: Tokenizer, ids: list[int]) -> None:
    output = Output(tokenizer, Stops(stop_token_ids_hidden=(ids[2],)))
    assert output.push(ids) == tokenizer.decode(ids[:2])
    assert output.finish == "stop"


@pytest.mark.parametrize("size", [1, 3, 100])
def test_max_tokens(tokenizer: Tokenizer, ids: list[int], size: int) -> None:
    output = Output(tokenizer, Stops(max_tokens=4))
    shown = "".join(output.push(ids[place : place + size]) for place in range(0, len(ids), size))
    assert shown == tokenizer.decode(ids[:4])
    assert (output.finish, output.completion_tokens) == ("length", 4)


def test_a_stop_at_the_last_token_is_a_stop(tokenizer: Tokenizer, ids: list[int]) -> None:
    output = Output(tokenizer, Stops(max_tokens=1, stop_token_ids_hidden=(EOS,)))
    assert output.push([EOS]) == ""
    assert output.finish == "stop"


def test_the_engines_own_end_at_the_limit_wins(tokenizer: Tokenizer, ids: list[int]) -> None:
    for finish in ("stop", "length", "eos"):
        output = Output(tokenizer, Stops(max_tokens=3))
        assert output.push(ids[:3], finish) == tokenizer.decode(ids[:3])
        assert (output.finish, output.completion_tokens) == (finish, 3)
    output = Output(tokenizer, Stops(max_tokens=3))
    output.push(ids[:4], "stop")
    assert (output.finish, output.completion_tokens) == ("length", 3), "what was cut off did not end by itself"
    output = Output(tokenizer, Stops(max_tokens=3, stop_token_ids_hidden=(EOS,)))
    output.push([*ids[:2], EOS], "length")
    assert output.finish == "stop"
    output = Output(tokenizer, Stops(max_tokens=3))
    output.push(ids[:2], "stop")
    assert output.finish is None, "below the limit the engine's reason is for end()"


def test_min_tokens_stay_any_stop(tokenizer: Tokenizer, ids: list[int]) -> None:
    output = Output(tokenizer, Stops(stop=("the",), stop_token_ids_hidden=(EOS,), min_tokens=4))
    first = [EOS, *tokenizer.encode(" the")]
    assert output.push(first) == " the"
    assert (output.finish, output.completion_tokens) == (None, len(first))
    output.push(ids[1 : 4 - len(first)] or [])
    while output.completion_tokens < 3:
        output.push([ids[1]])
    output.push([EOS])
    assert (output.finish, output.completion_tokens) == ("stop", 4)


def test_min_tokens_stay_stop_strings_token_by_token(tokenizer: Tokenizer) -> None:
    output = Output(tokenizer, Stops(stop=("the",), min_tokens=3))
    (the,) = tokenizer.encode(" the")
    shown = [output.push([the]) for _ in range(4)]
    assert shown == [" the", " the", " ", ""]
    assert (output.finish, output.completion_tokens) == ("stop", 3)


@pytest.mark.parametrize("size", [1, 2, 100])
def test_stop_strings_cut_and_count(tokenizer: Tokenizer, ids: list[int], size: int) -> None:
    output = Output(tokenizer, Stops(stop=("n fox",)))
    shown = "".join(output.push(ids[place : place + size]) for place in range(0, len(ids), size))
    assert shown == "the quick brow"
    assert output.finish == "stop"
    count = next(n for n in range(len(ids)) if "n fox" in tokenizer.decode(ids[:n]))
    assert output.completion_tokens == count  # tokens behind the match are not counted


def test_stop_strings_can_be_shown(tokenizer: Tokenizer, ids: list[int]) -> None:
    output = Output(tokenizer, Stops(stop=("fox",)), include_stop=True)
    assert output.push(ids) == "the quick brown fox"


def test_nothing_that_was_held_back_is_lost(tokenizer: Tokenizer, ids: list[int]) -> None:
    cut = next(n for n in range(len(ids)) if tokenizer.decode(ids[:n]).endswith("\ufffd"))
    for stops, push_more, finish in [
        (Stops(stop=("fox 😀 runs", "\ufffdx")), [], None),
        (Stops(stop=("fox 😀 runs",), max_tokens=cut), [], "length"),
        (Stops(stop=("fox 😀 runs",), stop_token_ids_hidden=(EOS,)), [EOS], "stop"),
    ]:
        output = Output(tokenizer, stops)
        shown = output.push([*ids[:cut], *push_more])
        assert output.finish == finish
        shown += output.end("stop")
        assert shown == "the quick brown fox \ufffd"


def test_a_completion_keeps_its_first_space(pieces_folder: Path) -> None:
    tokenizer = Tokenizer.from_source(open_source(pieces_folder))
    ids = tokenizer.encode("the dog")
    assert Output(tokenizer, Stops()).push(ids) == "the dog"
    assert Output(tokenizer, Stops(), continuing=True).push(ids) == " the dog"


@given(
    data=st.data(),
    limit=st.none() | st.integers(1, 20),
    least=st.integers(0, 8),
    stops=st.lists(st.sampled_from(["the", "e d", "og", "fox"]), max_size=2),
)
def test_the_answer_does_not_depend_on_how_tokens_arrive(
    data: st.DataObject, limit: int | None, least: int, stops: list[str], tokenizer: Tokenizer
) -> None:
    some = [EOS, *tokenizer.encode("the dog fox😀 og the"), 10**6]
    ids = data.draw(st.lists(st.sampled_from(some), max_size=25))
    sizes = data.draw(st.lists(st.integers(0, 5), min_size=26, max_size=26))

    def run(sizes: list[int]) -> tuple[str, str | None, int]:
        output = Output(tokenizer, Stops(limit, tuple(stops), (EOS,), least))
        shown, place = "", 0
        for size in [*sizes, len(ids)]:
            shown += output.push(ids[place : place + size])
            place += size
        shown += output.end("end")
        return shown, output.finish, output.completion_tokens

    alone = run([1] * len(ids))
    assert run(sizes) == run([]) == alone
    assert alone[2] <= min(len(ids), limit or len(ids))


Make = Callable[[Stops], TextOutput]


def test_text_engines_have_stops_and_limits_too() -> None:
    output = TextOutput(Stops(stop=("END",), max_tokens=5))
    assert output.push_text("some tex", 2) == "some tex"
    assert output.push_text("t E", 1) == "t "
    assert output.push_text("N", 1) == ""
    assert output.push_text("D behind", 1) == ""
    assert (output.finish, output.completion_tokens) == ("stop", 5)
    assert output.push_text("more", 1) == ""
    assert output.completion_tokens == 5

    output = TextOutput(Stops(stop=("END",), max_tokens=2))
    assert output.push_text("a", 1) + output.push_text("bE", 1) == "abE"
    assert output.finish == "length"

    output = TextOutput(Stops(stop=("END",)))
    assert output.push_text("aEN", 1) == "a"
    assert output.end("stop") == "EN"
    assert output.end("length") == ""
    assert output.finish == "stop"


@pytest.mark.parametrize("limit", [1, 2])
def test_a_text_engines_own_end_at_the_limit_wins(limit: int) -> None:
    output = TextOutput(Stops(stop=("END",), max_tokens=limit))
    assert output.push_text("bE", 2, "stop") == "bE", "what was held back comes with the end"
    assert (output.finish, output.completion_tokens) == ("stop", 2)
    output = TextOutput(Stops(stop=("END",), max_tokens=limit))
    assert output.push_text("bEND", 2, "length") == "b"
    assert output.finish == "stop"
    output = TextOutput(Stops(max_tokens=limit))
    assert output.push_text("ab", 2) == "ab"
    assert output.finish == "length"


def test_text_engines_respect_min_tokens() -> None:
    output = TextOutput(Stops(stop=("x",), min_tokens=3))
    assert output.push_text("x", 2) == "x"
    assert output.push_text("ax", 1) == "a"
    assert output.finish == "stop"
