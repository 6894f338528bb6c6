"""`nvext.extra_fields`: which workers have answered, and how long it took."""

import json
import time
from typing import Any

import aiohttp
import pytest

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
TIMES = {"request_received_ms", "prefill_wait_time_ms", "prefill_time_ms", "ttft_ms", "total_time_ms"}


def body_of(path: str, **fields: Any) -> dict[str, Any]:
    asked = {"messages": [{"role": "user", "content": "hi there"}]} if path == CHAT else {"prompt": "hi there"}
    return {"model": "sample", "max_tokens": 3, **asked, **fields}


@pytest.mark.parametrize("path", [CHAT, COMPLETION])
@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_says_them(house: Any, serve: Any, until: Any, words: Any, path: str, stream: bool) -> None:
    await house.start()
    workers = [await house.worker(words.EchoCore) for _ in range(2)]
    await until(lambda: house.processor.cards)
    known = {worker.instance.instance_id for worker in workers}
    url, seen = await serve(), set()

    async def ask(**fields: Any) -> list[dict[str, Any]]:
        async with session.post(url + path, json=body_of(path, stream=stream, **fields)) as answer:
            text = await answer.text()
            assert answer.status == 200, text
        parts = [line[6:] for line in text.splitlines() if line.startswith("data: {")] if stream else [text]
        return [json.loads(part) for part in parts]

    async with aiohttp.ClientSession() as session:
        for _ in range(2):
            before = time.time() * 1000
            parts = await ask(nvext={"extra_fields": ["worker_id", "timing"]}, n=2)
            after = time.time() * 1000
            assert [part for part in parts if "nvext" in part] == parts[-1:]
            found = parts[-1]["nvext"]
            assert found.keys() == {"worker_id", "timing"}
            worker, prefill = found["worker_id"]["decode_worker_id"], found["worker_id"]["prefill_worker_id"]
            assert worker == prefill
            seen.add(worker)
            timing = found["timing"]
            assert timing.keys() == TIMES
            assert before - 1 <= timing["request_received_ms"] <= after
            assert 0 <= timing["prefill_wait_time_ms"] <= timing["ttft_ms"] <= timing["total_time_ms"] <= after - before
            waited_and_computed = timing["prefill_wait_time_ms"] + timing["prefill_time_ms"]
            assert waited_and_computed == pytest.approx(timing["ttft_ms"], abs=0.01)
        assert seen <= known
        (only,) = [part for part in await ask(nvext={"extra_fields": ["worker_id"]}) if "nvext" in part]
        assert only["nvext"].keys() == {"worker_id"}
        assert not [part for part in await ask(nvext={"extra_fields": []}) if "nvext" in part]
        assert not [part for part in await ask() if "nvext" in part]
        wrong = body_of(path, nvext={"extra_fields": ["worker"]})
        async with session.post(url + path, json=wrong) as answer:
            error = (await answer.json())["error"]
            assert (answer.status, error["param"]) == (400, "nvext.extra_fields[0]")
            assert error["message"].endswith("it must be one of timing, worker_id")


@pytest.mark.parametrize("path", [CHAT, COMPLETION])
async def test_metrics_of_a_request(house: Any, serve: Any, until: Any, words: Any, path: str) -> None:
    await house.start()
    await house.worker(words.EchoCore)
    await until(lambda: house.processor.cards)
    body = body_of(path, stream_options={"include_usage": True}, stream=True, min_tokens=20, max_tokens=20)
    whole = {name: value for name, value in body.items() if not name.startswith("stream")}
    async with aiohttp.ClientSession() as session:
        for on in (False, True):
            url = await serve(per_request_metrics=on)
            began = time.perf_counter()
            async with session.post(url + path, json=whole) as answer:
                found = [(await answer.json()).get("metrics")]
            took = (time.perf_counter() - began) * 1000
            async with session.post(url + path, json=body) as answer:
                lines = (await answer.text()).splitlines()
            chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
            assert not any("metrics" in one for one in chunks[:-1])
            found.append(chunks[-1].get("metrics"))
            if not on:
                assert found == [None, None]
                continue
            for one in found:
                assert 0 <= one["queue_time_ms"] <= one["time_to_first_token_ms"]
                assert one["mean_itl_ms"] == pytest.approx(one["generation_time_ms"] / 19, abs=0.01)
                assert one["generation_time_ms"] > 0
                assert one["tokens_per_second"] == pytest.approx(20 / one["generation_time_ms"] * 1000, rel=0.01)
            assert found[0]["time_to_first_token_ms"] + found[0]["generation_time_ms"] <= took
            async with session.post(url + path, json={**whole, "min_tokens": 1, "max_tokens": 1}) as answer:
                one = (await answer.json())["metrics"]
            assert (one["mean_itl_ms"], one["tokens_per_second"], one["generation_time_ms"]) == (None, None, 0)


async def test_a_moved_answer_names_the_last_worker(house: Any, serve: Any, until: Any, words: Any) -> None:
    import asyncio

    await house.start()
    workers = [await house.worker(words.Manual, "text") for _ in range(2)]
    await until(lambda: "text" in house.processor.cards)
    url = await serve()
    async with aiohttp.ClientSession() as session:
        asked = body_of(CHAT, model="text", nvext={"extra_fields": ["worker_id"]})
        waiting = asyncio.ensure_future(session.post(url + CHAT, json=asked).__aenter__())
        await until(lambda: any(worker.engine.replies for worker in workers))
        first = next(worker for worker in workers if worker.engine.replies)
        (other,) = [worker for worker in workers if worker is not first]
        first.engine.replies[0].failed("EngineFailed", "it ends", retry=True)
        await until(lambda: other.engine.replies)
        other.engine.replies[0].text("x", 1, "stop", 1)
        answer = await (await waiting).json()
    assert answer["nvext"]["worker_id"]["decode_worker_id"] == other.instance.instance_id
