"""What the laws do not say: names, prompts, odd forms, notes, the choice by template."""

import json

import pytest

from dynamod.message.errors import UserError
from dynamod.parsers import (
    Call,
    Content,
    Dropped,
    Reasoning,
    ToolSpec,
    assemble,
    choose,
    keeping_cut,
    make_parser,
    opening_of,
)
from dynamod.parsers.grammars import ALIASES, GRAMMARS, grammar_class
from dynamod.parsers.reader import Reader, Steps
from dynamod.parsers.thinking import ALIASES as THINKING_ALIASES
from dynamod.parsers.thinking import THINKING, thinking_of
from dynamod.parsers.typed import typed
from tests.parsers.vectors import FORMATS, TOOLS


def read(text, tool=None, reasoning=None, reason="stop", **options):
    parser = make_parser(tool, reasoning, TOOLS, **options)
    return assemble(parser.feed(text) + parser.finish(reason))


def asked(text, tool, **options):
    return [(item.name, json.loads(item.arguments)) for item in read(text, tool, **options) if isinstance(item, Call)]


def test_every_name_and_alias_has_a_parser() -> None:
    for name in (*GRAMMARS, *ALIASES):
        assert grammar_class(name).openings or grammar_class(name).bare, name
    for name in (*THINKING, *THINKING_ALIASES):
        thinking_of(name)
    assert grammar_class("MiniMax-M2") is grammar_class("minimax_m2")
    assert {form.tool for form in FORMATS.values()} >= GRAMMARS.keys()


@pytest.mark.parametrize(("tool", "reasoning"), [("hermez", None), (None, "quen3")])
def test_an_unknown_name_lists_the_known_ones(tool, reasoning) -> None:
    with pytest.raises(UserError, match="unknown") as raised:
        make_parser(tool, reasoning)
    assert "mistral" in raised.value.hint
    assert str(tool or reasoning) in str(raised.value)


@pytest.mark.parametrize(
    ("reasoning", "prompt", "text", "made"),
    [
        ("deepseek_r1", "", "a</think>\n\nb", [Reasoning("a"), Content("b")]),
        ("deepseek_r1", "", "<think>a</think>b", [Reasoning("a"), Content("b")]),
        ("deepseek_r1", "<think>\n\n</think>\n\n", "b", [Content("b")]),
        ("deepseek_r1", "", "a", [Reasoning("a")]),
        ("qwen3", "assistant\n<think>\n", "a</think>b", [Reasoning("a"), Content("b")]),
        ("qwen3", "", " b", [Content(" b")]),
        ("qwen3", "", "\n<think>a", [Reasoning("a")]),
        ("qwen3", "", "<think>a</think>b<think>c</think>d",
         [Reasoning("a"), Content("b"), Reasoning("c"), Content("d")]),
        ("minimax_append_think", "", "a</think>b", [Content("<think>a</think>b")]),
        ("granite", "", "Here is my thought process: a Here is my response: b", [Reasoning("a "), Content("b")]),
        ("gpt_oss", "",
         "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b<|return|>",
         [Reasoning("a"), Content("b")]),
        (None, "", "<think>a", [Content("<think>a")]),
        ("ernie45", "", "<think>\na</think>\n\n<response>\nb\n</response>\n", [Reasoning("a"), Content("b")]),
        ("hunyuan_a13b", "", "<think>\na</think>\n<answer>\nb\n</answer>", [Reasoning("a"), Content("b")]),
        ("hy_v3", "<｜hy_Assistant:v1｜><think:v1>", "a</think:v1>b", [Reasoning("a"), Content("b")]),
        ("hy_v3", "<think:v1></think:v1>", "</think>b", [Content("</think>b")]),
        ("k2_horizon", "<ifm|think_fast>", "a</ifm|think_fast>\nb", [Reasoning("a"), Content("b")]),
        ("inkling", "<|message_model|>", "me<|content_thinking|>a<|end_message|>", [Reasoning("a")]),
        ("inkling", "<|message_model|>", "b is all", [Content("b is all")]),
        ("inkling", "<|message_model|>", '{"b": "<p>"}', [Content('{"b": "<p>"}')]),
        ("inkling", "<|message_model|>", "b", [Content("b")]),
        ("inkling", "<|message_model|>", "me<|content_te", []),
        ("muse_glimmer", "<|start|>assistant", "b is all", [Content("b is all")]),
        ("muse_glimmer", "<|start|>assistant", "to", [Content("to")]),
        ("muse_glimmer", "<|start|>assistant", "<|message|>b<|eot|>", [Content("b")]),
        ("gpt_oss", "<|start|>assistant", "to", [Content("to")]),
        ("inkling", "<|message_model|><|content_thinking|>", "a<|end_message|>", [Reasoning("a")]),
        ("muse_glimmer", "<|start|>assistant",
         " to=self<|message|>a<|eom|><|start|>assistant to=user<|message|>b<|eot|>",
         [Reasoning("a"), Content("b")]),
        ("beam", "", "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b<|return|>",
         [Reasoning("a"), Content("b")]),
        ("kimi_k3", "", "<|open|>think<|sep|>a<|close|>think<|sep|><|open|>response<|sep|>b<|close|>response<|sep|>"
         "<|close|>message<|sep|>", [Reasoning("a"), Content("b")]),
        ("cohere_command", "", "<|START_THINKING|>a<|END_THINKING|><|START_RESPONSE|>b<|END_RESPONSE|>",
         [Reasoning("a"), Content("b")]),
    ],
)  # fmt: skip
def test_reasoning(reasoning, prompt, text, made) -> None:
    assert read(text, None, reasoning, prompt=prompt) == made
    special = ["<|open|>", "<|close|>", "<|sep|>"]
    assert read(text, None, reasoning, prompt=prompt, special=special) == made
    parser = make_parser(None, reasoning, prompt=prompt)
    assert assemble([piece for one in text for piece in parser.feed(one)] + parser.finish()) == made


@pytest.mark.parametrize(
    ("tool", "text", "made"),
    [
        ("hermes", '<tool_call>{"arguments": {"count": 1}, "name": "find"}</tool_call>', ("find", {"count": 1})),
        ("hermes", '<tool_call>{"name": "find", "arguments": "{\\"count\\": 1}"}</tool_call>', ("find", {"count": 1})),
        ("hermes", '<tool_call>{"name": "now"}</tool_call>', ("now", {})),
        ("hermes", '<tool_call>{"name": "now", "arguments": null}</tool_call>', ("now", {})),
        ("hermes", '<tool_call>{"name": "find", "arguments": {"text": "a\nb"}}</tool_call>',
         ("find", {"text": "a\nb"})),
        ("hermes", '<tool_call>{"name": "find", "arguments": {"count": 1}', ("find", {"count": 1})),
        ("hermes", '<tool_call>{"name": "other", "arguments": {}}</tool_call>', ("other", {})),
        ("hermes", '<tool_call>{"type": "function", "function": {"name": "now", "arguments": {}}}</tool_call>',
         ("now", {})),
        ("harmony", " to=functions.now<|channel|>commentary json<|message|>{}<|call|>", ("now", {})),
        ("qwen3_coder", "<function=find>\n<parameter=count>\n5\n</parameter>", ("find", {"count": 5})),
        ("qwen3_coder", "<function=find><parameter=text>1<parameter=count>5</function>",
         ("find", {"text": "1", "count": 5})),
        ("lfm2", "<|tool_call_start|>[find(text='a\nb\t', count=1)]<|tool_call_end|>",
         ("find", {"text": "a\nb\t", "count": 1})),
        ("qwen3_coder", '<function=find>{"count": 5}</function>', ("find", {"count": 5})),
        ("mimo", "<tool_call><function=find><parameter=text>\na\n</parameter></function></tool_call>",
         ("find", {"text": "\na\n"})),
        ("gemma4", "<|tool_call>call:find{tags:[],count:2}<tool_call|>", ("find", {"tags": [], "count": 2})),
        ("minicpm5", '<function name="find"><param name="text"><![CDATA[a</param> & b]]></param></function>',
         ("find", {"text": "a</param> & b"})),
        ("minicpm5", '<function name="find"><param name="text">a?b=1&copy=2 &lt;c&gt;</param></function>',
         ("find", {"text": "a?b=1&copy=2 <c>"})),
        ("dots", '<invoke name=find><parameter name="count">5</parameter></invoke>', ("find", {"count": 5})),
        ("k2_horizon", "<ifm|tool_call>other<ifm|arg_key>n</ifm|arg_key><ifm|arg_type>string</ifm|arg_type>"
         "<ifm|arg_value>5</ifm|arg_value></ifm|tool_call>", ("other", {"n": "5"})),
        ("hunyuan", "<tool_call>now<tool_sep></tool_call>", ("now", {})),
        ("plamo3", "<|plamo:begin_tool_request:plamo|><|plamo:begin_tool_name:plamo|>now<|plamo:end_tool_name:plamo|>"
         "<|plamo:begin_tool_arguments:plamo|>{}", ("now", {})),
        ("beam", " to=find<|channel|>analysis <|constrain|>xml<|message|>"
         '<rfl:parameter name="text">\na\n<rfl:parameter name="count">\n5\n</rfl:parameter><|call|>',
         ("find", {"text": "a", "count": 5})),
        ("muse_glimmer", '<atem:function_calls><atem:invoke name="box.find"><atem:parameter name="text"> a'
         "</atem:parameter></atem:invoke></atem:function_calls>", ("find", {"text": " a"})),
        ("muse_glimmer", "<|start|>assistant to=self<|message|>Hm. to=now<|message|><atem:function_calls>"
         '<atem:invoke name="now"></atem:invoke></atem:function_calls><|eom|>', ("now", {})),
        ("inkling", '<|content_invoke_tool_json|>{"name": "now", "args": {}}<|end_message|>', ("now", {})),
        ("pythonic", '[find(tags=["a", "b)"], exact=true, text="it\'s")]',
         ("find", {"tags": ["a", "b)"], "exact": True, "text": "it's"})),
    ],
)  # fmt: skip
def test_odd_forms_of_calls(tool, text, made) -> None:
    assert asked(text, tool) == [made]


@pytest.mark.parametrize(
    ("tool", "text"),
    [
        ("llama3_json", '{"name": "Ada", "age": 36}'),
        ("llama3_json", '{"name": "other", "parameters": {}}'),
        ("llama3_json", '{"name": "fi'),
        ("llama3_json", "[1, 2]"),
        ("pythonic", "[1, 2] are numbers"),
        ("pythonic", "[other(a=1)]"),
        ("phi4", '{"answer": [1, 2]}'),
    ],
)
def test_without_a_marker_only_a_tools_name_is_a_call(tool, text) -> None:
    assert read(text, tool) == [Content(text)]


def test_what_is_no_call_behind_a_marker_is_content() -> None:
    assert read("use <tool_call> tags", "hermes") == [Content("use  tags")]


def test_python_text_with_unknown_escapes_and_endless_numbers() -> None:
    assert asked(r"[find(text='\d+')]", "pythonic") == [("find", {"text": r"\d+"})]
    parser = make_parser("hermes", None, TOOLS)
    text = '<tool_call>{"name": "find", "arguments": ' + "1" * 5000
    made = [piece for one in text for piece in parser.feed(one)] + parser.finish()
    assert assemble(made)[0] == Dropped(0, "find", "malformed")
    assert assemble(made) == read(text, "hermes")


def test_arguments_that_are_no_object_are_said() -> None:
    text = '<tool_call>{"name": "find", "arguments": [1]}</tool_call>'
    assert read(text, "hermes")[0] == Dropped(0, "find", "malformed")
    assert read('<tool_call>{"name": "find", "arguments": {"a": tru', "hermes", reason="length") == [
        Dropped(0, "find", "truncated")
    ]
    note = Dropped(None, "", "truncated")
    assert read('<tool_call>{"na', "hermes") == [note, Content('{"na')]
    assert read('<tool_call>{"na', "hermes", reason="length") == [note]
    both = '<tool_call>{"name": "now", "arguments": {}}</tool_call><tool_call>{"name": "find", "arguments": {"a'
    assert [type(item) for item in read(both, "hermes", reason="length")] == [Call, Dropped]


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ('[{"name": "fi', [Content('[{"name": "fi')]),
        ("[", [Content("[")]),
        ('[{"name": "find", "argu', [("find", "")]),
        ('[{"name": "find", "arguments": {"a": "b', [("find", '{"a": "b')]),
        ('[{"name": "now", "arguments": {}}, {"na', [("now", "{}"), Dropped(None, "", "truncated")]),
        # Clients decode the arguments of each call that they get: after a complete call a cut one is none.
        (
            '[{"name": "now", "arguments": {}}, {"name": "find", "arguments": {"a',
            [("now", "{}"), Dropped(1, "find", "truncated")],
        ),
    ],
)
def test_a_limit_leaves_what_there_is_of_forced_calls(text, kept) -> None:
    for size in (1, 3, len(text)):
        parser = keeping_cut(make_parser("llama3_json", None, TOOLS))
        parser.feed("<|python_tag|>")
        pieces = [text[place : place + size] for place in range(0, len(text), size)]
        found = assemble([segment for piece in pieces for segment in parser.feed(piece)] + parser.finish("length"))
        assert [(one.name, one.arguments) if isinstance(one, Call) else one for one in found] == kept
    parser = keeping_cut(make_parser("llama3_json", None, TOOLS))
    parser.feed("<|python_tag|>" + text)
    assert [one for one in parser.finish("stop") if isinstance(one, Dropped)], "the model's own end is no limit"


def test_tags_of_calls_in_an_answer_are_no_call_where_messages_have_recipients() -> None:
    call = '<atem:invoke name="now"></atem:invoke>'
    said = read(f"<|start|>assistant to=user<|message|>Write {call} so.<|eot|>", "muse_glimmer")
    assert [type(item) for item in said] == [Content]
    thought = read(f"<|start|>assistant to=self<|message|>I write {call}.<|eom|>", "muse_glimmer")
    assert [type(item) for item in thought] == [Reasoning]


def test_a_suffix_is_found_in_special_tokens_too() -> None:
    text = "<tool_calls:v1><tool_call:v1>now<tool_sep:v1></tool_call:v1></tool_calls:v1>"
    assert asked(text, "hunyuan", special=["<think:v1>", "<tool_calls:v1>"]) == [("now", {})]
    assert opening_of("hunyuan", ["</think:v1>"]) == ("<tool_calls:v1>", False)
    assert thinking_of("hunyuan").before_form("<think:v1>", ()) == ("", "</think:v1>")


def test_between_two_parameters_a_limit_drops_the_call() -> None:
    text = "<function=find>\n<parameter=count>\n5\n</parameter>"
    assert read(text, "qwen3_coder", reason="length") == [Dropped(0, "find", "truncated")]


def test_ids_are_of_the_seed_and_the_models_own_where_it_has_them() -> None:
    call = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    first, second = read(call * 2, "hermes", seed="a")
    assert first.id.startswith("call_")
    assert first.id != second.id
    assert read(call, "hermes", seed="a") == [first]
    assert read(call, "hermes", seed="b") != [first]
    kimi = "<|tool_call_begin|>functions.now:3<|tool_call_argument_begin|>{}<|tool_call_end|>"
    first, second = read(kimi * 2, "kimi_k2")
    assert (first.id, first.name) == ("functions.now:3", "now")
    assert second.id != first.id
    assert len(read('[TOOL_CALLS][{"name": "now", "arguments": {}}]', "mistral")[0].id) == 9


def test_special_tokens_are_dropped_and_arguments_stream() -> None:
    assert read("a<|x|>b <|im_end|>", special=["<|x|>"]) == [Content("ab ")]
    parser = make_parser("hermes", None, TOOLS)
    parser.feed('<tool_call>{"name": "find", "arguments": {"text": "')
    assert [piece.text for piece in parser.feed("long ")] == ["long "]
    parser.finish("length")
    assert parser.feed("more") == parser.finish() == []


@pytest.mark.parametrize(
    ("text", "schema", "made"),
    [
        ("5", {"type": "string"}, "5"),
        ("5", {"type": "integer"}, 5),
        ("5", {"type": "number"}, 5),
        ("5", {}, 5),
        ("five", {"type": "integer"}, "five"),
        ("42.0", {"type": "integer"}, 42),
        ("4.2e1", {"type": ["integer", "null"]}, 42),
        ("4.25", {"type": "integer"}, "4.25"),
        ("1e300", {"type": "integer"}, "1e300"),
        ("42.0", {"type": ["integer", "string"]}, "42.0"),
        ("True", {"type": "boolean"}, True),
        ("none", {"type": ["string", "null"]}, None),
        ("[1, 2]", {"type": "array"}, [1, 2]),
        ("{'a': True}", {"type": "object"}, {"a": True}),
        ("5", {"anyOf": [{"type": "integer"}, {"type": "null"}]}, 5),
        ("5", {"$ref": "#/$defs/text"}, "5"),
        ("1", {"enum": ["1", "2"]}, "1"),
        ("1e", {"$ref": "#/none"}, "1e"),
        ("5", {"$ref": "#/$defs/My%20Type"}, "5"),
        ("5", {"$ref": "#/$defs/a~1b~0c%25"}, "5"),
        ("5", {"$ref": "#/$defs/list/anyOf/1"}, "5"),
        ("5", {"$ref": "#/$defs/100%"}, "5"),
        ("5", {"allOf": [{"$ref": "#/$defs/text"}]}, "5"),
        ("5", {"allOf": [{"$ref": "#/$defs/text"}, {"minLength": 1}]}, "5"),
        ("5", {"allOf": [{"type": ["string", "integer"]}, {"type": ["string", "null"]}]}, "5"),
        ("5", {"allOf": [{"type": "number"}, {"type": "integer"}]}, 5),
        ("5.0", {"allOf": [{"type": "number"}, {"type": "integer"}]}, 5),
        ("5", {"allOf": [{"anyOf": [{"type": "string"}, {"type": "null"}]}]}, "5"),
        ("5", {"anyOf": [{"allOf": [{"type": "string"}]}, {"type": "null"}]}, "5"),
        ("5", {"type": "string", "allOf": [{"minLength": 1}]}, "5"),
        ("5", {"$ref": "#/$defs/text", "description": "a text"}, "5"),
        ("5", {"allOf": [{"type": "string"}, {"type": "integer"}]}, 5),
        ("5", {"allOf": [{"type": "string"}, {"type": ["number", "integer"]}]}, 5),
        ("5", {"allOf": []}, 5),
        ("5", {"allOf": 5}, 5),
        ("5", {"anyOf": True, "oneOf": 5}, 5),
        ("5", {"type": 5}, 5),
        ("3.14", {"type": "float"}, 3.14),
        ("5", {"type": "str"}, "5"),
        ("5", {"type": "int"}, 5),
        ("{'u', 'b', 'u', 'a', 'c'}", {"type": "array"}, ["u", "b", "a", "c"]),
        ("{'k': [{'z', 'y'}, {3, 1}]}", {}, {"k": [["z", "y"], [3, 1]]}),
        ("{[1]}", {}, "{[1]}"),
    ],
)
def test_values_have_the_schemas_type(text, schema, made) -> None:
    names = ("text", "My Type", "a/b~c%", "100%")
    whole = {"properties": {"p": schema}, "$defs": {name: {"type": "string"} for name in names}}
    whole["$defs"]["list"] = {"anyOf": [{"type": "integer"}, {"type": "string"}]}
    assert json.loads(typed(text, whole, "p")) == made


NESTED = {
    "type": "object",
    "properties": {
        "order": {"$ref": "#/$defs/order"},
        "note": {"type": "string"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "any": {"type": "object"},
        "prices": {"type": "object", "additionalProperties": {"type": "number"}},
    },
    "$defs": {
        "order": {
            "type": "object",
            "properties": {
                "zip": {"type": "string"},
                "rows": {"type": "array", "items": {"type": "object", "properties": {"n": {"type": "integer"}}}},
            },
        }
    },
}


@pytest.mark.parametrize(
    ("inner", "made"),
    [
        ("<order>M<zip>018M</zip>M<rows>M<item>M<n>2M</n>M</item>M</rows>M</order>",
         {"order": {"zip": "018", "rows": [{"n": 2}]}}),
        ("<note>1 < 2M</note>M<tags>M<item>5M</item>M</tags>", {"note": "1 < 2", "tags": ["5"]}),
        ("<any>M<t>aM</t>M<t>bM</t>M<n>1M</n>M</any>", {"any": {"t": ["a", "b"], "n": 1}}),
        ("<prices>M<pen>3M</pen>M</prices>", {"prices": {"pen": 3}}),
        ("<tags>[\"a\"]M</tags>", {"tags": ["a"]}),
    ],
)  # fmt: skip
def test_values_with_tags_inside(inner, made) -> None:
    mark = "]<]minimax[>["
    text = f'M<tool_call>M<invoke name="f">M{inner}M</invoke>M</tool_call>'.replace("M", mark)
    parser = make_parser("minimax_m3", None, [ToolSpec("f", NESTED)])
    [call] = assemble(parser.feed(text) + parser.finish())
    assert json.loads(call.arguments) == made


@pytest.mark.parametrize("inner", ["<a>M</b>", "<a>text M<b>M</b>M</a>", "<a>" + "M<b>" * 60])
def test_tags_that_do_not_fit(inner) -> None:
    text = f'M<tool_call>M<invoke name="f">M{inner}M</invoke>M</tool_call>'.replace("M", "]<]minimax[>[")
    parser = make_parser("minimax_m3", None, [ToolSpec("f")])
    assert Dropped in [type(item) for item in assemble(parser.feed(text) + parser.finish())]


@pytest.mark.parametrize("text", ["```json\n[]", "```[]"])
@pytest.mark.parametrize("size", range(1, 9))
def test_of_words_with_one_beginning_the_longest_is_read(text: str, size: int) -> None:
    reader, found = Reader(), ""

    def read() -> Steps[None]:
        nonlocal found
        found = yield from reader.accept("```", "```json")

    steps = read()
    for at in range(0, len(text), size):
        reader.held += text[at : at + size]
        if next(steps, "over") == "over":
            break
    assert found == text.partition("\n")[0].removesuffix("[]")


@pytest.mark.parametrize(
    ("template", "model_type", "names"),
    [
        ("{{ '<tool_call>' }}{{ content.split('</think>') }}", "qwen3", ("hermes", "basic")),
        ("<tool_call><function=...>", "qwen3_moe", ("qwen3_coder", None)),
        ("<tool_call>{{ name }}<arg_key></think>", "glm4_moe", ("glm45", "basic")),
        ("[TOOL_CALLS][THINK]", "mistral", ("mistral", "mistral")),
        ("<|start|>assistant<|channel|>final<|message|>", "", ("harmony", "gpt_oss")),
        ("", "gpt_oss", ("harmony", "gpt_oss")),
        ("<｜tool▁calls▁begin｜>```json {% if add_generation_prompt %}<think>\\n{% endif %} </think>", "deepseek_v3",
         ("deepseek_v3", "deepseek_r1")),
        ("<｜tool▁calls▁begin｜><｜tool▁sep｜>", "deepseek_v3", ("deepseek_v3_1", None)),
        ("{{ 'Environment: ipython' }} {\"name\": n, \"parameters\": p}", "llama", ("llama3_json", None)),
        ("<minimax:tool_call></think>", "minimax", ("minimax_m2", "minimax_m2")),
        ("]<]minimax[>[<tool_call><mm:think>", "minimax_m3", ("minimax_m3", "minimax_m3")),
        ("<|START_THINKING|><|START_ACTION|>", "cohere2", ("cohere_command", "cohere_command")),
        ("<|open|>think<|sep|><|open|>{{ tag }}", "kimi_k3", ("kimi_k3", "kimi_k3")),
        ("<start_function_call>call:", "gemma3_text", ("functiongemma", None)),
        ("<｜tool_sep｜><steptml:invoke", "step3", ("step3", None)),
        ("function call<|role_sep|>", "deepseek_v3", ("gigachat3", None)),
        ("<|inner_prefix|><|tools_prefix|>", "apertus", ("apertus", "apertus")),
        ("<|action_start|><|plugin|>", "internlm2", ("internlm", None)),
        ("{{ messages }}", "llama", (None, None)),
        ("{%- set dsml_token = '｜DSML｜' -%}<' + dsml_token + 'tool_calls></think>", "", ("deepseek_v3_2", "basic")),
        ("<｜DSML｜ calls><｜DSML｜ invoke", "", ("deepseek_v4_1", None)),
        ("{%- set dsml_token = '｜DSML｜' -%}<' + dsml_token + ' calls>", "", ("deepseek_v4_1", None)),
        ("<｜GCML｜tool_calls></think>", "", ("gigachat35", "basic")),
        ("<|channel|><|constrain|>xml<|message|><rfl:parameter", "", ("beam", "beam")),
        ("<|start|>assistant to=self<|message|><atem:invoke name=", "", ("muse_glimmer", "muse_glimmer")),
        ("<|content_thinking|><|content_invoke_tool_json|>", "", ("inkling", "inkling")),
        ("'<think{}>' '<tool_calls{}>' '<tool_sep{}>' '<arg_key{}>'", "hy_v3", ("hunyuan", "hunyuan")),
        ("<think><tool_calls><tool_call><arg_key><arg_value>", "hy_v4", ("hunyuan", "hunyuan")),
        ("<tool_calls>[...]</tool_calls></think><answer>", "hunyuan", ("jamba", "hunyuan_a13b")),
        ("<tool_call></think><response>", "ernie4_5", ("hermes", "ernie45")),
        ("<function name=\"f\"><param name=\"p\"> '<tool_sep>' </think>", "minicpm", ("minicpm5", "basic")),
        ("<ifm|think><ifm|tool_calls><ifm|tool_call>", "", ("k2_horizon", "k2_horizon")),
        ("<|plamo:begin_think:plamo|><|plamo:begin_tool_requests:plamo|>", "", ("plamo3", "plamo3")),
        ("<|think:start|><|tool_call:start|>", "", ("solar_open2", "solar_open2")),
        ("<iquest_tool_call>{{ n }}<arg_key></think>", "", ("iquest_q1", "basic")),
        ("<dots_function_call><invoke></think>", "dots", ("dots", "basic")),
        ("<function_call> {{ call }}", "granite", ("granite_20b_fc", None)),
        ("List of tools: <|tool_list_start|>", "lfm2", ("lfm2", None)),
        ("'role': 'function call' role_sep=\"<|role_sep|>\"", "", ("gigachat3", None)),
        ("{{- open_tag('think') -}} <|open|>", "kimi_k3", ("kimi_k3", "kimi_k3")),
    ],
)  # fmt: skip
def test_parsers_are_chosen_by_the_template(template, model_type, names) -> None:
    assert choose(template, model_type) == names
    make_parser(*names, [ToolSpec("f")])
