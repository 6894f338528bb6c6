"""Arguments in pieces as they are certain, and calls that stay although their arguments are no JSON."""

import ast
import json
import re
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynamod.parsers import Arguments, Broken, Call, Content, Dropped, assemble, make_parser
from tests.parsers import test_laws as laws
from tests.parsers.test_laws import EACH, MARKUP, cuts, messages, shown, write
from tests.parsers.vectors import FORMATS, TOOLS, Format

parse = partial(laws.parse, pieces=True)
FILE = "".join(f"    line {number} = f(\"a\", 'b') # <b> {{x}} é\n" for number in range(2000))


@EACH
@settings(max_examples=15)
@given(sizes=cuts, **messages)
def test_what_is_written_is_read_the_same_in_pieces(form, thought, before, asked, after, sizes) -> None:
    text, parts = write(form, thought, before, asked, after)
    made = assemble(parse(form, text, sizes))
    assert shown(made) == parts, text
    assert made == assemble(parse(form, text, None)) == assemble(parse(form, text, [], pieces=False))
    assert not [one for one in made if isinstance(one, Broken | Dropped)]


@EACH
@settings(max_examples=15)
@given(sizes=cuts, share=st.floats(0, 1), reason=st.sampled_from(["stop", "length"]), **messages)
def test_what_is_cut_off_is_the_same_however_it_is_cut(form, thought, before, asked, after, sizes, share, reason):
    text, _ = write(form, thought, before, asked, after)
    text = text[: int(len(text) * share)]
    made = assemble(parse(form, text, sizes, reason))
    assert made == assemble(parse(form, text, None, reason))
    assert not [one for one in made if isinstance(one, Dropped) and one.index is not None], "the client has seen it"
    kept = assemble(parse(form, text, sizes, reason, pieces=False))
    assert kept == assemble(parse(form, text, None, reason, pieces=False))
    if reason == "stop" and not [one for one in kept if isinstance(one, Dropped)]:
        assert kept == made


@EACH
@settings(max_examples=20)
@given(data=st.data(), sizes=cuts, reason=st.sampled_from(["stop", "length"]))
def test_noise_is_the_same_however_it_is_cut(form, data, sizes, reason) -> None:
    whole = form.calls([("find", {"text": "x", "count": 1}), ("now", {})])
    pieces = [*MARKUP.findall(whole + "".join(form.think)), *re.findall(r"\w+|[^\w\s<|]", whole), "hello ", "\n", '{"']
    pieces += [
        *re.findall(r"<[^<>]*>|\[[A-Z_]+\]", whole),
        whole,
        whole[: len(whole) // 2],
        whole[: len(whole) * 3 // 4],
    ]
    text = "".join(data.draw(st.lists(st.sampled_from(pieces), max_size=15)))
    for in_pieces in (True, False):
        made = assemble(parse(form, text, sizes, reason, pieces=in_pieces))
        assert made == assemble(parse(form, text, None, reason, pieces=in_pieces)), text
        broken = {one.index for one in made if isinstance(one, Broken)}
        for one in made:
            if isinstance(one, Call) and one.index not in broken:
                assert isinstance(json.loads(one.arguments), dict)


@EACH
def test_a_file_comes_in_pieces(form: Format) -> None:
    text = form.calls([("find", {"text": FILE})])
    parser = make_parser(form.tool, None, TOOLS, seed="s", prompt=form.prompt)
    parser.keep_calls(pieces=True)
    sizes, begun = [], 0
    for at in range(0, len(text), 40):
        found = [one for one in parser.feed(text[at : at + 40]) if isinstance(one, Arguments)]
        sizes += [len(one.text) for one in found]
        begun = begun or (at if found else 0)
    sizes += [len(one.text) for one in parser.finish() if isinstance(one, Arguments)]
    assert len(sizes) > 1000
    assert max(sizes) < 1000
    assert begun < 400


@pytest.mark.parametrize(
    ("tool", "text", "shown", "content"),
    [
        ("hermes", '<tool_call>\n{"name": "find", "arguments": {place: 1}}\n</tool_call>Yes.', "{place: 1}", "Yes."),
        ("hermes", '<tool_call>{"name": "find", "arguments": {"a": ]}}</tool_call>Yes.', '{"a": ]}}', "Yes."),
        ("hermes", '<tool_call>{"name": "find", "arguments": {"a": "b"c"}}</tool_call>Yes.', '{"a": "b"c"}}', "Yes."),
        ("hermes", '<tool_call>{"name": "find", "argum: 1}</tool_call>Yes.', None, '{"name": "find", "argum: 1}Yes.'),
        ("kimi_k2", "<|tool_calls_section_begin|><|tool_call_begin|>functions.find:0<|tool_call_argument_begin|>"
         "{a: 1}<|tool_call_end|><|tool_calls_section_end|>Yes.", "{a: 1}", "Yes."),
        ("llama3_json", '{"name": "find", "parameters": {invalid json}', "{invalid json}", ""),
        ("lfm2", "<|tool_call_start|>[find(count=1, text=7x)]<|tool_call_end|>Yes.", '{"count": 1 text=7x)]', "Yes."),
        ("qwen3_coder", "<tool_call><function=find><parameter=count>1</parameter>so<parameter=text>x</parameter>"
         "</function></tool_call>Yes.", '{"count": 1so<parameter=text>x</parameter></function>', "Yes."),
    ],
)  # fmt: skip
def test_a_broken_call_stays(tool: str, text: str, shown: str | None, content: str) -> None:
    for form in (one for one in FORMATS.values() if one.tool == tool):
        for sizes in (None, [], [7] * 40):
            for pieces in (True, False):
                made = assemble(parse(form._replace(prompt=""), text, sizes, pieces=pieces))
                assert [one.arguments for one in made if isinstance(one, Call)] == [shown] * (shown is not None)
                assert "".join(one.text for one in made if isinstance(one, Content)) == content
                assert [one.why for one in made if isinstance(one, Broken | Dropped)] == ["malformed"]


def test_what_follows_a_broken_call_is_read() -> None:
    form = FORMATS["hermes"]
    broken = '<tool_call>{"name": "find", "arguments": {"text": "a"b"}}</tool_call>'
    made = assemble(parse(form, broken + form.calls([("now", {})]), [3] * 20))
    assert [(one.name, one.arguments) for one in made if isinstance(one, Call)] == [
        ("find", '{"text": "a"b"}}'),
        ("now", "{}"),
    ]


def test_a_marker_in_an_argument_waits_for_the_end_of_the_call() -> None:
    form = FORMATS["hermes"]
    text = '<tool_call>{"name": "find", "arguments": {"text": "say </tool_call> then'
    parser = make_parser(form.tool, None, TOOLS)
    parser.keep_calls(pieces=True)
    assert [one.text for one in parser.feed(text) if isinstance(one, Arguments)] == ['{"text": "say ']
    made = parser.feed('"}}</tool_call>')
    assert [one.text for one in made if isinstance(one, Arguments)] == ['</tool_call> then"}']
    assert not [one for one in made if isinstance(one, Broken)]


@pytest.mark.parametrize("tool", ["qwen3_coder", "mimo", "seed_oss"])
def test_the_end_of_a_call_in_a_value_waits_for_the_closing_tag_of_the_value(tool: str) -> None:
    text = FORMATS[tool].calls([("find", {"text": "say </function> then"})])
    parser = make_parser(tool, None, TOOLS)
    parser.keep_calls(pieces=True)

    def fed(piece: str) -> str:
        return "".join(one.text for one in parser.feed(piece) if isinstance(one, Arguments))

    front, _, back = text.partition("</function>")
    at = back.index("</parameter>") + len("</parameter>")
    assert fed(front) == '{"text": "say '
    assert fed(f"</function>{back[:at]}") == ""
    assert fed("\n</function>").startswith('</function> then"')
    assert not [one for one in parser.finish() if isinstance(one, Broken | Dropped)]


@pytest.mark.parametrize(
    "text", ['"a\\nb"', "'it\\'s'", '"a" "b"', '"""a\nb"""', '"\\x41b"', '""', "'\\u00e9\\\\'", '"a\nb"', "'x' 'y\\n'"]
)
def test_strings_of_python_are_what_python_reads(text: str) -> None:
    call = f"<|tool_call_start|>[find(text={text}, count=1)]<|tool_call_end|>"
    made = assemble(parse(FORMATS["lfm2"], call, []))
    want = ast.literal_eval(text if '"""' in text else text.replace("\n", "\\n"))
    assert [json.loads(one.arguments) for one in made if isinstance(one, Call)] == [{"text": want, "count": 1}]


@pytest.mark.parametrize(
    ("text", "want"), [("a &lt;b&gt; &amp;amp; c&", "a <b> &amp; c&"), (" <![CDATA[a</param>]]b]]> ", "a</param>]]b")]
)
def test_values_of_xml(text: str, want: str) -> None:
    call = f'<function name="find"><param name="text">{text}</param></function>'
    for sizes in (None, [], [5] * 20):
        made = assemble(parse(FORMATS["minicpm5"], call, sizes))
        assert [json.loads(one.arguments) for one in made if isinstance(one, Call)] == [{"text": want}]


def test_a_text_that_ends_in_an_escape_is_the_same_however_it_is_cut() -> None:
    text = "<|tool_call_start|>[find(count=1, text='abc\\"
    made = assemble(parse(FORMATS["lfm2"], text, None))
    assert made == assemble(parse(FORMATS["lfm2"], text, []))
    assert [one.arguments for one in made if isinstance(one, Call)] == ['{"count": 1, "text": "abc\\']


RFL = '<|start|>assistant to=find<|message|><rfl:parameter name="text">'
M3 = "]<]minimax[>["


@pytest.mark.parametrize(
    ("tool", "text", "want"),
    [
        ("beam", f"{RFL}\nx\n</rfl:p", '{"text": "x\n</rfl:p'),
        ("minimax_m3", f'{M3}<invoke name="find">{M3}<text>a\n{M3}<b>', f'{{"text": "a\n{M3}<b>'),
    ],
)
def test_what_a_value_ends_in_is_the_same_however_it_is_cut(tool: str, text: str, want: str) -> None:
    for sizes in (None, [], [5] * 60, [len(text) - 3]):
        for pieces in (True, False):
            made = assemble(parse(FORMATS[tool], text, sizes, pieces=pieces))
            assert [one.arguments for one in made if isinstance(one, Call)] == [want], sizes
