"""Calls whose arguments are no JSON: what the model wrote is content, and what follows it is read."""

import json
import re

import pytest

from dynamod.parsers import Call, Content, Dropped, assemble, make_parser
from dynamod.parsers.grammars import grammar_class
from tests.parsers.vectors import FORMATS, TOOLS, Format

WRONG = '{"text": "a"b", "count": 1}'
QUOTED = (
    *("hermes", "jamba", "nemotron_deci", "longcat", "llama3_json tag", "mistral names", "mistral ids", "lfm2"),
    *("deepseek_v3", "deepseek_v3_1", "kimi_k2", "granite_20b_fc", "internlm", "gigachat3", "cohere_command"),
    *("apertus", "plamo3", "harmony", "inkling", "olmo3"),
)
"""Formats whose arguments have strings in quotes, and a marker for each call or list of calls."""


def read(form: Format, text: str, reason: str = "stop", special: tuple[str, ...] = ()) -> list[object]:
    """What is read is the same however the text is cut."""
    wholes = []
    for size in (1, 7, len(text)):
        parser = make_parser(form.tool, None, TOOLS, seed="s", prompt=form.prompt, special=special)
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        wholes.append(assemble([one for piece in pieces for one in parser.feed(piece)] + parser.finish(reason)))
    assert wholes[0] == wholes[1] == wholes[2]
    return list(wholes[0])


def text_of(found: list[object]) -> str:
    return "".join(one.text for one in found if isinstance(one, Content))


def calls_of(found: list[object]) -> list[tuple[str, object]]:
    return [(one.name, json.loads(one.arguments)) for one in found if isinstance(one, Call)]


@pytest.mark.parametrize("name", QUOTED)
def test_one_quote_too_many_costs_one_call(name: str) -> None:
    form = FORMATS[name]
    quote = "'" if form.tool in ("lfm2", "olmo3") else '"'
    broken = form.calls([("find", {"text": "aQb", "count": 1})]).replace("Q", quote)
    found = read(form, f"{broken}\n{form.calls([('find', {'text': 'x'})])}")
    assert calls_of(found) == [("find", {"text": "x"})]
    assert [one for one in found if isinstance(one, Dropped)] == [Dropped(0, "find", "malformed")]
    assert f"a{quote}b" in text_of(found)
    assert "count" in text_of(found)


def test_the_text_behind_a_broken_call_is_content() -> None:
    form = FORMATS["hermes"]
    found = read(form, f'<tool_call>\n{{"name": "find", "arguments": {WRONG}}}\n</tool_call>\nSo it is.')
    assert text_of(found) == f'{{"name": "find", "arguments": {WRONG}}}\nSo it is.'


@pytest.mark.parametrize(
    ("tool", "text", "content"),
    [
        ("hermes", '<tool_call>\n{"name": "find", "arguments": {location: 1}}\n</tool_call>',
         '{"name": "find", "arguments": {location: 1}}\n'),
        ("llama3_json", '{"name": "find", "parameters": {invalid json}',
         '{"name": "find", "parameters": {invalid json}'),
        ("kimi_k2", "<|tool_calls_section_begin|><|tool_call_begin|>functions.find:0<|tool_call_argument_begin|>"
         "{a: 1}<|tool_call_end|><|tool_calls_section_end|>Yes.", "functions.find:0{a: 1}Yes."),
        ("harmony", "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.find"
         " <|constrain|>json<|message|>{a: 1}<|call|>", "{a: 1}"),
        ("hermes", '<tool_call>[{"name": "now", "arguments": {}}, {"name": "find", "arguments": {a}}]</tool_call>',
         '{"name": "find", "arguments": {a}}]'),
    ],
)  # fmt: skip
def test_a_malformed_call_is_content_as_a_whole(tool: str, text: str, content: str) -> None:
    found = read(FORMATS[tool], text)
    assert text_of(found) == content
    assert [one.why for one in found if isinstance(one, Dropped)] == ["malformed"]


def test_a_text_that_is_cut_off_may_have_a_marker_in_a_string() -> None:
    text = '<tool_call>{"name": "find", "arguments": {"text": "Write </tool_call> after each call'
    assert read(FORMATS["hermes"], text, "length") == [Dropped(0, "find", "truncated")]
    found = read(FORMATS["hermes"], text, "length", ("</tool_call>",))
    assert text_of(found).endswith("Write after each call"), "a special token is no data"


def test_broken_calls_in_a_row() -> None:
    form = FORMATS["hermes"]
    broken = f'<tool_call>{{"name": "find", "arguments": {WRONG}}}</tool_call>\n'
    found = read(form, broken * 5 + form.calls([("now", {})]))
    assert calls_of(found) == [("now", {})]
    assert text_of(found).count(WRONG) == 5


def test_values_of_tags_and_of_hand_written_types() -> None:
    text = '<minimax:tool_call>\n<invoke name="find">\n<parameter name="text">a\nb\n</parameter>\n</invoke>\n'
    assert calls_of(read(FORMATS["minimax_m2"], text)) == [("find", {"text": "a\nb\n"})]


def test_a_tag_that_says_string_where_the_schema_says_integer() -> None:
    text = FORMATS["deepseek_v4"].calls([("find", {"text": "5", "count": 1})]).replace('"false"', '"true"')
    assert calls_of(read(FORMATS["deepseek_v4"], text)) == [("find", {"text": "5", "count": 1})]


def test_a_fence_of_code_between_the_markers() -> None:
    text = '<tool_call>\n```json\n{"name": "find", "arguments": {"count": 1}}\n```\n</tool_call>'
    assert calls_of(read(FORMATS["hermes"], text)) == [("find", {"count": 1})]


WEATHER = '{"name": "find", "parameters": {"text": "x"}}'


@pytest.mark.parametrize(
    "name", ["hermes", "nemotron_deci", "longcat", "internlm", "gigachat3", "jamba", "granite_20b_fc", "inkling"]
)
def test_a_broken_call_whose_name_comes_last_costs_one_call(name: str) -> None:
    form = FORMATS[name]
    whole = form.calls([("find", {"text": "x"})])
    broken = re.sub('("name": "find"), (.*})(?=})', "\\2, \\1", whole).replace('"x"', '"a"b"')
    assert '"a"b"}, "name": "find"}' in broken
    found = read(form, f"{broken}\nYes.\n{whole}")
    assert calls_of(found) == [("find", {"text": "x"})]
    assert [one for one in found if isinstance(one, Dropped)] == [Dropped(None, "", "malformed")]
    assert '"a"b"' in text_of(found)
    assert text_of(found).count("Yes.") == 1
    cut = broken + "\nYes." + whole[: len(whole) // 2]
    assert text_of(read(form, cut, "length")).count("Yes.") == 0, "it may be data"


@pytest.mark.parametrize(
    ("tool", "broken", "content"),
    [
        ("hermes", '<tool_call>\n{"name": "find}\n</tool_call>', '{"name": "find}\n'),
        ("hermes", '<tool_call>{"name": "find}</tool_call>', '{"name": "find}'),
        ("hermes", '<tool_call>{"name": "find it", "arguments": {}}</tool_call>',
         '{"name": "find it", "arguments": {}}'),
        ("apertus", '<|tools_prefix|>[{"find: {"text": "x"}}]<|tools_suffix|>', '[{"find: {"text": "x"}}]'),
        ("gemma4", "<|tool_call>call:find<tool_call|>", "call:find"),
        ("kimi_k2", '<|tool_call_begin|>functions.find:0{"text":"x"}<|tool_call_end|>', 'functions.find:0{"text":"x"}'),
        ("deepseek_v3_1", '<｜tool▁call▁begin｜>find{"text":"x"}<｜tool▁call▁end｜>', 'find{"text":"x"}'),
        ("mistral names", "[TOOL_CALLS] I will now call it. </s>", " I will now call it. "),
        ("plamo3", "<|plamo:begin_tool_request:plamo|><|plamo:begin_tool_name:plamo|>find"
         "<|plamo:end_tool_request:plamo|>", "find"),
        ("qwen3_coder", "<function=find<parameter=count>5</parameter></function>", "findcount>5"),
        ("glm45", "<tool_call>I will now call it.</tool_call>", "I will now call it."),
    ],
)  # fmt: skip
def test_a_call_without_the_end_of_its_name_is_content(tool: str, broken: str, content: str) -> None:
    form = FORMATS[tool]
    for after in ("", "Yes."):
        found = read(form, f"{broken}{after}")
        assert text_of(found).removeprefix("\n") == content + after
        assert not [one for one in found if isinstance(one, Dropped) and one.why == "truncated"]
    found = read(form, broken + form.calls([("find", {"text": "x"})]))
    assert calls_of(found) == [("find", {"text": "x"})]


@pytest.mark.parametrize(
    ("tool", "text"),
    [
        ("hermes", '{"name": "fi'),
        ("glm45", "find"),
        ("mistral names", "find"),
        ("minimax_m2", ' name="fi'),
        ("qwen3_coder plain", "fi"),
        ("gemma4", "call:fi"),
        ("kimi_k2", "functions.fi"),
        ("deepseek_v3_1", "fi"),
        ("deepseek_v3", "function<｜tool▁sep｜>fi"),
        ("mistral ids", "find[CALL_ID]id"),
    ],
)
def test_a_name_that_the_model_ends_in_is_content(tool: str, text: str) -> None:
    form = FORMATS[tool]
    opening = [one for one in grammar_class(form.tool).openings if one in form.calls([("find", {})])][-1]
    content = re.sub(r"<｜.*?｜>|\[.*?\]", "", text).lstrip()
    note = Dropped(None, "", "truncated")
    assert read(form, f"So: {opening}{text}") == [Content("So: "), note, Content(content)]
    assert read(form, f"So: {opening}{text}", "length") == [Content("So: "), note]


@pytest.mark.parametrize(
    ("tool", "text"),
    [
        ("minimax_m2", '<invoke name="find>\n<parameter name="text">x</parameter>\n</invoke>'),
        ("minimax_m2", "<invoke name='find>\n<parameter name='text>x</parameter>\n</invoke>"),
        (
            "deepseek_v4",
            '<｜DSML｜invoke name="find><｜DSML｜parameter name="text>x</｜DSML｜parameter></｜DSML｜invoke>',
        ),
        ("minicpm5", '<function name="find><param name="text">x</param></function>'),
    ],
)
def test_a_quote_that_is_not_closed_ends_with_its_tag(tool: str, text: str) -> None:
    assert calls_of(read(FORMATS[tool], text)) == [("find", {"text": "x"})]


@pytest.mark.parametrize("tool", ["llama3_json", "default", "phi4", "xlam"])
@pytest.mark.parametrize("between", ["; ", ";", ";\n"])
@pytest.mark.parametrize("given", ['{"text": "a"b"}', '{"text": "a"b", "count": 1}', '{"text": ]}', "{place: 1}"])
def test_a_broken_call_ends_before_the_next_after_a_semicolon(tool: str, between: str, given: str) -> None:
    form = FORMATS[tool]
    broken, now = f'{{"name": "find", "parameters": {given}}}', '{"name": "now", "parameters": {}}'
    found = read(form, between.join((broken, WEATHER, now)))
    assert calls_of(found) == [("find", {"text": "x"}), ("now", {})]
    assert text_of(found) == broken + between
    assert [one for one in found if isinstance(one, Dropped)] == [Dropped(0, "find", "malformed")]
    for size in (1, 7, 500):
        parser = make_parser(form.tool, None, TOOLS, seed="s")
        parser.keep_calls(pieces=True)
        text = between.join((broken, WEATHER, now))
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        kept = assemble([one for piece in pieces for one in parser.feed(piece)] + parser.finish())
        assert [one.arguments.rstrip("}") for one in kept if isinstance(one, Call)] == [
            given.rstrip("}"),
            '{"text": "x"',
            "{",
        ]
    cut = read(form, between.join((broken, WEATHER))[:-2], "length")
    assert not calls_of(cut)


@pytest.mark.parametrize(
    ("tool", "text", "content"),
    [
        (
            "llama3_json",
            f"Here is the result: {WEATHER} Would you like more?",
            "Here is the result: Would you like more?",
        ),
        ("phi4", f"Sure: [{WEATHER}]", "Sure: "),
        ("xlam", f"I look.\n```json\n[{WEATHER}]\n```", "I look.\n"),
        ("xlam", f"<think>Hm.</think>\n[{WEATHER}]", "<think>Hm.</think>\n"),
        ("pythonic", 'I look: [find(text="x")]', "I look: "),
        ("granite", f"[{WEATHER}]", ""),
        ("llama3_json", f'So {{"name": "other"}} and {WEATHER}', 'So {"name": "other"} and '),
        ("llama3_json", f'So {{"name": and {WEATHER}', 'So {"name": and '),
    ],
)
def test_calls_behind_text(tool: str, text: str, content: str) -> None:
    found = read(FORMATS[tool], text)
    assert calls_of(found) == [("find", {"text": "x"})]
    assert text_of(found) == content


@pytest.mark.parametrize("tool", ["llama3_json", "phi4", "xlam", "pythonic", "granite"])
@pytest.mark.parametrize(
    "text",
    [
        'a {"name": "other", "parameters": {}} b',
        'a [{"name": 5}] b',
        'a {"name": "fi',
        "a [find b",
        'a {"name"',
        ' {"name"',
    ],
)
def test_text_behind_text(tool: str, text: str) -> None:
    for reason in ("stop", "length"):
        assert read(FORMATS[tool], text, reason) == [Content(text)]


@pytest.mark.parametrize(
    ("tool", "text", "wanted"),
    [
        ("lfm2", "<|tool_call_start|>[find(count=07)]<|tool_call_end|>", {"count": 7}),
        ("lfm2", '<|tool_call_start|>[find(text="say "hi" now")]<|tool_call_end|>', {"text": 'say "hi" now'}),
        ("hermes", "<tool_call>{'name': 'find', 'arguments': {'count': 1, 'exact': True}}</tool_call>",
         {"count": 1, "exact": True}),
    ],
)  # fmt: skip
def test_what_is_mended(tool: str, text: str, wanted: object) -> None:
    assert calls_of(read(FORMATS[tool], text)) == [("find", wanted)]


@pytest.mark.parametrize(
    ("parameter", "wanted"),
    [
        ('name="arguments" string="false">{"text": "x", "count": 1}', {"text": "x", "count": 1}),
        ('name="text" string="false">null', {"text": "null"}),
        ('name="text" string="false">5', {"text": "5"}),
        ('name="count" string="false">5', {"count": 5}),
    ],
)
def test_values_of_tags_that_the_schema_knows_better(parameter: str, wanted: object) -> None:
    inner = f"<｜DSML｜parameter {parameter}</｜DSML｜parameter>"
    text = f'<｜DSML｜tool_calls><｜DSML｜invoke name="find">{inner}</｜DSML｜invoke></｜DSML｜tool_calls>'
    assert calls_of(read(FORMATS["deepseek_v4"], text)) == [("find", wanted)]


CLOSINGS = {
    **dict.fromkeys(("glm45", "glm47", "hunyuan", "hy_v4", "iquest_q1"), "</arg_value>"),
    **dict.fromkeys(("minimax_m2", "dots", "qwen3_coder", "mimo", "seed_oss"), "</parameter>"),
    **dict.fromkeys(("deepseek_v3_2", "deepseek_v4"), "</｜DSML｜parameter>"),
    "hunyuan suffix": "</arg_value:opensource>",
    "k2_horizon": "</ifm|arg_value>",
    "k2_horizon types": "</ifm|arg_value>",
    "solar_open2": "<|tool_arg:end|>",
    "deepseek_v4_1": "</｜DSML｜ parameter>",
    "gigachat35": "</｜GCML｜parameter>",
    "kimi_k3": "<|close|>argument<|sep|>",
    "minicpm5": "</param>",
    "step3": "</steptml:parameter>",
    "muse_glimmer": "</atem:parameter>",
    "beam": "</rfl:parameter>",
    "minimax_m3": "]<]minimax[>[</text>",
}
"""The closing tag of a value, by format."""


def tags(*but: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("name", "closing"), [one for one in CLOSINGS.items() if one[0] not in but])


def unclosed(form: Format, closing: str, arguments: dict[str, object]) -> str:
    """A call in which the text `xyz` has no closing tag."""
    whole = form.calls([("find", arguments)])
    text = re.sub(f"xyz(\\n?){re.escape(closing)}", "xyz\\1", whole)
    assert len(text) == len(whole) - len(closing)
    return text


def stripped(found: list[object]) -> list[tuple[str, object]]:
    """The calls, without the line breaks that may be part of a value."""
    return [
        (name, {key: value.strip() if isinstance(value, str) else value for key, value in given.items()})
        for name, given in calls_of(found)
        if isinstance(given, dict)
    ]


@tags()
def test_a_value_without_its_closing_tag_ends_with_its_call(name: str, closing: str) -> None:
    form = FORMATS[name]
    text = unclosed(form, closing, {"count": 1, "text": "xyz"})
    first = ("find", {"count": 1, "text": "xyz"})
    assert stripped(read(form, text)) == [first]
    for between in ("", "Yes."):
        said = form.say.format(between) if between else ""
        found = read(form, text + said + form.calls([("find", {"text": "x"})]))
        assert stripped(found) == [first, ("find", {"text": "x"})]
        assert text_of(found).strip() == between
    assert text_of(read(form, text + form.say.format("Yes."))).strip() == "Yes."


@tags("minimax_m3")  # a tag in its value is a part of the value
def test_a_value_without_its_closing_tag_ends_in_front_of_the_next(name: str, closing: str) -> None:
    form = FORMATS[name]
    wanted = [("find", {"text": "xyz", "count": 1})]
    assert stripped(read(form, unclosed(form, closing, {"text": "xyz", "count": 1}))) == wanted


@tags("beam", "minimax_m3")  # such a marker ends their values
def test_a_value_may_have_the_end_of_a_call_in_it(name: str, closing: str) -> None:
    form = FORMATS[name]
    end = form.calls([("find", {"text": "xyz"})]).partition(closing)[2].strip()
    whole = form.calls([("find", {"text": "xyz", "count": 1})])
    for value in (f"say {end} and go", f"{end}{end} on", f"say {end}"):
        text = whole.replace("xyz", value)
        assert calls_of(read(form, text)) == [("find", {"text": value, "count": 1})]
        if form.tool not in FUNCTIONS:
            assert [type(one) for one in read(form, text.partition(closing)[0], "length")] == [Dropped]


FUNCTIONS = ("qwen3_coder", "mimo", "seed_oss")
functions = pytest.mark.parametrize("name", [*FUNCTIONS, "qwen3_coder plain", "qwen3_coder together"])
VALUES = (
    'print("</function>")\nprint("</function>\\n</tool_call>")',
    "</function> </tool_call> </seed:tool_call>",
    "</tool_call></function>",
    "say </function> and </parameter> so",
    "</function></parameter></tool_call> so",
)


@functions
@pytest.mark.parametrize("value", VALUES)
def test_a_file_that_tells_of_functions_is_written_whole(name: str, value: str) -> None:
    form = FORMATS[name]
    wanted: list[tuple[str, object]] = [("find", {"count": 1, "text": value}), ("find", {"text": "x"})]
    text = form.calls([("find", {"count": 1, "text": value}), ("find", {"text": "x"})])
    found = read(form, f"{text}Yes.")
    assert calls_of(found) == wanted
    assert text_of(found).strip() == "Yes."
    assert calls_of(read(form, text[: text.rindex("<parameter=")]))[:1] == wanted[:1]
    assert calls_of(read(form, form.calls([("find", {"count": 1, "text": value})]), "length")) == wanted[:1]


@pytest.mark.parametrize("name", [*FUNCTIONS, "qwen3_coder together"])
def test_a_file_that_a_limit_cuts_off_is_not_written(name: str) -> None:
    text = FORMATS[name].calls([("find", {"count": 1, "text": VALUES[0]})])
    for cut in range(text.index('")'), text.rindex("</function>")):
        assert [type(one) for one in read(FORMATS[name], text[: cut + 1], "length")] == [Dropped]


@functions
def test_a_value_that_a_limit_follows_ends_with_its_function(name: str) -> None:
    form = FORMATS[name]
    text = unclosed(form, "</parameter>", {"count": 1, "text": "xyz"}).rstrip()
    first = ("find", {"count": 1, "text": "xyz"})
    for at in range(text.index("</function>") + len("</function>"), len(text) + 1):
        found = read(form, text[:at], "length")
        assert (stripped(found), text_of(found)) == ([first], "")
    assert stripped(read(form, f"{text}\n{form.calls([('now', {})])[:-20]}", "length"))[:1] == [first]
    assert text_of(read(form, f"{text}\nYes", "length")) == "Yes"
    assert stripped(read(form, text.replace("</function>", "</function>" * 2), "length")) == [first]
    assert [type(one) for one in read(form, text.partition("</function>")[0], "length")] == [Dropped]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_value_ends_where_its_closing_tag_comes_too_late(name: str) -> None:
    form = FORMATS[name]
    text = unclosed(form, "</parameter>", {"text": "xyz"})
    late = text.replace("</function>", "</function>\n</parameter>")
    assert stripped(read(form, late)) == [("find", {"text": "xyz"})]
    found = read(form, f"{text}A tag like </parameter> ends it.")
    assert stripped(found) == [("find", {"text": "xyz"})]
    assert text_of(found).strip() == "A tag like ends it."
    assert stripped(read(form, text.replace("</function>", ""))) == [("find", {"text": "xyz"})]


@pytest.mark.parametrize("name", ["glm45", "hunyuan", "k2_horizon", "k2_horizon types"])
def test_a_key_without_its_closing_tag(name: str) -> None:
    form = FORMATS[name]
    for tag in ("arg_key", "arg_type"):
        text = re.sub(f"</(ifm.)?{tag}>", "", form.calls([("find", {"text": "x", "count": 1})]))
        assert stripped(read(form, text)) == [("find", {"text": "x", "count": 1})]
    cut = form.calls([("find", {"text": "x"})]).partition("text")[0]
    found = read(form, f"{cut}{form.calls([('now', {})])}Yes.")
    assert calls_of(found) == [("now", {})]
    assert text_of(found).endswith("Yes.")
