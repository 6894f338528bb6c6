# ruff: noqa: E501 (templates are written as their makers do)
import json
import time
from datetime import datetime
from typing import Any

import jinja2.ext
import jinja2.sandbox
import msgspec
import pytest

from dynamod.message.errors import BadRequest, UserError
from dynamod.message.openai import Message
from dynamod.preprocess.conversation import as_dict
from dynamod.preprocess.template import BOUNDS, VALUE_SIZE, ChatTemplate, TooMuch, Work, bound_of, size_of

from .conftest import CHATML

NOW = datetime(2026, 11, 21, 9, 30)


def reference(source: str, **context: Any) -> str:
    """The template as transformers renders it."""

    def tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = NOW.strftime
    return environment.from_string(source).render(**context)


LLAMA3 = """\
{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not date_string is defined %}
    {%- set date_string = strftime_now("%d %b %Y") %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}
{%- if tools is not none %}
    {{- "You may call these:\\n" }}
    {%- for tool in tools %}
        {{- tool | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("one call at a time!") }}
        {%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
        {{- '{"name": "' + call.name + '", "parameters": ' }}
        {{- call.arguments | tojson }}
        {{- "}<|eot_id|>" }}
    {%- else %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

MISTRAL = """\
{{ bos_token }}{% for message in messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
{% endif %}
{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}
{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token + ' ' }}
{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}
"""

QWEN = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- "# Tools\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(multi_step=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>')) %}
        {%- set ns.multi_step = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set content = message.content or '' %}
        {%- if '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
            {%- if loop.index0 > ns.last %}
                {{- '<think>' + reasoning.strip('\\n') + '</think>' }}
            {%- endif %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' + content }}
        {%- if message.tool_calls %}
            {%- for call in message.tool_calls %}
                {%- if call.function is defined %}
                    {%- set call = call.function %}
                {%- endif %}
                {{- '\\n<tool_call>\\n{"name": "' ~ call.name ~ '", "arguments": ' }}
                {{- call.arguments if call.arguments is string else call.arguments | tojson }}
                {{- '}\\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""

PYTHONIC = """\
{% macro show(name, value, depth=1) %}{{ name }}={{ value }}@{{ depth }};{% endmacro %}
{% for message in messages %}
{% if loop.first %}{% continue %}{% endif %}
{% for key, value in message.items() %}{{ show(key, value, depth=2) }}{% endfor %}
{{ message.get('nothing', 'default') }} {{ message['role'].upper() }} {{ message.role.title() }} {{ true }} {{ none }}
{% generation %}{{ message.content }}{% endgeneration %}

{%- generation -%}   x   {%- endgeneration -%}
{% if loop.index == 3 %}{% break %}{% endif %}
{% endfor %}
{{ messages | map(attribute='role') | join(', ') }} {{ messages | selectattr('role', 'equalto', 'user') | list | length }}
{% set parts %}block {{ bos_token }}{% endset %}{{ parts | upper | replace('B', 'ß') }} {{ 7 // 2 }} {{ 'a' in 'abc' }}
{{ {'k': [1, 2.5, none, true, '<é"']} | tojson }} {{ messages[-1]['content'][:3] }} {{ '  x '.strip() ~ '-' ~ 3 }}
"""

PLAIN = [
    {"role": "user", "content": " Hi <there> & 'you' \"é\" 😀 "},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello\n{{ not a tag }}"},
    {"role": "user", "content": "Bye"},
]
SYSTEM = [{"role": "system", "content": "Be brief.\n"}, *PLAIN]
CALLS = [
    {"role": "user", "content": "weather?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "get", "arguments": {"zoo": "Köln", "a": [1, 2.0]}}}
        ],
    },
    {"role": "tool", "content": "rain", "tool_call_id": "1"},
]
TOOLS = [{"type": "function", "function": {"name": "get", "parameters": {"type": "object", "b": {}, "a": "<é>"}}}]

CASES = [
    (source, messages, tools, kwargs)
    for source, conversations in {
        CHATML: [PLAIN, SYSTEM],
        LLAMA3: [PLAIN, SYSTEM, CALLS],
        MISTRAL: [PLAIN],
        QWEN: [PLAIN, SYSTEM, CALLS],
        PYTHONIC: [PLAIN, SYSTEM],
        CHATML.replace("{%", "{%-"): [PLAIN],
    }.items()
    for messages in conversations
    for tools, kwargs in ((None, {}), (TOOLS, {"enable_thinking": False}), (None, {"date_string": "1 May"}))
]


@pytest.mark.parametrize("ask", [True, False])
@pytest.mark.parametrize(("source", "messages", "tools", "kwargs"), CASES)
def test_renders_as_transformers(
    source: str, messages: list[Any], tools: list[Any] | None, kwargs: dict[str, Any], ask: bool
) -> None:
    template = ChatTemplate(source, "<s>", "</s>", now=lambda: NOW)
    text = template.render(messages, tools, ask, **kwargs)
    # transformers' own {% generation %} extension renders its body as it is.
    plain = source.replace("endgeneration", "endif").replace("generation %}", "if true %}")
    plain = plain.replace("generation -%}", "if true -%}")
    expected = reference(
        plain, messages=messages, tools=tools, add_generation_prompt=ask, bos_token="<s>", eos_token="</s>", **kwargs
    )
    assert text == expected
    assert text.strip()


def test_the_models_other_special_tokens_are_known() -> None:
    assert ChatTemplate("{{ pad_token }}{{ x }}", tokens={"pad_token": "[PAD]"}).render([], x="y") == "[PAD]y"


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("{{ raise_exception('Roles must alternate') }}", "Roles must alternate"),
        ("{{ messages[0].nothing.more }}", "undefined value"),
        ("{{ messages[0].content + none }}", "unsupported types"),
        ("{{ messages[0].content.nothing() }}", "no method named nothing"),
    ],
)
def test_a_template_that_fails_is_a_bad_request(source: str, says: str) -> None:
    with pytest.raises(BadRequest, match=says) as caught:
        ChatTemplate(source).render([{"role": "user", "content": "x"}])
    assert caught.value.param == "messages"
    assert "\n" not in str(caught.value)


def test_a_broken_template_is_refused_at_load() -> None:
    with pytest.raises(UserError, match=r"not valid: .*unexpected"):
        ChatTemplate("{% if %}")


NESTED = "{% for i in range(90000) %}{% for j in range(90000) %}{% for k in range(90000) %}x{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (f"{NESTED}{{% endfor %}}", "ran out of fuel"),
        ("{{ 'a'|indent(200000000000, true) }}", "an indentation of more than 100"),
        ("{{ 'a'|indent('x' * 2000, true) }}", "an indentation of more than 100"),
        ("{{ [1]|tojson(indent=2000000000) }}", "an indentation of more than 100"),
        ("{{ 'a' * 200000000000 }}", "too large|ran out of fuel"),  # as the version of minijinja has it
        ("{{ 10 ** 10000000 }}", "unable to calculate"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "recursion"),
    ],
)
def test_work_without_bound_is_refused(source: str, says: str) -> None:
    with pytest.raises(BadRequest, match=says):
        ChatTemplate(source).render([])


FILTERED = "{% for i in range(5000) %}{% set x = messages|tojson(indent=90) %}{% endfor %}"
DATED = "{% for i in range(90000) %}{% set x = strftime_now('%d' * 1000) %}{% endfor %}"
DOUBLED = "{% set ns = namespace(s='a') %}{% for i in range(40) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}"
REPLACED = "{% set a = 'x' * 1000000 %}{% for i in range(1000) %}{% set b = a|replace('x', 'yy') %}{% endfor %}"
NUMBERED = "{% for i in range(3000) %}{% set x = 'a' * 1000 %}{% set y = x|indent(90, true) %}{% endfor %}"


@pytest.mark.parametrize("source", [FILTERED, DATED, DOUBLED, REPLACED, NUMBERED, NESTED + "{% endfor %}"])
def test_a_small_request_is_little_work_whatever_the_template_does(source: str) -> None:
    """Other streams wait as long: 0.1 s of the processor are promised, and ten times that are a failure."""
    template = ChatTemplate(source)
    begun = time.thread_time()
    with pytest.raises(BadRequest, match=r"ran out of fuel|filters make more|takes more") as caught:
        template.render([{"role": "user", "content": "x"}] * 10)
    assert time.thread_time() - begun < 1
    assert caught.value.param == "messages"


def test_a_clock_ends_a_rendering_at_its_next_filter() -> None:
    now = iter([0.0, 0.05, 0.2, 0.3])
    work = Work(lambda: next(now))
    work.charge(10**12)  # not in a rendering
    work.begin(BOUNDS[0])
    work.enter()
    work.charge(1)
    work.enter()
    with pytest.raises(TooMuch, match=r"more than 0.125 s"):
        work.charge(1)


def test_a_large_request_may_take_more_work() -> None:
    """As many instructions as each two of its messages."""
    source = "{% for a in messages %}{% for b in messages %}{% if a == b %}{% endif %}{% endfor %}{% endfor %}done"
    messages = [{"role": "user", "content": f"text {place}"} for place in range(500)]
    assert ChatTemplate(source).render(messages) == "done"
    tools = [{"name": f"tool{place}", "description": "d" * 1000} for place in range(5000)]
    assert len(ChatTemplate("{{ tools|tojson }}").render([], tools)) > 5_000_000


def test_the_size_of_values() -> None:
    assert size_of("abc", 10**9) == VALUE_SIZE + 3
    assert size_of({"a": ["bc", 7, None]}, 10**9) == 6 * VALUE_SIZE + 3
    assert size_of(["x"] * 10**6, 1000) <= 2 * 1000
    assert bound_of({"messages": []}) is BOUNDS[0]
    assert bound_of({"messages": ["x" * 10**7]}) is BOUNDS[-1]


def test_long_conversations_are_within_the_bound() -> None:
    messages = [{"role": ("user", "assistant")[place % 2], "content": "hi"} for place in range(20_000)]
    assert ChatTemplate(QWEN).render(messages, TOOLS).count("hi") == 20_000


@pytest.mark.parametrize("arguments", ["", ", first=true", ", blank=true", ", true, true"])
@pytest.mark.parametrize("text", ["", "a", "a\nb", "a\n", "a\n\nb\n", "\n", "\n\na"])
def test_indent_is_that_of_jinja2(text: str, arguments: str) -> None:
    for width in ("2", "'> '"):
        source = "{{ text|indent(" + width + arguments + ") }}|"
        assert ChatTemplate(source).render([], text=text) == reference(source, text=text)


PARAMETERS = """\
{%- macro keys(value, known) -%}
    {%- if value is mapping %}{% for key in value if key not in known %}<{{ key }}>{% endfor %}{% endif -%}
{%- endmacro -%}
{%- if not tools is defined %}{%- set tools = [] %}{%- endif %}
{%- if tools is iterable and tools | length > 0 %}
    {{- "TOOLS" }}
    {%- for tool in tools %}
        {%- set function = tool.function if tool.function is defined else tool %}
        {{- function.name ~ keys(function.parameters, ["type"]) }}
    {%- endfor %}
{%- endif %}
{%- for message in messages %}
    {%- if message.tool_calls is defined and message.tool_calls is iterable and message.tool_calls | length > 0 %}
        {%- if message.content is defined and message.content is string and message.content | trim | length > 0 %}
            {{- message.content | trim }}
        {%- endif %}
        {%- for call in message.tool_calls %}
            {{- "<" ~ call.function.name }}
            {%- for name, value in call.function.arguments | items %} {{ name }}={{ value }}{% endfor %}
            {{- ">" }}
        {%- endfor %}
    {%- elif "</think>" in message.content %}
        {{- message.content.split("</think>")[-1] }}
    {%- else %}
        {{- message.role + message.content + (message.reasoning_content or "") }}
    {%- endif %}
{%- endfor %}
"""
"""What the templates of Qwen3, Qwen3-Coder, Nemotron, gpt-oss and Phi-3.5 do with tools, contents and arguments."""


@pytest.mark.parametrize("tools", [None, TOOLS])
@pytest.mark.parametrize("arguments", ["", "{oops", "{}", '{"a": "b"}', '["a"]'])
@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": ""}, {"content": "hm"}])
def test_conversations_as_clients_send_them(tools: Any, arguments: str, content: dict[str, Any]) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "get", "arguments": arguments}}
    said = [
        {"role": "user", "content": "weather?"},
        {"role": "assistant", "tool_calls": [call], **content},
        {"role": "tool", "content": "rain", "tool_call_id": "1"},
        {"role": "assistant", "content": "It rains.", "reasoning": "because"},
    ]
    messages = [as_dict(message) for message in msgspec.convert(said, list[Message])]
    text = ChatTemplate(PARAMETERS).render(messages, tools)
    assert text == reference(PARAMETERS, messages=messages, tools=tools)
    inner = {"{oops": " INVALID_JSON={oops", '["a"]': ' INVALID_JSON=["a"]', '{"a": "b"}': " a=b"}
    assert f"<get{inner.get(arguments, '')}>" in text
    assert text.endswith("toolrainassistantIt rains.because")
    assert text.startswith("TOOLSget") is (tools is not None)


def test_templates_have_no_way_into_python() -> None:
    assert ChatTemplate("{{ messages.__class__ }}{{ raise_exception.__globals__ }}").render([]) == ""
