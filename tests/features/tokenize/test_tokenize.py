"""/tokenize and /detokenize: vLLM's forms, over HTTP, with the sample's tokenizer."""

import asyncio
import http.client
import json
from typing import Any

import aiohttp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dynamod.features.tokenize import detokenize, tokenize
from dynamod.message.discovery import ModelCard

USER = [{"role": "user", "content": "hi"}]


@pytest.fixture
async def post(server):
    async with aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as session:

        async def request(path: str, body: Any, **headers: str):
            async with session.post(path, json=body, headers=headers) as answer:
                return answer.status, await answer.json()

        yield request


async def test_a_prompt(post, backend) -> None:
    tokenizer = backend.model("org/model").tokenizer
    ids = tokenizer.encode("Hello wörld")
    status, body = await post("/tokenize", {"model": "org/model", "prompt": "Hello wörld"})
    assert (status, body) == (200, {"count": len(ids), "max_model_len": 4096, "tokens": ids, "token_strs": None})
    status, body = await post("/tokenize", {"prompt": "Hello wörld", "return_token_strs": True})
    assert body["token_strs"] == [tokenizer.token(index) for index in ids]
    assert body["token_strs"][0] == "Hello"
    status, body = await post("/tokenize", {"prompt": ""})
    assert (status, body["count"], body["tokens"]) == (200, 0, [])


async def test_special_tokens_of_a_prompt(post, backend, monkeypatch) -> None:
    asked = []
    tokenizer = backend.model("org/model").tokenizer
    monkeypatch.setattr(tokenizer, "encode", lambda text, special: asked.append(special) or [1])
    for fields in ({"prompt": "x"}, {"messages": USER}):
        for said in ({}, {"add_special_tokens": True}, {"add_special_tokens": False}):
            assert (await post("/tokenize", fields | said))[0] == 200
    assert asked == [True, True, False, False, True, False]


async def test_a_conversation_is_what_a_chat_would_see(post, backend) -> None:
    model = backend.model("org/model")
    status, body = await post("/tokenize", {"messages": USER})
    assert status == 200
    whole = model.tokenizer.decode(body["tokens"], skip_special=False)
    _, shorter = await post("/tokenize", {"messages": USER, "add_generation_prompt": False})
    assert whole.startswith(model.tokenizer.decode(shorter["tokens"], skip_special=False))
    assert shorter["count"] < body["count"]
    last = [*USER, {"role": "assistant", "content": "Once upon"}]
    _, continued = await post("/tokenize", {"messages": last, "continue_final_message": True})
    assert model.tokenizer.decode(continued["tokens"], skip_special=False).endswith("Once upon")


async def test_ids_become_text_again(post, backend) -> None:
    ids = backend.model("org/model").tokenizer.encode("Once <|im_end|> upon")
    assert await post("/detokenize", {"model": "org/model", "tokens": ids}) == (
        200,
        {"prompt": "Once <|im_end|> upon"},
    )
    assert await post("/detokenize", {"tokens": []}) == (200, {"prompt": ""})


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/tokenize", {}, 400, "prompt"),
        ("/tokenize", {"prompt": None, "messages": None}, 400, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": USER}, 400, "messages"),
        ("/tokenize", {"prompt": ["x"]}, 400, "prompt"),
        ("/tokenize", {"messages": []}, 400, "messages"),
        ("/tokenize", {"messages": [{"role": "user"}]}, 400, "messages[0].content"),
        ("/tokenize", {"messages": USER, "tools": [{"type": "x"}]}, 400, "tools[0]"),
        ("/tokenize", {"messages": USER, "tools": [{"type": "custom", "custom": {}}]}, 400, "tools[0].type"),
        ("/tokenize", {"messages": USER, "chat_template": "x"}, 400, "chat_template"),
        ("/tokenize", {"messages": USER, "chat_template_kwargs": {"messages": []}}, 400, "chat_template_kwargs"),
        ("/tokenize", {"model": "other", "prompt": "x"}, 404, "model"),
        ("/detokenize", {}, 400, "tokens"),
        ("/detokenize", {"tokens": "x"}, 400, "tokens"),
        ("/detokenize", {"tokens": [1, -1]}, 400, "tokens"),
        ("/detokenize", {"tokens": [1, 1024]}, 400, "tokens"),
        ("/detokenize", {"tokens": [2**40]}, 400, "tokens"),
        ("/detokenize", {"tokens": [1.5]}, 400, "tokens[0]"),
        ("/detokenize", {"model": "other", "tokens": [1]}, 404, "model"),
    ],
)
async def test_a_wrong_field_is_named(post, path, body, status, param) -> None:
    got, answer = await post(path, body)
    assert (got, answer["error"]["param"]) == (status, param)
    assert param.split("[")[0].split(".")[0] in answer["error"]["message"]


@pytest.mark.parametrize(("path", "fields"), [("/tokenize", {"prompt": "x"}), ("/detokenize", {"tokens": [1]})])
async def test_a_text_engine_has_no_tokenizer_here(post, backend, path, fields) -> None:
    backend.cards["t"] = ModelCard(name="t", kind="text")
    status, body = await post(path, {"model": "t", **fields})
    assert (status, body["error"]["param"]) == (400, "model")
    assert "no tokenizer" in body["error"]["message"]


@pytest.mark.parametrize(("path", "fields"), [("/tokenize", {"prompt": "x"}), ("/detokenize", {"tokens": [1]})])
async def test_keys_guard_them(serve, connect, path, fields) -> None:
    server = await serve(api_keys="good")
    for headers, expected in (({}, 401), ({"authorization": "Bearer good"}, 200)):
        client = await connect(server)
        client.post(path, json.dumps(fields).encode(), **headers)
        assert (await client.head())[0] == expected


async def test_much_work_is_done_in_a_thread(post, backend, monkeypatch) -> None:
    threads = []
    to_thread = asyncio.to_thread

    async def counted(work: Any, *arguments: Any, **words: Any) -> Any:
        threads.append(work)
        return await to_thread(work, *arguments, **words)

    monkeypatch.setattr(tokenize.asyncio, "to_thread", counted)
    text = "Once upon a time " * 20_000
    _, body = await post("/tokenize", {"prompt": text})
    assert len(threads) == 1
    assert body["count"] > detokenize._THREAD_AT
    assert (await post("/detokenize", {"tokens": body["tokens"]}))[1] == {"prompt": text}
    assert len(threads) == 2
    await post("/detokenize", {"tokens": body["tokens"][:100]})
    await post("/tokenize", {"prompt": text[:100]})
    assert len(threads) == 2


async def test_they_are_not_counted_as_generation(post, server, caplog) -> None:
    with caplog.at_level("INFO", "dynamod.frontend"):
        assert (await post("/tokenize", {"prompt": "x"}))[0] == 200
    assert server.metrics.models == {}
    assert "path=/tokenize status=200 model=org/model" in caplog.text


@settings(suppress_health_check=list(HealthCheck))
@given(st.text(max_size=40) | st.text("ab <|im_end>\n", max_size=20))
def test_text_comes_back_as_it_was(threaded, text) -> None:
    host, port, _ = threaded
    connection = http.client.HTTPConnection(host, port, timeout=5)
    try:
        ids = call(connection, "/tokenize", {"prompt": text, "add_special_tokens": False})
        assert ids["count"] == len(ids["tokens"])
        assert call(connection, "/detokenize", {"tokens": ids["tokens"]}) == {"prompt": text}
    finally:
        connection.close()


def call(connection: http.client.HTTPConnection, path: str, body: dict[str, Any]) -> Any:
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    found = json.loads(answer.read())
    assert answer.status == 200, found
    return found


@pytest.mark.parametrize("field", ["prompt", "messages"])
async def test_a_text_of_which_the_ids_would_be_too_many(server, connect, field) -> None:
    text = "a " * 4_000_001
    client = await connect(server)
    client.post(
        "/tokenize", json.dumps({field: text if field == "prompt" else [{"role": "user", "content": text}]}).encode()
    )
    status, headers = await client.head()
    error = json.loads(await client.body(headers))["error"]
    assert (status, error["code"], error["param"]) == (413, "request_too_large", field)
