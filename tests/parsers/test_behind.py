"""Reasoning in front of a form: read up to its marker, and no marker is looked for behind it."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from dynamod.parsers import BehindReasoning, Call, Content, Reasoning, assemble, make_parser, thinking_of
from dynamod.parsers.segments import Segment

THINK, END = "<think>", "</think>"


def read(opening: str, pieces: list[str]) -> list[Segment]:
    parser = BehindReasoning(opening, END)
    found = [segment for piece in pieces for segment in parser.feed(piece)]
    return found + parser.finish()


def texts(found: list[Segment]) -> tuple[str, str]:
    """Reasoning and content."""
    return (
        "".join(one.text for one in found if isinstance(one, Reasoning)),
        "".join(one.text for one in found if isinstance(one, Content)),
    )


@pytest.mark.parametrize(
    ("opening", "text", "reasoning", "content"),
    [
        ("", '\nHm. </b>\n</think>\n\n{"a": "</think><think>"}', "Hm. </b>\n", '{"a": "</think><think>"}'),
        ("", "</think>yes", "", "yes"),
        ("", "cut off </th", "cut off </th", ""),
        (THINK, '{"a": "<think>"}', "", '{"a": "<think>"}'),
        (THINK, "<think>\nHm.</think> 1", "Hm.", "1"),
        (THINK, "<thin", "", "<thin"),
        (THINK, "<this>", "", "<this>"),
        (THINK, "", "", ""),
    ],
)
def test_texts(opening: str, text: str, reasoning: str, content: str) -> None:
    assert texts(read(opening, [text])) == (reasoning, content)
    assert texts(read(opening, list(text))) == (reasoning, content)


WORDS = st.lists(st.sampled_from([THINK, END, "<", "/think>", " ", "\n", "x", '{"a"', "</"]), max_size=12)


@given(WORDS, st.sampled_from(["", THINK]))
def test_it_does_not_matter_how_a_text_is_cut(words: list[str], opening: str) -> None:
    assert texts(read(opening, words)) == texts(read(opening, ["".join(words)]))


def test_calls_behind_it() -> None:
    calls = make_parser("llama3_json", None, (), seed="1")
    calls.feed("<|python_tag|>")
    parser = BehindReasoning("", END, calls)
    text = 'I call {"name": "no"}.</think>\n[{"name": "f", "arguments": {"a": 1}}]'
    found = [segment for piece in text for segment in parser.feed(piece)]
    thought, call = assemble([*found, *parser.finish()])
    assert thought == Reasoning('I call {"name": "no"}.')
    assert isinstance(call, Call)
    assert (call.name, call.arguments) == ("f", '{"a": 1}')


CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


@pytest.mark.parametrize(
    ("opening", "closing", "text", "kinds"),
    [
        ("", "", CALL + CALL, [Call, Call]),
        ("", END, f"Hm.{END}\n{CALL}", [Reasoning, Call]),
        (THINK, END, CALL, [Call]),
        ("", "", '{"a": "' + CALL.replace('"', "'") + '"}', [Content]),
        (THINK, END, f"{THINK}Hm.{END}" + '{"a": 1}', [Reasoning, Content]),
        ("", "", "<tool", [Content]),
    ],
)
def test_calls_in_place_of_a_form(opening: str, closing: str, text: str, kinds: list[type]) -> None:
    wholes = []
    for pieces in ([text], list(text)):
        parser = BehindReasoning(opening, closing, None, ("<tool_call>", make_parser("hermes", None, (), seed="1")))
        found = [segment for piece in pieces for segment in parser.feed(piece)]
        wholes.append(assemble([*found, *parser.finish()]))
    assert wholes[0] == wholes[1]
    assert [type(one) for one in wholes[0]] == kinds


@pytest.mark.parametrize(
    ("name", "prompt", "markers"),
    [
        ("basic", "<|im_start|>assistant\n", (THINK, END)),
        ("basic", "<|im_start|>assistant\n<think>\n", ("", END)),
        ("basic", "<|im_start|>assistant\n<think>\n\n</think>\n\n", None),
        ("deepseek_r1", "assistant:", ("", END)),
        ("deepseek_r1", "assistant:</think>", None),
        ("mistral", "[INST]x[/INST]", None),  # its markers are special tokens
        ("gpt_oss", "<|start|>assistant", None),
        ("granite", "x", None),
        ("minimax_append_think", "x", None),
    ],
)
def test_which_markers(name: str, prompt: str, markers: tuple[str, str] | None) -> None:
    assert thinking_of(name).before_form(prompt, ("[THINK]", "[/THINK]", "<|im_end|>")) == markers
