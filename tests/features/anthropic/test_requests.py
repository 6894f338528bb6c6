"""What requests of the Messages API mean as chat requests."""

from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dynamod import sample
from dynamod.features.anthropic.endpoints import MessageAnswer
from dynamod.features.anthropic.messages import MessagesRequest
from dynamod.features.anthropic.translate import check, to_chat
from dynamod.graph.typed import validate
from dynamod.http.settings import FrontendSettings, from_environment
from dynamod.ingress.api.translated import as_body, rendered, without_late_system
from dynamod.message.errors import BadRequest
from dynamod.message.openai import ChatRequest, Message, Part
from dynamod.preprocess.card import read_card
from dynamod.preprocess.conversation import check_messages
from dynamod.preprocess.model import Model
from dynamod.preprocess.parse import Parser
from dynamod.preprocess.template import ChatTemplate

USER = {"role": "user", "content": "Hi"}


def request_of(**fields: Any) -> MessagesRequest:
    found = msgspec.convert({"max_tokens": 9, "messages": [USER], **fields}, MessagesRequest)
    check(found)
    return found


def chat_of(strip: bool = True, **fields: Any) -> ChatRequest:
    return to_chat(request_of(**fields), strip)


def said(chat: ChatRequest) -> list[tuple[str, Any]]:
    """Roles and contents."""

    def texts(content: Any) -> Any:
        return [part.text for part in content] if isinstance(content, list) else content

    return [(message.role, texts(message.content)) for message in chat.messages]


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


@pytest.mark.parametrize(("text", "strip"), [("0", False), ("true", True)])
def test_the_environment_says_whether_the_preamble_stays(text: str, strip: bool) -> None:
    found = validate(FrontendSettings, from_environment({"DYN_STRIP_ANTHROPIC_PREAMBLE": text}), "Frontend")
    assert found.strip_anthropic_preamble is strip


def test_a_whole_conversation() -> None:
    call = {"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1.0}}
    turns = [
        {"role": "user", "content": [text("1"), text("2")]},
        {
            "role": "assistant",
            "content": [{"type": "thinking", "thinking": "t", "signature": "s"}, text("3"), call, {**call, "id": "b"}],
        },
        {
            "role": "user",
            "content": [
                text("4"),
                {"type": "tool_result", "tool_use_id": "a", "content": "5"},
                {"type": "tool_result", "tool_use_id": "b", "content": [text("6")], "is_error": True},
            ],
        },
        {"role": "user", "content": "7"},
        {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}, text("8")]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "is_error": True}]},
    ]
    chat = chat_of(messages=turns, system=[text("s1"), text("s2")])
    assert said(chat) == [
        ("system", ["s1", "s2"]),
        ("user", ["1", "2"]),
        ("assistant", "3"),
        ("tool", "5"),
        ("tool", "Error: 6"),
        ("user", ["4", "7"]),
        ("assistant", "8"),
        ("tool", "Error"),
    ]
    answer, *results = chat.messages[2:5]
    assert answer.reasoning_content == "t"
    assert [(one.id, one.function.arguments) for one in answer.tool_calls or ()] == [
        ("a", '{"x":1.0}'),
        ("b", '{"x":1.0}'),
    ]
    assert [(one.tool_call_id, one.name) for one in results] == [("a", "f"), ("b", "f")]
    assert chat.messages[-1].name is None
    assert chat.continue_final_message is None


def test_fields() -> None:
    tool = {"name": "f", "description": "d", "input_schema": {"type": "object"}}
    chat = chat_of(
        model="m",
        temperature=0.5,
        top_p=0.9,
        top_k=4,
        stop_sequences=["a"],
        stream=True,
        metadata={"user_id": "me"},
        tools=[tool],
        tool_choice={"type": "tool", "name": "f", "disable_parallel_tool_use": True},
        thinking={"type": "enabled", "budget_tokens": 2000},
        output_config={"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}},
        prompt_cache_key="k",
        nvext={"top_k": 3},
    )
    assert (chat.model, chat.max_tokens, chat.temperature, chat.top_p, chat.top_k) == ("m", 9, 0.5, 0.9, 4)
    assert (chat.stop, chat.stream, chat.user, chat.metadata) == (["a"], True, "me", None)
    function = {"name": "f", "description": "d", "parameters": {"type": "object"}}
    assert chat.tools == [{"type": "function", "function": function}]
    assert chat.tool_choice == {"type": "function", "function": {"name": "f"}}
    assert chat.parallel_tool_calls is False
    assert chat.chat_template_kwargs == {"enable_thinking": True, "thinking": True, "truncate_history_thinking": False}
    assert (chat.reasoning_effort, chat.constraint) == ("low", "response_format")
    assert (chat.prompt_cache_key, chat.nvext.top_k if chat.nvext else None) == ("k", 3)
    chat = chat_of(thinking={"type": "disabled"}, tools=[tool], tool_choice={"type": "any"})
    assert chat.chat_template_kwargs == {"enable_thinking": False, "thinking": False}
    assert (chat.tool_choice, chat.parallel_tool_calls) == ("required", None)
    assert chat_of().chat_template_kwargs is None


LINE = "x-anthropic-billing-header: cc_version=1; cch=abc;"


@pytest.mark.parametrize(
    ("system", "expected"),
    [
        (LINE, None),
        (f"{LINE}\nYou help.", "You help."),
        (f"{LINE.title()}\n\nYou help.\n{LINE}", f"You help.\n{LINE}"),
        ([text(LINE), text("You help.")], "You help."),
        ([text(f"{LINE}\nYou"), text("help.")], ["You", "help."]),
        (f"You help.\n{LINE}", f"You help.\n{LINE}"),
        ("x-anthropic: is a word", "x-anthropic: is a word"),
    ],
)
def test_the_preamble_of_agents(system: Any, expected: Any) -> None:
    found = dict(said(chat_of(system=system)))
    assert found.get("system") == expected
    kept = dict(said(chat_of(strip=False, system=system)))["system"]
    assert kept == (system if isinstance(system, str) else [block["text"] for block in system])


def test_how_the_answer_begins() -> None:
    begun = chat_of(messages=[USER, {"role": "assistant", "content": [text("The")]}])
    assert (begun.continue_final_message, begun.add_generation_prompt, begun.continues_prompt) == (True, False, True)
    for content in ("", [], [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]):
        chat = chat_of(messages=[USER, {"role": "assistant", "content": content}])
        assert (chat.continue_final_message, chat.continues_prompt) == (None, False)


def test_system_messages_in_mid_conversation() -> None:
    system = {"role": "system", "content": [text("s")]}
    chat = chat_of(messages=[system, USER, system, {"role": "assistant", "content": "A"}, system], system="first")
    assert said(chat) == [
        ("system", ["first", "s"]),
        ("user", "Hi"),
        ("system", "s"),
        ("assistant", "A"),
        ("system", "s"),
    ]
    softer = without_late_system(chat.messages)
    assert softer is not None
    assert said(msgspec.structs.replace(chat, messages=softer))[1:] == [
        ("user", ["Hi", "s"]),
        ("assistant", "A"),
        ("user", "s"),
    ]
    assert without_late_system([Message("system", "s"), Message("user", [Part("text", "x")])]) is None
    assert said(chat_of(messages=[{"role": "system", "content": []}])) == [("user", "")]


STRICT = """{% for one in messages %}
{% if not loop.first and (one.role == 'system' or one.role == messages[loop.index0 - 1].role) %}
{{ raise_exception('not ' + one.role) }}
{% endif %}
{{ one.role }}: {{ one.content }}
{% endfor %}"""


def test_a_template_that_refuses_system_messages_in_mid_conversation() -> None:
    card = read_card(sample.path("sample"), name="m")
    model = Model(card, Model.load(card).tokenizer, {"default": ChatTemplate(STRICT)})
    system = {"role": "system", "content": "s"}
    chat = chat_of(messages=[USER, {"role": "assistant", "content": "A"}, USER, system], system="first")
    (prepared,) = MessageAnswer().prompts(model, chat)
    assert prepared.prompt.split("\n")[:5] == ["system: first", "user: Hi", "assistant: A", "user: Hi", "s"]
    assert rendered(model, chat) == prepared.prompt
    with pytest.raises(BadRequest, match="not assistant"):
        rendered(model, chat_of(messages=[{"role": "assistant", "content": "A"}] * 2 + [USER]))


IMAGE = {"type": "image", "source": {}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": [{"role": "user", "content": [text("a"), IMAGE]}]}, "messages[0].content[1].type"),
        ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "messages[0].content[0].type"),
        (
            {"messages": [USER, {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": [IMAGE]}]}]},
            "messages[1].content[0].content[0].type",
        ),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
        ({"thread": {"type": "create"}}, "thread"),
        ({"thread": {"type": "continue", "previous_message_id": "msg_1"}}, "thread"),
        ({"compaction": {"type": "summary"}}, "compaction"),
    ],
)  # fmt: skip
def test_what_is_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as raised:
        request_of(**fields)
    assert raised.value.param == param


WORDS = st.text(st.characters(codec="utf-8"), max_size=6)
TEXT = WORDS.map(text)
CALL = st.fixed_dictionaries(
    {
        "type": st.just("tool_use"),
        "id": st.sampled_from("abc"),
        "name": st.sampled_from("fg"),
        "input": st.dictionaries(WORDS, st.integers(-9, 9) | st.none() | WORDS, max_size=2),
    }
)
RESULT = st.fixed_dictionaries(
    {"type": st.just("tool_result"), "tool_use_id": st.sampled_from("abc")},
    optional={"content": WORDS | st.lists(TEXT, max_size=2), "is_error": st.booleans() | st.none()},
)
THOUGHT = WORDS.map(lambda words: {"type": "thinking", "thinking": words, "signature": "s"})
TURN = st.one_of(
    st.builds(lambda content: {"role": "user", "content": content}, WORDS | st.lists(TEXT | RESULT, max_size=4)),
    st.builds(
        lambda content: {"role": "assistant", "content": content}, WORDS | st.lists(TEXT | CALL | THOUGHT, max_size=4)
    ),
    st.builds(lambda content: {"role": "system", "content": content}, WORDS | st.lists(TEXT, max_size=2)),
)


@settings(derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.lists(TURN, min_size=1, max_size=6), st.none() | WORDS | st.lists(TEXT, max_size=3))
def test_any_conversation(turns: list[Any], system: Any) -> None:
    """Nothing of it is lost, the chat is in order, and text engines read the same chat in its body."""
    chat = chat_of(False, messages=turns, system=system)
    check_messages(chat.messages)
    assert all(
        not (one.role == other.role == "user") for one, other in zip(chat.messages, chat.messages[1:], strict=False)
    )

    def of(turn: dict[str, Any], kind: str) -> list[Any]:
        content = turn["content"]
        if isinstance(content, str):
            return [content] if kind == "text" else []
        return [block for block in content if block["type"] == kind]

    results = [block["tool_use_id"] for turn in turns for block in of(turn, "tool_result")]
    assert [message.tool_call_id for message in chat.messages if message.role == "tool"] == results
    calls = [(block["id"], block["input"]) for turn in turns for block in of(turn, "tool_use")]
    assert [
        (call.id, msgspec.json.decode(call.function.arguments))
        for message in chat.messages
        for call in message.tool_calls or ()
    ] == calls
    for role in ("user", "assistant"):
        wanted = [
            one if isinstance(one, str) else one["text"]
            for turn in turns
            if turn["role"] == role
            for one in of(turn, "text")
        ]
        assert "".join(flat(chat, role)) == "".join(wanted)
    assert Parser(ChatRequest).parse(as_body(chat)) == (chat, 0)


def flat(chat: ChatRequest, role: str) -> list[str]:
    contents = [content for one, content in said(chat) if one == role and content is not None]
    return [words for content in contents for words in ([content] if isinstance(content, str) else content)]
