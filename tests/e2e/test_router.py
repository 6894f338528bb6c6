"""Four simulated workers behind the KV-aware router: prefixes go where they are cached, and somebody says why."""

import asyncio
import json
import os
import signal
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog"]


def prompt(topic: int, words: int = 120) -> str:
    """A long text that has no prefix in common with other topics."""
    return f"{topic} " + " ".join(WORDS[(topic + index) % len(WORDS)] for index in range(words))


def ask(url: str, text: str, request: str, **more: Any) -> dict[str, Any]:
    body = {"model": "sample", "messages": [{"role": "user", "content": text}], "max_tokens": 8, **more}
    headers = {"Content-Type": "application/json", "x-request-id": request}
    asked = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(asked, timeout=30) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


def decisions(machine: Any, request: str) -> list[dict[str, Any]]:
    status, found = machine.raw("GET", f"/v1/requests/{request}/decision")
    assert status == 200, found
    return list(found)


def chosen(machine: Any, request: str) -> str:
    last = decisions(machine, request)[-1]
    return str(next(one["process"] for one in last["candidates"] if one["instance"] == last["chosen"]))


@pytest.fixture(scope="module")
def served(shared: Any) -> Iterator[Any]:
    """The shipped graph with two ingress processes; `url` is where clients ask."""
    command = shared.start(
        "dynamo",
        *("serve", "graphs.agg_router:Frontend", "-f", "configs/agg_router.yaml", "--Frontend.port=0"),
        *("--Frontend.ServiceArgs.workers=2", "--Processor.ServiceArgs.workers=2"),
    )
    command.url = command.ready()
    rows = shared.raw("GET", "/v1/ps")[1]
    assert sorted({row["process"] for row in rows if row["component"] == "Frontend"}) == [
        "agg_router/ingress.0",
        "agg_router/ingress.1",
    ]
    yield command
    command.end()


def test_a_prefix_goes_where_it_is_cached(shared: Any, served: Any) -> None:
    for topic in range(6):
        ask(served.url, prompt(topic), f"first-{topic}")
    homes = {topic: chosen(shared, f"first-{topic}") for topic in range(6)}
    assert len(set(homes.values())) > 1, "nothing was known, so they are spread"

    def known() -> bool:
        """Every ingress process has heard of all blocks."""
        for number in range(4):
            ask(served.url, prompt(5), f"probe-{time.monotonic_ns()}-{number}", max_tokens=1)
        ask(served.url, prompt(5), "probe", max_tokens=1)
        return decisions(shared, "probe")[-1]["overlap"] > 0

    shared.until(known)
    for topic in range(6):
        for turn in range(3):
            name = f"again-{topic}-{turn}"
            ask(served.url, prompt(topic) + f" and {turn}", name)
            last = decisions(shared, name)[-1]
            assert last["overlap"] >= 5, last
            assert chosen(shared, name) == homes[topic]


def test_explain_shows_every_term(shared: Any, served: Any) -> None:
    answer = ask(served.url, prompt(30), "why")
    shown = shared.run("dynamo", "explain", answer["id"])
    assert shown.code == 0, shown.err
    for word in (
        "PREFILL x1",
        "QUEUED x0.5",
        "ACTIVE x0.05",
        "EVICTED x0.1",
        "INTERFERENCE x0.05",
        "TOTAL",
        "* chosen",
    ):
        assert word in shown.out
    assert shown.out.count("agg_router/Worker.") == 4
    record = shared.run("dynamo", "explain", "why", "--output", "json").json
    assert record == decisions(shared, "why")
    for one in record[0]["candidates"]:
        parts = {name: one["terms"][name] * weight for name, weight in record[0]["weights"].items()}
        assert one["total"] == pytest.approx(sum(parts.values()))
    unknown = shared.run("dynamo", "explain", "nobody")
    assert "nobody" in unknown.mistake()


def test_an_instance_can_be_asked_for(shared: Any, served: Any) -> None:
    ask(served.url, prompt(40), "any")
    for one in decisions(shared, "any")[0]["candidates"]:
        name = f"to-{one['instance']}"
        ask(served.url, prompt(40), name, nvext={"backend_instance_id": one["instance"]})
        assert chosen(shared, name) == one["process"]


def test_many_at_once_are_spread_and_nothing_stays_on_the_books(shared: Any, served: Any) -> None:
    """All share one prompt; its home must not get them all."""
    with ThreadPoolExecutor(32) as pool:
        list(pool.map(lambda n: ask(served.url, prompt(50) + f" {n}", f"many-{n}", max_tokens=64), range(96)))
    homes = [chosen(shared, f"many-{number}") for number in range(96)]
    assert max(homes.count(home) for home in set(homes)) < 72, "a quarter of the machine is not all of it"

    def calm() -> bool:
        ask(served.url, prompt(51), "calm", max_tokens=1)
        last = decisions(shared, "calm")[-1]
        return all(one["requests"] == 0 and one["terms"]["queued"] == 0 for one in last["candidates"])

    shared.until(calm)


def test_a_dead_worker_is_not_asked_again(shared: Any, served: Any) -> None:
    for number in range(3):
        ask(served.url, prompt(60), f"home-{number}")
    home = chosen(shared, "home-2")
    pid = next(row["pid"] for row in shared.raw("GET", "/v1/ps")[1] if row["process"] == home)
    os.kill(pid, signal.SIGKILL)
    assert ask(served.url, prompt(60), "after")["choices"][0]["finish_reason"] == "length"
    last = decisions(shared, "after")[-1]
    assert home not in [one["process"] for one in last["candidates"]] or chosen(shared, "after") != home

    def back() -> bool:
        rows = [row for row in shared.raw("GET", "/v1/ps")[1] if row["process"] == home]
        return bool(rows) and rows[0]["state"] == "Ready" and rows[0]["pid"] != pid

    shared.until(back)
    ask(served.url, prompt(60), "later")
    reborn = next(one for one in decisions(shared, "later")[-1]["candidates"] if one["process"] == home)
    assert reborn["overlap"] == 0, "its cache is empty"


async def stream(port: int, number: int) -> tuple[int, str]:
    """One streamed request over a socket of its own: chunks with text, and how it ended."""
    body = {"model": "sample", "stream": True, "max_tokens": 20, "ignore_eos": True}
    body["messages"] = [{"role": "user", "content": prompt(number % 50, 30)}]
    data = json.dumps(body).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    writer.write(head.encode() + data)
    answer = (await reader.read()).decode()
    writer.close()
    finish = "length" if '"finish_reason":"length"' in answer and "data: [DONE]" in answer else answer[-300:]
    return answer.count('"content":'), finish


async def test_a_thousand_streams_at_once(served: Any) -> None:
    port = int(served.url.rsplit(":", 1)[1])
    async with asyncio.timeout(60):
        found = await asyncio.gather(*(stream(port, number) for number in range(1000)))
    assert {finish for _, finish in found} == {"length"}
    assert min(chunks for chunks, _ in found) >= 1
