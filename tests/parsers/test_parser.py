"""What the laws do not say: names, prompts, odd forms, notes, the choice by template."""

import json

import pytest

from dynamod.message.errors import UserError
from dynamod.parsers import Call, Content, Dropped, Reasoning, ToolSpec, assemble, choose, make_parser
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
    assert {form.tool for form in FORMATS.values()} >= GRAMMARS.keys() - {"default"}


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
    ],
)  # fmt: skip
def test_reasoning(reasoning, prompt, text, made) -> None:
    assert read(text, None, reasoning, prompt=prompt) == made
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
        ("gemma4", "<|tool_call>call:find{tags:[],count:2}<tool_call|>", ("find", {"tags": [], "count": 2})),
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
    assert read('<tool_call>{"na', "hermes") == [Dropped(None, "", "truncated")]
    both = '<tool_call>{"name": "now", "arguments": {}}</tool_call><tool_call>{"name": "find", "arguments": {"a'
    assert [type(item) for item in read(both, "hermes", reason="length")] == [Call, Dropped]


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
        ("True", {"type": "boolean"}, True),
        ("none", {"type": ["string", "null"]}, None),
        ("[1, 2]", {"type": "array"}, [1, 2]),
        ("{'a': True}", {"type": "object"}, {"a": True}),
        ("5", {"anyOf": [{"type": "integer"}, {"type": "null"}]}, 5),
        ("5", {"$ref": "#/$defs/text"}, "5"),
        ("1", {"enum": ["1", "2"]}, "1"),
        ("1e", {"$ref": "#/none"}, "1e"),
    ],
)
def test_values_have_the_schemas_type(text, schema, made) -> None:
    whole = {"properties": {"p": schema}, "$defs": {"text": {"type": "string"}}}
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
    ],
)  # fmt: skip
def test_parsers_are_chosen_by_the_template(template, model_type, names) -> None:
    assert choose(template, model_type) == names
    make_parser(*names, [ToolSpec("f")])
