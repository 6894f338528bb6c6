"""Traces: what is read is what was written, mistakes are named, made workloads repeat themselves."""

from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from dynamod.features.replay.trace import Conversations, faster, make_conversations, read_trace, write_trace
from dynamod.message.errors import UserError

SMALL = Conversations(users=20, turns=3, system_tokens=64, question_tokens=40, block_size=16)


def test_a_row_becomes_an_arrival(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    file.write_text(
        '{"timestamp": 20, "input_length": 9, "output_length": 3, "hash_ids": [0, 1, 5]}\n\n'
        '{"timestamp": 10, "input_length": 8, "output_length": 1, "hash_ids": [0, 7], "more": 1}\n'
    )
    first, second = read_trace(file, 4)
    assert (first.at, first.length, first.output, len(first.blocks)) == (10, 8, 1, 2)
    assert (second.length, len(second.blocks)) == (9, 2)
    assert first.blocks[0] == second.blocks[0], "the same first block"
    assert first.blocks[1] != second.blocks[1]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"timestamp": 1}', "t.jsonl:1"),
        ('{"timestamp": 1, "input_length": 9, "output_length": 3, "hash_ids": [1]}', "--block-size"),
        ('{"timestamp": 1, "input_length": 4, "output_length": 0, "hash_ids": [1]}', "t.jsonl:1"),
        ("no json", "t.jsonl:1"),
        ("", "no requests"),
    ],
)
def test_a_mistake_is_named_with_its_line(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "t.jsonl"
    file.write_text(text)
    with pytest.raises(UserError) as caught:
        read_trace(file, 4)
    assert says in caught.value.line()


def test_a_missing_file() -> None:
    with pytest.raises(UserError, match="nothere"):
        read_trace(Path("nothere.jsonl"), 4)


@given(st.integers(0, 5))
def test_equal_seeds_make_equal_workloads(seed: int) -> None:
    assert make_conversations(SMALL, seed) == make_conversations(SMALL, seed)
    assert make_conversations(SMALL, seed) != make_conversations(SMALL, seed + 1)


def test_conversations_share_system_prompts_and_grow() -> None:
    made = make_conversations(SMALL, 1)
    assert len({one.blocks[:4] for one in made}) == SMALL.system_prompts
    assert any(one.blocks == other.blocks[: len(one.blocks)] and one is not other for one in made for other in made)
    assert made == sorted(made, key=lambda one: one.at)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    made = make_conversations(SMALL, 2)
    write_trace(tmp_path / "t.jsonl", made, 16)
    found = read_trace(tmp_path / "t.jsonl", 16)
    assert [(one.at, one.length, one.output, len(one.blocks)) for one in found] == [
        (one.at, one.length, one.output, len(one.blocks)) for one in made
    ]
    names: dict[int, int] = {}
    for one, other in zip(found, made, strict=True):
        for mine, theirs in zip(one.blocks, other.blocks, strict=True):
            assert names.setdefault(theirs, mine) == mine


def test_faster() -> None:
    made = make_conversations(SMALL, 1)
    assert [one.at * 4 for one in faster(made, 4)] == pytest.approx([one.at for one in made])
