"""Tracing in a frontend: no work per token, none for requests that are not sampled, and embeddings as any other."""

import sys
from collections import Counter
from pathlib import Path
from typing import Any, Self

import aiohttp

import dynamod.features.tracing
from dynamod.engine.base import EngineOptions, Spawn
from dynamod.engine.mocker.engine import Mocker

from .receiver import Collector

FOLDER = str(Path(dynamod.features.tracing.__file__).parent)
BODY = {"model": "sample", "messages": [{"role": "user", "content": "hello"}], "stream": True, "ignore_eos": True}


def quick(options: EngineOptions, spawn: Spawn) -> Mocker:
    arguments = {"speedup_ratio": 0, "num_gpu_blocks": 64}
    return Mocker(EngineOptions(options.name, options.path, arguments=arguments), spawn)


async def ask(url: str, tokens: int, **headers: str) -> None:
    body = {**BODY, "max_tokens": tokens}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{url}/v1/chat/completions", json=body, headers=headers) as answer,
    ):
        assert answer.status == 200
        assert (await answer.text()).count('"content"') >= tokens / 4


class Calls:
    """Counts calls of functions of the feature, in this thread; `total`: of all functions, those in C too."""

    def __init__(self) -> None:
        self.found: Counter[str] = Counter()
        self.total = 0

    def __enter__(self) -> Self:
        self._before = sys.getprofile()
        sys.setprofile(self._call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(self._before)

    def _call(self, frame: Any, event: str, _what: Any) -> None:
        self.total += event in ("call", "c_call")
        if event == "call" and frame.f_code.co_filename.startswith(FOLDER):
            self.found[frame.f_code.co_qualname] += 1


async def test_nothing_is_done_per_token(house: Any, serve: Any, until: Any) -> None:
    await house.start()
    await house.worker(quick)
    await until(lambda: house.backend.askable())
    with Collector() as collector:
        url = await serve(
            otel_export_enabled=True,
            otel_exporter_otlp_protocol="http/protobuf",
            otel_exporter_otlp_endpoint=collector.url,
        )
        with Calls() as calls:  # the calls that make the record of this request are not counted
            await ask(url, 4)
            await until(lambda found=calls.found: found["TracingReader.take"])
        counts = []
        for tokens in (4, 200):
            with Calls() as calls:
                await ask(url, tokens)
                await until(lambda found=calls.found: found["TracingReader.take"])
            counts.append(calls.found)
        assert counts[0] == counts[1]
        assert 0 < counts[0].total() < 60, counts[0]
        with Calls() as calls:
            await ask(url, 4, traceparent=f"00-{'1' * 32}-{'2' * 16}-00")
            await until(lambda: calls.found["TracingReader.take"])
        assert calls.found["line"] == 0, "what is not sampled is not handed on"


async def test_a_request_costs_few_calls_more(house: Any, serve: Any, until: Any) -> None:
    """Instead of microseconds, which a busy machine does not show: 200 calls are some 30 us."""
    await house.start()
    await house.worker(quick)
    await until(lambda: house.backend.askable())
    counts = []
    with Collector() as collector:
        to = {"otel_exporter_otlp_protocol": "http/protobuf", "otel_exporter_otlp_endpoint": collector.url}
        for url in (await serve(), await serve(otel_export_enabled=True, **to)):
            for _ in range(3):
                await ask(url, 8)
            with Calls() as calls:
                for _ in range(20):
                    await ask(url, 8)
            counts.append(calls.total / 20)
    assert 50 < counts[1] - counts[0] < 350, counts


async def test_off_is_not_imported(house: Any, serve: Any, until: Any) -> None:
    await house.start()
    await house.worker(quick)
    await until(lambda: house.backend.askable())
    url = await serve()
    with Calls() as calls:
        await ask(url, 4)
    assert calls.found == Counter()
