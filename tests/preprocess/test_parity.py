"""Any conversation through each kind of template: the text is what jinja2 makes of it, and both refuse the same."""

import json
from typing import Any

import jinja2
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dynamod.message.errors import BadRequest
from dynamod.message.openai import Message
from dynamod.preprocess.conversation import as_dict
from dynamod.preprocess.template import ChatTemplate, Float

from .conftest import CHATML
from .test_contents import BOTH, NUMBERS, PARTS, STRICT, USER_ONLY
from .test_template import LLAMA3, MISTRAL, NOW, PARAMETERS, QWEN, TOOLS, reference

CALLS = """\
{%- for message in messages %}{% for call in message.tool_calls or [] %}{% set call = call.function %}
<{{ call.name }}>"""
TEMPLATES = {
    "chatml": CHATML,
    "llama3": LLAMA3,
    "mistral": MISTRAL,
    "qwen": QWEN,
    "parameters": PARAMETERS,
    "both": BOTH,
    "parts": PARTS,
    "strict": STRICT,
    "user only": USER_ONLY,
    "calls": f"{CALLS}{NUMBERS}{{% endfor %}}{{{{ message.thinking or '-' }}}}{{% endfor %}}",
}

TEXT = st.text(st.sampled_from("ab <>&'\"\\\n{}%é😀</think>"), max_size=12)
VALUE = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("xyz"), inner, max_size=2),
    max_leaves=4,
)
ARGUMENTS = st.dictionaries(st.sampled_from(["city", "n"]), VALUE, max_size=2)
CALL = ARGUMENTS.flatmap(
    lambda arguments: st.sampled_from([arguments, json.dumps(arguments)]).map(
        lambda given: {"id": "c1", "function": {"name": "get", "arguments": given}}
    )
)
PARTS_OF_TEXT = st.lists(TEXT.map(lambda text: {"type": "text", "text": text}), min_size=1, max_size=2)
MESSAGE = st.one_of(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user"]), "content": TEXT | PARTS_OF_TEXT}),
    st.fixed_dictionaries({"role": st.just("assistant"), "content": st.none() | TEXT}, optional={"reasoning": TEXT}),
    st.fixed_dictionaries({"role": st.just("assistant"), "tool_calls": st.lists(CALL, min_size=1, max_size=2)}),
    st.fixed_dictionaries({"role": st.just("tool"), "content": TEXT, "tool_call_id": st.just("c1")}),
)


def plain(value: Any) -> Any:
    """With Python's own floats."""
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [plain(one) for one in value]
    return value.value if isinstance(value, Float) else value


@pytest.mark.parametrize("name", TEMPLATES)
@settings(suppress_health_check=[HealthCheck.too_slow])
@given(said=st.lists(MESSAGE, min_size=1, max_size=4), tools=st.sampled_from([None, TOOLS]), ask=st.booleans())
def test_any_conversation(name: str, said: list[dict[str, Any]], tools: Any, ask: bool) -> None:
    source = TEMPLATES[name]
    template = ChatTemplate(source, "<s>", "</s>", now=lambda: NOW)
    messages = [as_dict(one, template.form(one.role)) for one in msgspec.convert(said, list[Message])]
    context = {"messages": plain(messages), "tools": tools, "add_generation_prompt": ask}
    try:
        expected = reference(source, bos_token="<s>", eos_token="</s>", **context)
    except (jinja2.TemplateError, TypeError):
        with pytest.raises(BadRequest):
            template.render(messages, tools, ask)
        return
    assert template.render(messages, tools, ask) == expected
