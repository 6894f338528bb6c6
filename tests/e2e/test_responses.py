"""OpenAI's Responses API by a real command, asked as curl asks."""

import json
from typing import Any

from .together import together


@together
def test_responses_of_dynamo_run(machine: Any) -> None:
    words = ("in=http", "out=echo_core", "sample", "--http-port=0")
    command = machine.start("dynamo-run", *words, DYN_TOKEN_ECHO_DELAY_MS="0")
    url = command.ready()

    def ask(path: str, **body: Any) -> dict[str, Any]:
        status, text = machine.ask(url, path, {"model": "sample", **body} if body else None)
        assert status == 200, text
        found: dict[str, Any] = json.loads(text)
        return found

    first = ask("/v1/responses", input="How are you?", instructions="Be short.")
    (item,) = first["output"]
    assert "Be short." in item["content"][0]["text"]
    assert ask(f"/v1/responses/{first['id']}") == first
    by_id = ask("/v1/responses", input="And now?", previous_response_id=first["id"])
    user, next_ = ({"role": "user", "content": text} for text in ("How are you?", "And now?"))
    by_items = ask("/v1/responses", input=[user, item, next_])
    assert by_id["usage"]["input_tokens"] == by_items["usage"]["input_tokens"] > first["usage"]["input_tokens"]

    status, text = machine.ask(url, "/v1/responses", {"model": "sample", "input": "Hi", "stream": True})
    events = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]
    assert status == 200
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    pieces = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    assert "".join(pieces) == events[-1]["response"]["output"][0]["content"][0]["text"]
    status, text = machine.ask(url, "/v1/responses", {"model": "sample", "input": "Hi", "tools": [{"type": "x"}]})
    assert (status, json.loads(text)["error"]["param"]) == (400, "tools[0].type")
    command.end()


def test_the_folder_as_a_flag(machine: Any) -> None:
    """It is relative to where the command runs. What stands in it survives the frontend."""
    words = ("in=http", "out=echo_full", "--model-name", "echo", "--http-port", 0, "--responses-dir", "kept")
    first = machine.start("dynamo-run", *words)
    status, text = machine.ask(first.ready(), "/v1/responses", {"model": "echo", "input": "Hi"})
    assert status == 200, text
    kept = json.loads(text)
    assert (machine.folder / "kept/responses.sqlite").exists()
    first.end()
    second = machine.start("dynamo-run", *words)
    status, text = machine.ask(second.ready(), f"/v1/responses/{kept['id']}")
    assert (status, json.loads(text)) == (200, kept)
    second.end()
    (machine.folder / "kept").chmod(0o755)
    wrong = machine.run("dynamo-run", *words)
    assert "responses_dir: others may use" in wrong.err
    assert wrong.code
    other = ("in=dyn://a.b.c", "out=echo_full", "--responses-dir", "kept")
    assert "--responses-dir" in machine.run("dynamo-run", *other).mistake()
