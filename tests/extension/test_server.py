"""What a feature adds to each HTTP server, by a feature that notes visits."""

import asyncio
from collections.abc import Sequence
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from dynamod.extension.feature import Feature
from dynamod.http.answer import json_response
from dynamod.http.context import RequestContext
from dynamod.http.server import Server
from dynamod.http.settings import FrontendSettings
from dynamod.ingress.api.endpoint import Endpoint, Frontend
from dynamod.ingress.api.table import make_server
from tests.ingress.conftest import FakeBackend
from tests.ports import listener


class Visit(Endpoint):
    path = "/v1/visits"
    summary = "The visits so far"
    response = None

    async def serve(self, frontend: Frontend, context: RequestContext) -> web.Response:
        return json_response(frontend.parts["visits"])


def serve(frontend: Frontend, server: Server, endpoints: Sequence[Endpoint]) -> None:
    visits: list[str] = frontend.parts["visits"]

    async def work() -> None:
        visits.append("in the background")

    async def families() -> list[Any]:
        from prometheus_client.core import GaugeMetricFamily

        return [GaugeMetricFamily("visits", "Visits", value=len(visits))]

    visits += [one.path for one in endpoints if isinstance(one, Visit)]
    server.background.append(work)
    server.collectors.append(families)


VISITS = Feature("visits", "", endpoints=lambda: [Visit()], part=lambda _settings: [], serve=serve)


@pytest.fixture
def only_visits(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other feature is installed, and all are on."""
    monkeypatch.delenv("DYNAMOD_FEATURES", raising=False)
    for module in ("dynamod.extension.installed", "dynamod.ingress.api.table"):
        monkeypatch.setattr(f"{module}.installed", lambda: {VISITS.name: VISITS})


async def asked(server: Server, path: str) -> tuple[int, str]:
    await server.start(listener(), spawn=asyncio.create_task)
    try:
        url = f"http://127.0.0.1:{server.port}{path}"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            return answer.status, await answer.text()
    finally:
        await server.stop(0)


@pytest.mark.usefixtures("only_visits")
async def test_part_work_and_metrics() -> None:
    server = make_server(FrontendSettings(host="127.0.0.1", port=0), FakeBackend())
    [work] = server.background
    await work()
    assert await asked(server, "/v1/visits") == (200, '["/v1/visits","in the background"]')
    assert "visits 2.0" in (await asked(server, "/metrics"))[1]


@pytest.mark.usefixtures("only_visits")
async def test_a_feature_that_is_off_adds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYNAMOD_FEATURES", "-visits")
    server = make_server(FrontendSettings(host="127.0.0.1", port=0), FakeBackend())
    assert (server.background, server.collectors) == ([], [])
    status, text = await asked(server, "/v1/visits")
    assert (status, "feature 'visits'" in text) == (404, True)
