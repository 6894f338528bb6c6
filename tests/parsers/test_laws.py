"""The laws of README.md, for every format."""

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynamod.parsers import Arguments, Call, CallStart, Content, Dropped, Reasoning, assemble, make_parser
from tests.parsers.vectors import FORMATS, TOOLS, Format

MARKUP = re.compile(
    r"</?think>|</?tool_calls?>|<\|[a-z_]+\|>|</?(?:function|parameter)[=>]|</?arg_\w+>|</?｜[^<>]+>"
    r"|\[/?TOOL_CALLS\]|\[/?THINK\]|</?TOOLCALL>|</?seed:\w+>|</?minimax:\w+>|</?invoke[ >]"
    r"|<\|channel>|<channel\|>|<\|tool_call>|<tool_call\|>"
    r"|<\|[A-Z_]+\|>|</?mm:think>|</?steptml:\w+[ >]|</?(?:start|end)_function_call>|<escape>|<\|\"\|>"
    r"|</?ifm\|\w+>|</?(?:atem|rfl):\w+[ >]|<\|(?:tool_call|tool_arg|think):\w+\|>|<\|plamo:[a-z_:]*\|>"
    r"|</?iquest_tool_call>|</?dots_function_call>|</?(?:function|param) |</param>|</?function_call>|<!\[CDATA\["
    r"|</?(?:tool_calls?|tool_sep|think|arg_\w+)(?::\w+)?>"
    r"|◁/?think▷|\[ARGS\]|\[CALL_ID\]|</?function_calls>|</?longcat_tool_call>"
)
"""Markers of all formats, found apart from the code under test."""
EACH = pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS.keys())

words = st.text("ab <|[{}]\n\"'\\,:;=>/é🦀t", max_size=20)
texts = words.map(lambda text: f"w{text.strip()}w").filter(lambda text: not MARKUP.search(text))
values = words.map(lambda text: text.strip("\n")).filter(lambda text: not MARKUP.search(text))
arguments = st.fixed_dictionaries(
    {},
    optional={
        "text": values,
        "count": st.integers(-(10**6), 10**6),
        "exact": st.booleans(),
        "tags": st.lists(values, max_size=3),
    },
)
calls = st.lists(st.tuples(st.just("find"), arguments) | st.tuples(st.just("now"), st.just({})), max_size=3)
cuts = st.lists(st.integers(1, 9), max_size=40)


def parse(
    form: Format, text: str, sizes: list[int] | None, reason: str = "stop", *, pieces: bool | None = None
) -> list[Any]:
    """Segments of the text in pieces of these sizes, then one by one; None: all at once.

    `pieces`: broken calls stay, and arguments come in pieces or not; None: neither.
    """
    parser = make_parser(form.tool, form.reasoning, TOOLS, seed="s", prompt=form.prompt)
    if pieces is not None:
        parser.keep_calls(pieces=pieces)
    made, at = [], 0
    for size in sizes if sizes is not None else [len(text)]:
        made += parser.feed(text[at : at + size])
        at += size
    for character in text[at:]:
        made += parser.feed(character)
    return made + parser.finish(reason)


def write(form: Format, thought: str, before: str, asked: list[Any], after: str) -> tuple[str, list[Any]]:
    """The text of a message, and its parts."""
    before = "" if form.bare and asked else before
    text, parts = "", []
    if thought:
        text += f"{form.think[0]}{thought}{form.think[1]}"
        parts.append(("reasoning", thought))
    if before:
        text += form.say.format(before) if form.say != "{}" else before
        parts.append(("content", before))
    if asked:
        text += form.calls(asked)
        parts += asked
    if after:
        text += form.say.format(after) if form.say != "{}" else after
        if not asked and before:
            parts[-1] = ("content", before + after)
        else:
            parts.append(("content", after))
    return text, parts


def shown(made: list[Any]) -> list[Any]:
    """Assembled segments in the form of `write`."""
    kinds = {Reasoning: "reasoning", Content: "content"}
    return [
        (item.name, json.loads(item.arguments)) if isinstance(item, Call) else (kinds[type(item)], item.text)
        for item in made
        if not isinstance(item, Dropped)
    ]


messages = {"thought": st.just("") | texts, "before": st.just("") | texts, "asked": calls, "after": st.just("") | texts}


@EACH
@settings(max_examples=15)
@given(sizes=cuts, **messages)
def test_what_is_written_is_read_in_order_however_it_is_cut(form, thought, before, asked, after, sizes) -> None:
    text, parts = write(form, thought, before, asked, after)
    made = assemble(parse(form, text, sizes))
    assert shown(made) == parts, text
    assert made == assemble(parse(form, text, None)) == assemble(parse(form, text, []))
    ids = [item.id for item in made if isinstance(item, Call)]
    assert len(set(ids)) == len(ids)


@EACH
@settings(max_examples=15)
@given(sizes=cuts, share=st.floats(0, 1), reason=st.sampled_from(["stop", "length"]), **messages)
def test_a_truncated_call_is_complete_or_a_note(form, thought, before, asked, after, sizes, share, reason) -> None:
    text, parts = write(form, thought, before, asked, after)
    text = text[: int(len(text) * share)]
    made = assemble(parse(form, text, sizes, reason))
    assert made == assemble(parse(form, text, None, reason))
    have = [item for item in shown(made) if isinstance(item[1], dict)]
    want = [item for item in parts if isinstance(item[1], dict)]
    assert have[:-1] == want[: max(0, len(have) - 1)]
    if reason == "length":
        assert have == want[: len(have)]
    elif have:  # ended by the model between two parameters
        name, found = have[-1]
        assert name == want[len(have) - 1][0]
        assert found.items() <= want[len(have) - 1][1].items()
    notes = [item for item in made if isinstance(item, Dropped)]
    assert len(notes) <= 1
    assert all(note.why == "truncated" for note in notes)
    assert not any(MARKUP.search(item.text) for item in made if isinstance(item, Content))


@EACH
@settings(max_examples=20)
@given(data=st.data(), sizes=cuts)
def test_noise_is_no_markup_in_content_and_no_broken_call(form, data, sizes) -> None:
    """Markers and pieces of calls in any order."""
    whole = form.calls([("find", {"text": "x", "count": 1}), ("now", {})])
    pieces = [*MARKUP.findall(whole + "".join(form.think)), *re.findall(r"\w+|[^\w\s<|]", whole), "hello ", "\n", '{"']
    pieces += re.findall(r"<[^<>]*>|\[[A-Z_]+\]", whole)
    pieces = [form.mark + piece if piece.startswith("<") else piece for piece in pieces]
    text = "".join(data.draw(st.lists(st.sampled_from([*pieces, form.think[0], form.think[1], whole]), max_size=15)))
    segments = parse(form, text, sizes)
    made = assemble(segments)
    assert made == assemble(parse(form, text, None))
    for item in made:
        if isinstance(item, Call):
            assert isinstance(json.loads(item.arguments), dict)
    starts = [segment for segment in segments if isinstance(segment, CallStart)]
    assert [start.index for start in starts] == list(range(len(starts)))
    assert len({start.id for start in starts}) == len(starts)
    assert {piece.index for piece in segments if isinstance(piece, Arguments)} <= {start.index for start in starts}
    markup = re.compile(f"{MARKUP.pattern}|{re.escape(form.mark or form.think[0])}")
    assert not [s for s in segments if isinstance(s, Content) and markup.search(s.text)]


@EACH
@given(text=texts)
@settings(max_examples=15)
def test_text_without_markers_is_not_changed_and_not_held(form, text) -> None:
    parser = make_parser(form.tool, form.reasoning, TOOLS, prompt=form.prompt)
    given_back = "".join(segment.text for character in text for segment in parser.feed(character))
    assert text.startswith(given_back)
    held = text[len(given_back) :]
    assert held == "" or len(held) < 40
    assert given_back + "".join(segment.text for segment in parser.finish()) == text
    assert make_parser(form.tool, form.reasoning, TOOLS, prompt=form.prompt).feed("word") == [Content("word")]
