"""Anthropic's Messages API by real commands, asked as curl asks."""

import contextlib
import http.client
import json
import os
import signal
from typing import Any

from .together import together

KEY = {"Content-Type": "application/json", "x-api-key": "secret", "anthropic-version": "2023-06-01"}
LINE = "x-anthropic-billing-header: cc_version=2; cch=77;"


def begin(url: str, path: str, body: dict[str, Any], **headers: str) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=20)
    connection.request("POST", path, json.dumps({"model": "sample", **body}), {**KEY, **headers})
    return connection


def ask(url: str, path: str, body: dict[str, Any], **headers: str) -> tuple[int, str]:
    with contextlib.closing(begin(url, path, body, **headers)) as connection:
        response = connection.getresponse()
        return response.status, response.read().decode()


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def events(text: str) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines]


@together
def test_messages_of_dynamo_run(machine: Any) -> None:
    words = ("in=http", "out=echo_core", "sample", "--http-port=0", "--api-key=secret")
    command = machine.start("dynamo-run", *words, DYN_TOKEN_ECHO_DELAY_MS="1")
    url = command.ready()
    body = {"messages": user("How are you?"), "system": [{"type": "text", "text": LINE}], "max_tokens": 500}
    answer = json.loads(ask(url, "/v1/messages?beta=true", body)[1])
    (block,) = answer["content"]
    assert "How are you?" in block["text"]
    assert "x-anthropic" not in block["text"]
    assert answer["stop_reason"] == "end_turn"
    counted = json.loads(ask(url, "/v1/messages/count_tokens", {"messages": user("How are you?")})[1])
    assert counted == {"input_tokens": answer["usage"]["input_tokens"]}

    streamed = events(ask(url, "/v1/messages", {**body, "stream": True})[1])
    texts = [event["delta"]["text"] for event in streamed if event["type"] == "content_block_delta"]
    assert "".join(texts) == block["text"]
    assert streamed[-2]["usage"] == answer["usage"]

    status, text = ask(url, "/v1/messages", body, **{"x-api-key": "wrong"})
    assert (status, json.loads(text)["error"]["type"]) == (401, "authentication_error")
    assert json.loads(ask(url, "/v1/messages", {**body, "model": "no"})[1])["type"] == "error"
    command.end()


@together
def test_what_an_operator_may_want_otherwise(machine: Any) -> None:
    words = ("in=http", "out=echo_core", "sample", "--http-port=0", "--strip-anthropic-preamble=false")
    words += (
        "--ignore-unsupported-fields",
        "--enable-per-request-metrics",
        "--reasoning-parser=basic",
        "--reasoning-field-name=reasoning",
    )
    url = machine.start("dynamo-run", *words, DYN_TOKEN_ECHO_DELAY_MS="0").ready()
    body = {"messages": user("Hi"), "system": f"{LINE}\nYou help.", "max_tokens": 500}
    assert LINE in json.loads(ask(url, "/v1/messages", body)[1])["content"][0]["text"]
    status, _ = ask(url, "/v1/chat/completions", {"messages": user("Hi"), "max_tokens": 1, "prediction": {}})
    assert status == 200, "it is left out where the operator wants that"
    assert 'unsupported_fields_total{field="prediction"} 1.0' in machine.ask(url, "/metrics")[1]
    thinking = {"messages": user("<think>Why?</think>Hi"), "nvext": {"use_raw_prompt": True}}
    answer = json.loads(ask(url, "/v1/chat/completions", thinking)[1])
    assert answer["metrics"]["time_to_first_token_ms"] > 0
    message = answer["choices"][0]["message"]
    assert (message["content"], message["reasoning"], "reasoning_content" in message) == ("Hi", "Why?", False)


FORCED = {"tools": [{"type": "function", "function": {"name": "now"}}], "tool_choice": "required", "max_tokens": 9}


@together
def test_flags_and_variables_say_how_calls_reach_clients(machine: Any) -> None:
    """By an engine without grammars, and a model that answers with its prompt: a call that is none."""
    given = {"malformed_tool_calls": "content", "unenforced_tool_choice": "refuse", "stream_tool_arguments": "none"}
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
    variables = {f"DYN_{name.upper()}": value for name, value in given.items()}
    words = ("in=http", "out=echo_core", "sample", "--http-port=0", "--tool-call-parser=hermes")
    broken = '<tool_call>{"name": "now", "arguments": {"a": }}</tool_call>'
    body = {"messages": user(broken), "tools": FORCED["tools"], "max_tokens": 500, "nvext": {"use_raw_prompt": True}}
    for more, settings in ((flags, {}), ((), variables)):
        command = machine.start("dynamo-run", *words, *more, DYN_TOKEN_ECHO_DELAY_MS="0", **settings)
        url = command.ready()
        message = json.loads(ask(url, "/v1/chat/completions", body)[1])["choices"][0]["message"]
        assert not message.get("tool_calls")
        assert '{"name": "now", "arguments": {"a": }}' in message["content"]
        status, text = ask(url, "/v1/chat/completions", {"messages": user("Hi"), **FORCED})
        assert (status, "tool_choice" in text) == (400, True), text
        command.end()


@together
def test_a_message_goes_on_at_another_worker(machine: Any) -> None:
    command = machine.start(
        *("dynamo", "serve", "-f", "configs/agg.yaml", "--Worker.engine=mocker", "--Frontend.port=0"),
        *("--Worker.ServiceArgs.workers=2", "--Worker.engine_args.speedup_ratio=2"),
    )
    url = command.ready()
    machine.until(lambda: [row["state"] for row in machine.ps("Worker")] == ["Ready", "Ready"])
    machine.until(lambda: len(json.loads(machine.ask(url, "/health")[1])["instances"]) == 2)
    body = {"max_tokens": 200, "stream": True}
    with contextlib.ExitStack() as stack:
        asked = [begin(url, "/v1/messages", {**body, "messages": user(f"prompt {n}")}) for n in range(4)]
        streams = [stack.enter_context(contextlib.closing(one)).getresponse() for one in asked]
        begun = [stream.read1().decode() for stream in streams]
        os.kill(machine.ps("Worker")[0]["pid"], signal.SIGKILL)
        for stream, beginning in zip(streams, begun, strict=True):
            found = events(beginning + stream.read().decode())
            assert found[-2]["delta"]["stop_reason"] == "max_tokens"
            assert found[-2]["usage"]["output_tokens"] == 200
            assert found[-1] == {"type": "message_stop"}
    command.tree()
