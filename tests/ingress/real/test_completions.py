"""Completions of several prompts, and their limits, on engines that take tokens and on those that take text."""

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from dynamod import sample
from dynamod.engine.base import EngineOptions

from .asking import post

PATH = "/v1/completions"


@pytest.mark.parametrize("model", ["sample", "text"])
@pytest.mark.parametrize("samples", [1, 2])
@pytest.mark.parametrize("echo", [False, True])
def test_several_prompts(real: Any, model: str, samples: int, echo: bool) -> None:
    prompts = ["Hello, world", "one", "What is it?"]
    body = {"model": model, "prompt": prompts, "n": samples, "max_tokens": 50, "echo": echo}
    status, answer = post(real.port, PATH, **body)
    assert status == 200, answer
    texts = {choice["index"]: choice["text"] for choice in answer["choices"]}
    expected = [prompt + prompt if echo else prompt for prompt in prompts for _ in range(samples)]
    assert [texts[index] for index in range(len(expected))] == expected
    singles = [post(real.port, PATH, **(body | {"prompt": prompt, "n": 1}))[1]["usage"] for prompt in prompts]
    assert answer["usage"]["prompt_tokens"] == sum(one["prompt_tokens"] for one in singles)
    assert answer["usage"]["completion_tokens"] == samples * sum(one["completion_tokens"] for one in singles)


def test_ids_are_for_engines_that_know_them(real: Any) -> None:
    status, answer = post(real.port, PATH, model="sample", prompt=[[5, 6], [7]], max_tokens=5)
    assert (status, len(answer["choices"])) == (200, 2)
    ids = list(real.house.backend.model("sample").tokenizer.encode("Hello, world"))
    _, answer = post(real.port, PATH, model="sample", prompt=ids, echo=True)
    assert answer["choices"][0]["text"] == 2 * "Hello, world", "its prompt as text, and the same from the engine"
    status, answer = post(real.port, PATH, model="text", prompt=[[5, 6], [7]], max_tokens=5)
    assert (status, answer["error"]["param"]) == (400, "prompt")


@pytest.mark.parametrize("model", ["sample", "text"])
def test_without_a_limit_there_is_the_operators(real: Any, model: str) -> None:
    prompt = "What is it worth to you to send this request somewhere else than to where it is known?"
    _, answer = post(real.port, PATH, model=model, prompt=prompt)
    assert (answer["usage"]["completion_tokens"], answer["choices"][0]["finish_reason"]) == (16, "length")
    _, answer = post(real.port, PATH, model=model, prompt=prompt, max_tokens=17)
    assert answer["usage"]["completion_tokens"] == 17
    _, answer = post(real.port, PATH, model="sample", prompt=prompt, min_tokens=20)
    assert answer["usage"]["completion_tokens"] == 20, "it is no less than what has to come"


async def test_the_limit_is_the_operators_choice(house: Any, serve: Any, until: Any, words: Any) -> None:
    import aiohttp

    await house.start()
    text = await house.worker(words.Manual, "text")
    await house.worker(words.Seen)
    await until(lambda: len(house.processor.cards) == 2)
    prompts = ["a", "b"]
    async with aiohttp.ClientSession() as session:
        for limit, told in ((0, None), (5, 5)):
            url = await serve(completion_max_tokens=limit)
            text.engine.requests.clear()
            text.engine.replies.clear()
            post = session.post(url + PATH, json={"model": "text", "prompt": prompts, "user": "me"})
            async with asyncio.TaskGroup() as tasks:
                waiting = tasks.create_task(post.__aenter__())
                await until(lambda: len(text.engine.replies) == 2)
                for reply in text.engine.replies:
                    reply.text("x", 1, "stop", 1)
            assert waiting.result().status == 200
            bodies = [json.loads(request.body) for request in text.engine.requests]
            expected = [{"model": "text", "prompt": prompt, "user": "me"} for prompt in prompts]
            assert bodies == [body | ({"max_tokens": told} if told else {}) for body in expected]
            assert [request.max_tokens for request in text.engine.requests] == [told, told]
        chat = {"model": "sample", "messages": [{"role": "user", "content": "word " * 50}]}
        async with session.post(url + "/v1/chat/completions", json=chat) as answer:
            assert (await answer.json())["usage"]["completion_tokens"] > 50, "chats have no such limit"


async def test_a_suffix_where_the_model_fills_in(
    house: Any, serve: Any, until: Any, words: Any, tmp_path: Path
) -> None:
    """echo_core says the prompt again, whose markers are special tokens."""
    import aiohttp

    folder = tmp_path / "coder"
    shutil.copytree(Path(sample.__file__).parent / "hf", folder)
    description = json.loads((folder / "tokenizer.json").read_text())
    form = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    for index, name in enumerate(("prefix", "suffix", "middle"), 1024):
        description["added_tokens"].append({"id": index, "content": f"<|fim_{name}|>", **form})
    (folder / "tokenizer.json").write_text(json.dumps(description))
    await house.start()
    await house.worker(lambda options, spawn: words.EchoCore(EngineOptions("coder", folder), spawn), "coder")
    await house.worker(words.EchoCore, "sample")
    await until(lambda: len(house.processor.cards) == 2)
    body = {"prompt": ["def f(", "x ="], "suffix": "): pass", "max_tokens": 50}
    strict, lax = await serve(), await serve(ignore_unsupported_fields=True)
    async with aiohttp.ClientSession() as session:

        async def ask(url: str, model: str) -> tuple[int, Any]:
            async with session.post(url + PATH, json=body | {"model": model}) as answer:
                return answer.status, await answer.json()

        for url in (strict, lax):
            status, answer = await ask(url, "coder")
            prompts = [f"<|fim_prefix|>{text}<|fim_suffix|>): pass<|fim_middle|>" for text in body["prompt"]]
            assert (status, [one["text"] for one in answer["choices"]]) == (200, prompts)
        status, answer = await ask(strict, "sample")
        assert (status, answer["error"]["param"], answer["error"]["code"]) == (400, "suffix", "unsupported_parameter")
        status, answer = await ask(lax, "sample")
        assert (status, [one["text"] for one in answer["choices"]]) == (200, ["def f(", "x ="])
        async with session.get(f"{lax}/metrics") as found:
            assert 'dynamo_frontend_unsupported_fields_total{field="suffix"} 1.0' in await found.text()
