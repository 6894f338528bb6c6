"""A client that scores prompts over HTTP, in the form in which lm-evaluation-harness asks."""

import json
from typing import Any

import pytest

TEXTS = ["The capital of France is Paris.", "The capital of Spain is Madrid, and a 😀 too."]


def best_and(token: str, top: dict[str, float]) -> bool:
    """Whether these are the best token and the one that stands there, as OpenAI and vLLM have it with `logprobs: 1`."""
    return token in top and len(top) == (1 if token == max(top, key=top.__getitem__) else 2)


def score(machine: Any, url: str) -> None:
    """Prompts by text and ids, streamed and not, with `echo` and with vLLM's field; what is refused."""

    def ask(path: str, **body: Any) -> Any:
        status, text = machine.ask(url, path, {"model": "sample", **body})
        assert status == 200, text
        return json.loads(text)

    ids = [ask("/tokenize", prompt=text)["tokens"] for text in TEXTS]
    form = {"prompt": ids, "temperature": 0, "logprobs": 1, "seed": 1234, "echo": True}
    whole = ask("/v1/completions", max_tokens=1, **form)
    prompts_alone = ask("/v1/completions", max_tokens=0, **form)
    for choice, alone, sent, text in zip(whole["choices"], prompts_alone["choices"], ids, TEXTS, strict=True):
        found = choice["logprobs"]
        assert len(found["tokens"]) == len(found["token_logprobs"]) == len(found["top_logprobs"]) == len(sent) + 1
        assert (found["token_logprobs"][0], found["top_logprobs"][0]) == (None, None)
        assert all(value <= 0 for value in found["token_logprobs"][1:])
        assert all(
            best_and(token, top) for token, top in zip(found["tokens"][1:], found["top_logprobs"][1:], strict=True)
        )
        assert choice["text"].startswith(text)
        assert (alone["text"], alone["finish_reason"]) == (text, "length")
        assert len(alone["logprobs"]["tokens"]) == len(sent)
        assert alone["logprobs"]["token_logprobs"][1:] == pytest.approx(found["token_logprobs"][1:-1], abs=1e-3)
    assert whole["usage"]["completion_tokens"] == len(ids)
    assert prompts_alone["usage"]["completion_tokens"] == 0
    assert prompts_alone["usage"]["prompt_tokens"] == sum(map(len, ids))

    # What the harness makes of it: the sum over a continuation, and whether each token is the likeliest one.
    context, known = len(ask("/tokenize", prompt="The capital of France is")["tokens"]), whole["choices"][0]["logprobs"]
    pairs = zip(known["tokens"][context:-1], known["top_logprobs"][context:-1], strict=True)
    assert all(token == max(top, key=top.get) for token, top in pairs), "the model knows this one"
    assert sum(known["token_logprobs"][context:-1]) > -2

    streamed = machine.ask(url, "/v1/completions", {"model": "sample", "stream": True, "max_tokens": 0, **form})[1]
    events = [json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: {")]
    for index, choice in enumerate(prompts_alone["choices"]):
        parts = [one for event in events for one in event["choices"] if one["index"] == index]
        assert "".join(part["text"] for part in parts) == choice["text"]
        assert [value for part in parts if part["logprobs"] for value in part["logprobs"]["token_logprobs"]][
            1:
        ] == pytest.approx(choice["logprobs"]["token_logprobs"][1:], abs=1e-3)

    by_text = ask("/v1/completions", max_tokens=1, **form | {"prompt": TEXTS})
    assert [one["text"] for one in by_text["choices"]] == [one["text"] for one in whole["choices"]]
    answered = ask("/v1/completions", prompt=ids[0], echo=True, max_tokens=2)
    assert answered["choices"][0]["text"].startswith(TEXTS[0])
    for wrong, field in (({"max_tokens": 0}, "max_tokens"), ({"max_tokens": -1, "echo": True}, "max_tokens")):
        status, text = machine.ask(url, "/v1/completions", {"model": "sample", "prompt": "x", **wrong})
        assert (status, json.loads(text)["error"]["param"]) == (400, field)
    usage = ask("/v1/completions", prompt="one two three " * 20, max_tokens=1)["usage"]
    again = ask("/v1/completions", prompt="one two three " * 20, max_tokens=1)["usage"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 0}
    assert 0 < again["prompt_tokens_details"]["cached_tokens"] < again["prompt_tokens"]
    assert again["prompt_tokens_details"]["cached_tokens"] % 16 == 0

    # vLLM's field: by token of the prompt a dict of ids, in the choices of completions and beside those of chats.
    vllm = ask("/v1/completions", prompt=ids, max_tokens=1, temperature=0, prompt_logprobs=2, echo=True, logprobs=1)
    for choice, sent in zip(vllm["choices"], ids, strict=True):
        first, *rest = choice["prompt_logprobs"]
        assert first is None
        assert len(rest) == len(sent) - 1
        assert choice["logprobs"]["token_logprobs"][1:-1] == pytest.approx(
            [one[str(token)]["logprob"] for one, token in zip(rest, sent[1:], strict=True)]
        )
        places = choice["logprobs"]
        assert all(best_and(*one) for one in zip(places["tokens"][1:], places["top_logprobs"][1:], strict=True))
        for one, token in zip(rest, sent[1:], strict=True):
            own = one[str(token)]
            best = sorted((entry["logprob"] for entry in one.values()), reverse=True)
            assert 2 <= len(one) <= 3
            assert own["rank"] == (best.index(own["logprob"]) + 1 if len(one) == 2 else None)
            assert sorted(entry["rank"] or 3 for entry in one.values()) == [1, 2, 3][: len(one)]
    alone = ask("/v1/completions", prompt=ids[0], max_tokens=1, temperature=0, prompt_logprobs=0)
    assert alone["choices"][0]["logprobs"] is None
    assert [len(one) for one in alone["choices"][0]["prompt_logprobs"][1:]] == [1] * (len(ids[0]) - 1)
    chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    answer = ask("/v1/chat/completions", prompt_logprobs=1, return_token_ids=True, **chat)
    assert len(answer["prompt_logprobs"]) == len(answer["prompt_token_ids"]) == answer["usage"]["prompt_tokens"]
    assert len(answer["choices"][0]["token_ids"]) == 2
    for value, stream in ((-1, False), (21, False), (1, True)):
        body = {"model": "sample", **chat, "prompt_logprobs": value, "stream": stream}
        status, text = machine.ask(url, "/v1/chat/completions", body)
        assert (status, json.loads(text)["error"]["param"]) == (400, "prompt_logprobs")
