"""The work of a parser grows as the text does, for every format and for text that is made to cost the most.

Work is counted, not timed: calls of functions, and the characters that `Reader.cut` copies.
"""

import re
from collections.abc import Callable
from cProfile import Profile
from functools import partial

import pytest

from dynamod.parsers import ToolSpec, assemble, make_parser
from dynamod.parsers import parser as parser_module
from dynamod.parsers import reader as reader_module
from dynamod.parsers.parser import MOST_UNDONE_CHARS
from dynamod.parsers.reader import SLICE_CHARS, Reader
from dynamod.parsers.typed import kinds
from tests.parsers.hostile import HOSTILE, hostile
from tests.parsers.vectors import FORMATS, TOOLS, Format

SMALL, LARGE = 1_250, 2_500
UNDONE, SLICE = 150, 100
"""Bounds that the tests set, so that short texts show what long ones cost."""
EACH = pytest.mark.parametrize(
    "form", {form.tool: form for form in FORMATS.values()}.values(), ids=lambda form: form.tool
)


@pytest.fixture
def bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parser_module, "MOST_UNDONE_CHARS", UNDONE)
    monkeypatch.setattr(reader_module, "SLICE_CHARS", SLICE)


class Counter:
    """Characters that are copied when text is read, and calls of Python and C functions."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.copied = 0
        cut = Reader.cut

        def counted(reader: Reader, count: int) -> str:
            self.copied += len(reader.held)
            return cut(reader, count)

        monkeypatch.setattr(Reader, "cut", counted)

    def of(self, parse: Callable[[], object]) -> tuple[int, int]:
        self.copied = 0
        counting = Profile(subcalls=False)
        counting.runcall(parse)
        return sum(one.callcount for one in counting.getstats()), self.copied


def parse(form: Format, text: str, size: int) -> list[object]:
    parser = make_parser(form.tool, form.reasoning, TOOLS, seed="s", prompt=form.prompt)
    made = [segment for at in range(0, len(text), size) for segment in parser.feed(text[at : at + size])]
    return [*made, *parser.finish("stop")]


@EACH
@pytest.mark.usefixtures("bounds")
def test_twice_the_text_is_at_most_twice_the_work(form: Format, monkeypatch: pytest.MonkeyPatch) -> None:
    counter = Counter(monkeypatch)
    for name, repeat in hostile(form).items():
        for size in (4, LARGE):
            calls, copied = counter.of(partial(parse, form, repeat(SMALL), size))
            twice, copied_twice = counter.of(partial(parse, form, repeat(LARGE), size))
            assert twice < 2.2 * calls + 40 * UNDONE, (name, size, calls, twice)
            assert twice < 20 * (LARGE + UNDONE), (name, size, twice)
            assert copied_twice < 2.2 * copied + 2 * SLICE * UNDONE, (name, size, copied, copied_twice)
            assert copied_twice < SLICE * (LARGE + 2 * UNDONE), (name, size)


@EACH
@pytest.mark.usefixtures("bounds")
def test_hostile_text_is_read_the_same_however_it_is_cut(form: Format) -> None:
    for name, repeat in hostile(form).items():
        text = repeat(SMALL)
        whole = assemble(parse(form, text, len(text)))
        assert assemble(parse(form, text, 7)) == whole, name
        assert assemble(parse(form, text, SLICE + 1)) == whole, name


@pytest.mark.parametrize("name", HOSTILE)
def test_a_call_with_a_bound_reads_no_more_than_a_slice_above_it(name: str) -> None:
    form = FORMATS["hermes"]
    text = hostile(form)[name](20 * SLICE_CHARS)
    parser = make_parser(form.tool, form.reasoning, TOOLS, seed="s")
    made = parser.feed(text, SLICE_CHARS)
    steps = 1
    while parser.waiting:
        before = parser.waiting
        made += parser.feed("", SLICE_CHARS)
        steps += 1
        assert before - parser.waiting <= 2 * SLICE_CHARS
    made += parser.finish("stop", SLICE_CHARS)
    while parser.waiting:
        made += parser.feed("", SLICE_CHARS)
    assert steps >= 20
    assert assemble(made) == assemble(parse(form, text, len(text)))


def test_text_that_comes_while_other_text_waits_is_read_after_it() -> None:
    parser = make_parser("hermes", None, TOOLS, seed="s")
    made = parser.feed("a" * SLICE_CHARS + "<" + "b" * SLICE_CHARS * 3, 1)
    assert parser.waiting
    made += parser.feed("plain text", 1)
    while parser.waiting:
        made += parser.feed("", 1)
    assert "".join(segment.text for segment in [*made, *parser.finish()]).endswith("bplain text")


def test_calls_are_looked_for_again_in_a_little_text_and_not_in_much() -> None:
    call = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'

    def names(broken: str) -> list[str]:
        parser = make_parser("hermes", None, TOOLS, seed="s")
        made = assemble([*parser.feed(broken), *parser.finish()])
        assert not re.search("</?tool_call>", "".join(getattr(one, "text", "") for one in made))
        return [one.name for one in made if hasattr(one, "arguments")]

    inner = f'<tool_call>{{"x": [{call}'
    assert names(f"{inner}}} {call}") == ["now", "now"]
    assert names(f"{inner}{'1,' * MOST_UNDONE_CHARS}}} {call}") == ["now"]


def test_a_schema_of_a_tool_costs_no_more_than_its_size() -> None:
    root: dict[str, object] = {"type": "object", "properties": {"p": {"$ref": "#/$defs/s0"}}}
    schemas: dict[str, object] = {f"s{at}": {"anyOf": [{"$ref": f"#/$defs/s{at + 1}"}] * 2} for at in range(60)} | {
        "s60": {"type": "integer"}
    }
    root["$defs"] = schemas
    assert kinds({"$ref": "#/$defs/s0"}, root) == {"integer"}
    loop = {"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "string"}]}}}
    assert kinds({"$ref": "#/$defs/a"}, loop) == {"string"}
    schemas["s60"] = {"allOf": [{"$ref": "#/$defs/s0"}, {"allOf": [{"type": "integer"}] * 2}]}
    assert kinds({"$ref": "#/$defs/s0"}, root) == {"integer"}
    parser = make_parser("qwen3_coder", None, [ToolSpec("f", root)])
    parser.feed("<function=f><parameter=p>5</parameter></function>")
