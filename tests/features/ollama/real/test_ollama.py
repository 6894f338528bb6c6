"""Ollama's API against the real stack: its own client where it is installed, and the calls of Open WebUI."""

import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from dynamod.engine.base import EngineOptions, Spawn
from dynamod.engine.mocker.engine import Mocker
from dynamod.message import tokens

ollama = pytest.importorskip("ollama")

USER = {"role": "user", "content": "hello"}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
TOOL = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


def quick(options: EngineOptions, spawn: Spawn) -> Mocker:
    return Mocker(EngineOptions(options.name, options.path, arguments={"speedup_ratio": 0}), spawn)


@pytest.fixture
async def url(house: Any, serve: Any, words: Any, until: Any) -> str:
    """A server with a model that says its prompt, and one that makes vectors."""
    await house.start()
    await house.worker(words.Seen, tool_call_parser="hermes", reasoning_parser="basic")
    await house.worker(quick, "vectors")
    await until(lambda: len(house.processor.cards) == 2)
    found: str = await serve()
    return found


@pytest.fixture
async def talk() -> AsyncIterator[Any]:
    """`talk(url)`: a client of that server."""
    made = []

    def talk(url: str, **given: Any) -> Any:
        made.append(ollama.AsyncClient(host=url, **given))
        return made[-1]

    yield talk
    for client in made:
        await client.close()


@pytest.fixture
async def client(url: str, talk: Any) -> Any:
    return talk(url)


@pytest.fixture
async def ask(url: str) -> AsyncIterator[Any]:
    """`ask(method, path, body)`: status and JSON, or the lines of a stream."""
    async with aiohttp.ClientSession(url) as session:

        async def ask(method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
            kind = {"Content-Type": "application/json"} if body is not None else {}
            data = json.dumps(body) if body is not None else None
            async with session.request(method, path, data=data, headers={**kind, **headers}) as answer:
                text = await answer.text()
                if answer.content_type == "application/x-ndjson":
                    return answer.status, [json.loads(line) for line in text.split("\n")[:-1]]
                return answer.status, json.loads(text) if text else None

        yield ask


def prompt_of(house: Any) -> str:
    """What the engine has been asked last."""
    ids = tokens.unpack(house.members[0].engine.requests[-1].token_ids)
    found: str = house.processor.model("sample").tokenizer.decode(ids, skip_special=False)
    return found


RAW = {"use_raw_prompt": True}


async def test_a_chat_streamed_and_whole(client: Any) -> None:
    whole = await client.chat("sample", [USER], options={"num_predict": 8})
    assert whole.done
    assert whole.done_reason in ("stop", "length")
    assert whole.total_duration >= whole.prompt_eval_duration > 0
    pieces = [piece async for piece in await client.chat("sample:latest", [USER], stream=True)]
    whole = await client.chat("sample", [USER])
    assert "".join(piece.message.content for piece in pieces) == whole.message.content != ""
    assert [piece.done for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert pieces[-1].eval_count == whole.eval_count > 1
    assert pieces[-1].prompt_eval_count == whole.prompt_eval_count > 1


@pytest.mark.parametrize("stream", [False, True])
async def test_thinking_and_calls(ask: Any, stream: bool) -> None:
    text = f"<think>well</think>{CALL}"
    body = {"model": "sample", "messages": [{"role": "user", "content": text}], "tools": [TOOL], "think": True}
    status, found = await ask("POST", "/api/chat", body | {"nvext": RAW, "stream": stream})
    assert status == 200
    messages = [line["message"] for line in (found if stream else [found])]
    assert "".join(one.get("thinking", "") for one in messages) == "well"
    [call] = [call for one in messages for call in one.get("tool_calls", ())]
    assert call["function"] == {"index": 0, "name": "weather", "arguments": {"city": "Paris"}}
    assert call["id"]


async def test_a_loop_of_calls(client: Any, house: Any) -> None:
    said = [{"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}]
    await client.chat("sample", [USER, *said, {"role": "tool", "content": "sunny", "tool_name": "f"}], tools=[TOOL])
    assert "sunny" in prompt_of(house)


async def test_prompts(client: Any, house: Any) -> None:
    found = await client.generate("sample", "hello there", system="Be short.", options={"num_predict": 3})
    assert found.response
    assert found.done_reason == "length"
    assert found.eval_count == 3
    assert "Be short." in prompt_of(house)
    await client.generate("sample", "just this", raw=True)
    assert prompt_of(house).endswith("just this")
    pieces = [piece async for piece in await client.generate("sample", "one two", raw=True, stream=True)]
    assert "".join(piece.response for piece in pieces)
    assert pieces[-1].done


async def test_a_completion_has_no_limit_of_its_own(ask: Any) -> None:
    text = " ".join(["word"] * 40)
    _, found = await ask("POST", "/api/generate", {"model": "sample", "prompt": text, "raw": True, "stream": False})
    assert found["eval_count"] > 30


async def test_vectors(client: Any, ask: Any, house: Any) -> None:
    found = await client.embed("vectors", ["one", "two", "one"])
    first, second, third = found.embeddings
    assert first == third != second
    assert found.prompt_eval_count > 2
    assert found.total_duration > 0
    assert (await client.embeddings("vectors:latest", "one")).embedding == first
    assert len((await client.embed("vectors", "one")).embeddings) == 1
    assert (await client.embed("vectors", "")).embeddings == []
    status, answer = await ask("POST", "/api/embed", {"model": "vectors", "input": ["a", ""]})
    assert (status, answer) == (400, {"error": "`input[1]` is empty"})


async def test_a_text_longer_than_the_context_is_cut(client: Any, ask: Any, house: Any) -> None:
    length = house.processor.cards["vectors"].context_length
    long = "word " * (2 * length)
    found = await client.embed("vectors", long)
    assert found.prompt_eval_count <= length
    status, answer = await ask("POST", "/api/embed", {"model": "vectors", "input": long, "truncate": False})
    assert status == 400
    assert "input" in answer["error"]


async def test_models(client: Any, ask: Any) -> None:
    found = await client.list()
    assert sorted(model.model for model in found.models) == ["sample", "vectors"]
    assert all(model.size and model.details.family == "llama" and len(model.digest) == 64 for model in found.models)
    running = await client.ps()
    assert sorted(model.model for model in running.models) == ["sample", "vectors"]
    assert all(model.expires_at.year > 2300 for model in running.models)
    shown = await client.show("sample:latest")
    assert {"completion", "tools", "thinking"} <= {*shown.capabilities}
    assert shown.modelinfo["llama.context_length"] == 2048
    assert "embedding" in (await client.show("vectors")).capabilities
    assert shown.template
    version = (await ask("GET", "/api/version"))[1]["version"]
    assert tuple(map(int, version.split("."))) >= (0, 6, 4), "GitHub Copilot asks for that"


async def test_errors_are_texts(client: Any, ask: Any) -> None:
    with pytest.raises(ollama.ResponseError, match="not found") as error:
        await client.chat("nope", [USER])
    assert error.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match="images"):
        await client.chat("sample", [{**USER, "images": ["aGk="]}])
    for name in ("create", "copy", "push"):
        status, answer = await ask("POST", f"/api/{name}", {"model": "x"})
        assert status == 400
        assert "not served" in answer["error"]


async def test_loading_by_hand(client: Any) -> None:
    assert (await client.generate("sample", keep_alive="5m")).done_reason == "load"
    assert (await client.chat("sample", [])).done_reason == "load"
    with pytest.raises(ollama.ResponseError, match="on demand") as error:
        await client.generate("sample", keep_alive=0)
    assert error.value.status_code == 409


async def test_models_are_loaded_and_unloaded_by_their_part(client: Any, house: Any) -> None:
    asked: list[Any] = []

    class Part:
        def states(self) -> dict[str, Any]:
            return {}

        async def load_model(self, model: str, keep_alive: Any = None) -> bool:
            asked.append((model, keep_alive))
            return True

        async def unload_model(self, model: str) -> bool:
            asked.append((model, "unload"))
            return True

    house.processor.parts["toy"] = Part()
    try:
        assert (await client.generate("sample", keep_alive="7m")).done_reason == "load"
        assert (await client.generate("sample", keep_alive=0)).done_reason == "unload"
        assert (await client.generate("sample", keep_alive="0s")).done_reason == "unload"
    finally:
        del house.processor.parts["toy"]
    assert asked == [("sample", "7m"), ("sample", "unload"), ("sample", "unload")]


async def test_pull_and_delete_need_a_setting(client: Any) -> None:
    for ask in (client.pull, client.delete):
        with pytest.raises(ollama.ResponseError, match="ollama_manage_models") as error:
            await ask("org/name")
        assert error.value.status_code == 403


async def test_curl_needs_no_header_and_a_page_does(ask: Any) -> None:
    body = {"model": "sample", "prompt": "x", "stream": False}
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    assert (await ask("POST", "/api/generate", body, **form))[0] == 200
    status, answer = await ask("POST", "/api/generate", body, **form, Origin="https://example.org")
    assert status == 415
    assert "application/json" in answer["error"]


async def test_keys_are_asked_for(house: Any, serve: Any, talk: Any, words: Any, until: Any) -> None:
    await house.start()
    await house.worker(words.Seen)
    await until(lambda: house.processor.cards)
    url = await serve(api_keys="one")
    with pytest.raises(ollama.ResponseError) as error:
        await talk(url).list()
    assert error.value.status_code == 401
    keyed = talk(url, headers={"Authorization": "Bearer one"})
    assert [model.model for model in (await keyed.list()).models] == ["sample"]


async def test_the_api_can_be_off(house: Any, serve: Any, talk: Any, words: Any, until: Any) -> None:
    await house.start()
    await house.worker(words.Seen)
    await until(lambda: house.processor.cards)
    client = talk(await serve(ollama_api=False))
    for ask in (client.list(), client.chat("sample", [USER])):
        with pytest.raises(ollama.ResponseError, match="ollama_api") as error:
            await ask
        assert error.value.status_code == 404


async def test_the_calls_of_open_webui(ask: Any) -> None:
    """Of its router for Ollama: the list, the version, what runs, what a model is, then a chat as a stream."""
    headers = {"Authorization": "Bearer none", "X-OpenWebUI-User-Name": "me"}
    _, tags = await ask("GET", "/api/tags", **headers)
    model = tags["models"][0]["model"]
    assert {"name", "model", "modified_at", "size", "digest", "details"} <= tags["models"][0].keys()
    assert (await ask("GET", "/api/version", **headers))[0] == 200
    assert (await ask("GET", "/api/ps", **headers))[0] == 200
    assert (await ask("POST", "/api/show", {"name": model}, **headers))[0] == 200
    body = {
        "model": model,
        "messages": [{"role": "system", "content": "s"}, {**USER, "images": []}],
        "options": {"num_predict": 4, "temperature": 0.1, "num_ctx": 2048, "stop": []},
        "stream": True,
        "keep_alive": "5m",
        "metadata": {"chat_id": "1"},
        "template": None,
    }
    status, lines = await ask("POST", "/api/chat", body, **headers)
    assert status == 200
    assert lines[-1]["done"]
    assert (await ask("POST", "/api/embed", {"model": "vectors", "input": ["a"], "truncate": True}))[0] == 200
    assert (await ask("POST", "/api/generate", {"model": model, "keep_alive": 0}))[0] == 409
