"""Load: two ingress processes route as well as one, and workers that are full say so, then recover."""

import json
import os
import signal
import urllib.error
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from .together import together

WORDS = ["north", "east", "river", "stone", "lamp", "seven", "bridge", "window", "paper"]
GRAPH = ("serve", "graphs.agg_router:Frontend", "-f", "configs/agg_router.yaml", "--Frontend.port=0")


def words(topic: int, count: int) -> str:
    return f"{topic} " + " ".join(WORDS[(topic * 7 + index * (topic + 1)) % len(WORDS)] for index in range(count))


def ask(url: str, messages: list[dict[str, str]], request: str, **more: Any) -> tuple[int, dict[str, Any], str | None]:
    """Status, body, and the header Retry-After."""
    body = {"model": "sample", "messages": messages, "ignore_eos": True, **more}
    headers = {"Content-Type": "application/json", "x-request-id": request}
    asked = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return answer.status, json.load(answer), None
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error), error.headers["Retry-After"]


def conversations(machine: Any, ingresses: int) -> tuple[float, Counter[str]]:
    """Hit rate of 24 conversations of 5 turns, and how many requests each worker got."""
    replicas = f"ServiceArgs.workers={ingresses}"
    command = machine.start("dynamo", *GRAPH, f"--Frontend.{replicas}", f"--Processor.{replicas}")
    url = command.ready()

    def talk(topic: int) -> list[str]:
        messages: list[dict[str, str]] = []
        names = []
        for turn in range(5):
            messages.append({"role": "user", "content": words(topic + turn, 60)})
            names.append(f"talk-{ingresses}-{topic}-{turn}")
            status, answer, _ = ask(url, messages, names[-1], max_tokens=24)
            assert status == 200, answer
            messages.append(answer["choices"][0]["message"])
        return names

    with ThreadPoolExecutor(8) as pool:
        asked = [name for names in pool.map(talk, range(24)) for name in names]
    found = total = 0
    homes: Counter[str] = Counter()
    for name in asked:
        status, records = machine.raw("GET", f"/v1/requests/{name}/decision")
        assert status == 200, records
        last = records[-1]
        found += last["overlap"] * last["block_size"]
        total += last["tokens"]
        homes[next(one["process"] for one in last["candidates"] if one["instance"] == last["chosen"])] += 1
    command.end()
    return found / total, homes


def test_two_ingress_processes_find_as_much_as_one_and_do_not_herd(machine: Any) -> None:
    rates = {}
    for ingresses in (1, 2):
        rates[ingresses], homes = conversations(machine, ingresses)
        assert len(homes) == 4, homes
        assert max(homes.values()) < 60, f"half of the requests went to one of four workers: {homes}"
    assert rates[1] > 0.5, "four of five turns repeat all that came before"
    assert rates[2] > rates[1] - 0.05, rates


@together
def test_full_workers_refuse_with_a_time_to_come_back_and_recover(machine: Any) -> None:
    command = machine.start(
        "dynamo",
        *GRAPH,
        "--Worker.ServiceArgs.workers=2",
        *("--Worker.engine_args.num_gpu_blocks=64", "--Worker.engine_args.speedup_ratio=4"),
        *("--Processor.active_decode_blocks_threshold=0.4", "--Processor.router_queue_size=4"),
    )
    url = command.ready()

    def one(number: int) -> tuple[int, dict[str, Any], str | None]:
        return ask(url, [{"role": "user", "content": words(number, 40)}], f"full-{number}", max_tokens=150)

    with ThreadPoolExecutor(60) as pool:
        found = list(pool.map(one, range(60)))
    statuses = Counter(status for status, _, _ in found)
    assert set(statuses) == {200, 503}, statuses
    assert statuses[200] >= 6, "two that run, four that wait: at least they are served"
    for status, body, retry in found:
        if status == 200:
            assert body["usage"]["completion_tokens"] == 150
        else:
            assert body["error"]["type"]
            assert "can take the request" in body["error"]["message"], body
            assert int(retry or 0) >= 1
    for number in range(100, 106):
        status, body, _ = one(number)
        assert status == 200, body
    last = machine.raw("GET", "/v1/requests/full-105/decision")[1][-1]
    assert [one["requests"] for one in last["candidates"]] == [0, 0], "nothing stays on the books"
    command.end()


@together
def test_a_request_whose_worker_dies_over_its_prompt_is_computed_elsewhere(machine: Any) -> None:
    command = machine.start(
        "dynamo", *GRAPH, "--Worker.engine_args.speedup_ratio=0.02", "--Processor.router_mode=random"
    )
    url = command.ready()
    pids = {row["process"]: row["pid"] for row in machine.ps("Worker")}
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(ask, url, [{"role": "user", "content": words(3, 300)}], "doomed", max_tokens=3)
        machine.until(lambda: machine.raw("GET", "/v1/requests/doomed/decision")[0] == 200)
        records = machine.raw("GET", "/v1/requests/doomed/decision")[1]
        first = records[0]["chosen"]
        home = next(one["process"] for one in records[0]["candidates"] if one["instance"] == first)
        os.kill(pids[home], signal.SIGKILL)
        status, body, _ = answer.result(60)
    assert status == 200, body
    assert body["usage"]["completion_tokens"] == 3
    records = machine.raw("GET", "/v1/requests/doomed/decision")[1]
    assert len(records) == 2
    assert records[1]["chosen"] != first
    assert first not in [one["instance"] for one in records[1]["candidates"]]
    command.end()
