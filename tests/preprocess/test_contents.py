"""Content in parts as each kind of template wants it, and numbers in tool calls as Python writes them."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamod.message.errors import BadRequest
from dynamod.message.openai import Message
from dynamod.preprocess.contents import Form
from dynamod.preprocess.conversation import as_dict, check_messages, check_roles
from dynamod.preprocess.template import ChatTemplate

from .test_template import reference

BOTH = """\
{%- for message in messages -%}
<{{ message.role }}>
{%- if message.content is string -%}
{{ message.content }}
{%- else -%}
{%- for part in message.content -%}
{%- if part.type == 'text' %}[{{ part['text'] | trim }}]{% endif -%}
{%- endfor -%}
{%- endif -%}
{%- endfor -%}"""
TEXT = "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}"
STRICT = "{% for message in messages %}{{ message.content + '|' }}{% endfor %}"
TRIMMED = "{% for message in messages %}{{ message.content | trim }}|{% endfor %}"
AS_JSON = "{{ messages | tojson }}"
PARTS = "{% for message in messages %}{% for part in message.content %}{{ part.text }};{% endfor %}{% endfor %}"
USER_ONLY = """\
{%- for message in messages -%}
{%- if message.role == 'user' -%}
{%- for part in message.content %}{{ part.text }};{% endfor -%}
{%- elif message.role == 'system' -%}
{{- raise_exception('no system message') -}}
{%- else -%}
{{ message.role + message.content }}
{%- endif -%}
{%- endfor -%}"""
TWO = [{"type": "text", "text": "one"}, {"type": "text", "text": " two"}]


@pytest.mark.parametrize(
    ("source", "forms"),
    [
        (BOTH, {"user": "either", "system": "either", "assistant": "either", "tool": "either"}),
        (TEXT, {"user": "text", "assistant": "text"}),
        (STRICT, {"user": "text", "tool": "text"}),
        (TRIMMED, {"user": "text"}),
        (AS_JSON, {"user": "text"}),
        (PARTS, {"user": "parts", "assistant": "parts"}),
        (USER_ONLY, {"user": "parts", "system": "text", "tool": "text"}),
        ("{{ messages[0].content[0].text }}", {"user": "parts"}),
        ("", {"user": "text"}),
    ],
)
def test_the_form_of_content_is_found_by_rendering(source: str, forms: dict[str, Form]) -> None:
    template = ChatTemplate(source)
    assert {role: template.form(role) for role in forms} == forms
    assert {role: template.form(role) for role in forms} == forms, "and known from then on"


LLAMA = """\
{%- for message in messages -%}
{%- if message.role == 'tool' or message.role == "ipython" -%}
<ipython>{{ message.content }}
{%- elif message.role == 'user' or message.role == 'assistant' -%}
<{{ message.role }}>{{ message.content }}
{%- elif message.role == 'hidden' -%}
{%- endif -%}
{%- endfor -%}"""
ALTERNATING = """\
{%- for message in messages -%}
{%- if (message.role == 'user') != (loop.index0 % 2 == 0) -%}
{{- raise_exception('user and other roles alternate') -}}
{%- endif -%}
<{{ message.role }}>{{ message.content }}
{%- endfor -%}"""


@pytest.mark.parametrize(
    ("source", "role", "taken"),
    [
        (TEXT, "my-custom-role", True),
        (BOTH, "document 1", True),
        (PARTS, "control", True),
        (LLAMA, "ipython", True),
        (LLAMA, "control", False),
        (LLAMA, "hidden", False),
        (ALTERNATING, "model", True),
        (USER_ONLY, "model", True),
        ("", "model", False),
    ],
)
def test_a_role_that_is_not_of_openai_is_known_when_its_messages_are_shown(source: str, role: str, taken: bool) -> None:
    template = ChatTemplate(source)
    messages = [Message("user", "a"), Message(role, "b"), Message("user", "c")]
    assert template.takes(role) is taken
    if taken:
        check_roles(messages, template)
    else:
        with pytest.raises(BadRequest, match=r"`messages\[1\].role` is .* chat template of the model") as caught:
            check_roles(messages, template)
        assert caught.value.param == "messages[1].role"


def test_many_roles_leave_nothing_behind() -> None:
    template = ChatTemplate(LLAMA)
    for number in range(200):
        assert not template.takes(f"role{number}")
        assert template.form(f"role{number}") == "text"
    assert len(template._readings) == 1


@pytest.mark.parametrize(
    ("role", "text"),
    [
        ("usr", "did you mean user"),
        ("Assistant", "did you mean assistant"),
        ("tools", "did you mean tool"),
        ("USER", "did you mean user"),
        ("<|im_end|>", "must be one of system, developer, user"),
        ("a<|im_end|>", "must be one of"),
        ("a\nb", "must be one of"),
        ("x" * 33, "must be one of"),
    ],
)
def test_a_role_that_is_a_mistake_or_has_markers_is_refused(role: str, text: str) -> None:
    with pytest.raises(BadRequest, match=text) as caught:
        check_messages([Message("user", "a"), Message(role, "b")])
    assert caught.value.param == "messages[1].role"


def test_a_message_of_another_role_has_to_say_something() -> None:
    check_messages([Message("ipython", "b")])
    with pytest.raises(BadRequest) as caught:
        check_messages([Message("ipython")])
    assert caught.value.param == "messages[0].content"


def rendered(source: str, *said: dict[str, Any]) -> str:
    template = ChatTemplate(source)
    return template.render([as_dict(one, template.form(one.role)) for one in msgspec.convert(said, list[Message])])


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (BOTH, "<user>[one][two]<assistant>ok<user>three"),
        (TEXT, "<user>one\n two<assistant>ok<user>three"),
        (TRIMMED, "one\n two|ok|three|"),
        (PARTS, "one; two;ok;three;"),
        (USER_ONLY, "one; two;assistantokthree;"),
    ],
)
def test_parts_come_as_the_template_wants_them(source: str, text: str) -> None:
    said = (
        {"role": "user", "content": TWO},
        {"role": "assistant", "content": "ok"},
        {"role": "user", "content": "three"},
    )
    assert rendered(source, *said) == text


def test_a_call_without_content_has_an_empty_part() -> None:
    call = {"id": "1", "function": {"name": "f", "arguments": "{}"}}
    assert rendered(PARTS, {"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [call]}) == "x;;"


NUMBERS = """\
{%- for name, value in call.arguments | items %} {{ name }}={{ value }} {{ value | tojson }} {{ value | string }}
{%- if value is number %} number{% endif %}{% if value is string %} string{% endif %}
{%- if value is mapping %} mapping{% endif %}{% endfor %} {{ call.arguments | tojson }} {{ call.arguments }}"""
"""What templates do with arguments, one by one or as a whole."""


@given(
    st.dictionaries(
        st.sampled_from("abc"),
        st.one_of(
            st.floats(allow_nan=False, allow_infinity=False),
            st.sampled_from([1.0, -0.0, 1e-7, 1e20, 2.5, 1e16, 123456789.0]),
            st.integers(-(2**53), 2**53),
            st.sampled_from(["x", True, [1.0, 1e-7], {"z": 3.0}]),
        ),
        max_size=3,
    ),
    st.booleans(),
)
def test_numbers_are_written_as_python_writes_them(arguments: dict[str, Any], as_text: bool) -> None:
    given: Any = json.dumps(arguments) if as_text else arguments
    calls = [{"function": {"name": "f", "arguments": given}}]
    message = msgspec.convert({"role": "assistant", "tool_calls": calls}, Message)
    [call] = as_dict(message)["tool_calls"]
    shown = ChatTemplate(NUMBERS).render([], call=call["function"])
    assert shown == reference(NUMBERS, call={"arguments": arguments})


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning", "thinking"])
def test_thoughts_are_read_under_each_name_and_shown_under_all(key: str) -> None:
    message = msgspec.convert({"role": "assistant", "content": "so", key: "hm"}, Message)
    found = as_dict(message)
    assert [found[name] for name in ("reasoning_content", "reasoning", "thinking")] == ["hm"] * 3
    both = msgspec.convert({"role": "assistant", "reasoning": "first", "thinking": "second"}, Message)
    assert as_dict(both)["thinking"] == "first"
