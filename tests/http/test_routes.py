"""Routes as data, and a server that has nothing but them."""

import asyncio
import gc
import weakref
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from dynamod.daemon.sockets import hosts_of, listen
from dynamod.http.answer import json_response
from dynamod.http.context import RequestContext
from dynamod.http.errors import NoMethod, NoRoute
from dynamod.http.routes import Route, Routes
from dynamod.http.server import Server
from dynamod.http.settings import FrontendSettings
from dynamod.message.errors import BadRequest
from tests.ports import listener


async def echo(context: RequestContext) -> web.Response:
    return json_response({"path": context.request.rel_url.path, "id": context.id})


async def broken(_context: RequestContext) -> web.Response:
    raise KeyError("secret")


async def other(_context: RequestContext) -> web.Response:
    return json_response({})


ROUTES = [
    Route("POST", "/v1/things", other, guarded=True),
    Route("GET", "/v1/things", echo, guarded=True),
    Route("GET", "/v1/things/", echo, guarded=True, prefix=True),
    Route("POST", "/v1/things/", other, guarded=True, prefix=True, suffix="/parts"),
    Route("GET", "/open", echo),
    Route("GET", "/broken", broken),
]


@pytest.mark.parametrize(
    ("method", "path", "handler"),
    [
        ("GET", "/v1/things", echo),
        ("HEAD", "/v1/things", echo),
        ("POST", "/v1/things", other),
        ("GET", "/v1/things/", echo),
        ("GET", "/v1/things/a/b", echo),
        ("GET", "/open/", echo),
        ("POST", "/v1/things/", other),
        ("POST", "/v1/things/a/parts", other),
        ("POST", "/v1/things/a/parts/", other),
        ("GET", "/v1/things/parts", echo),
    ],
)
def test_the_handler_is_found(method, path, handler) -> None:
    assert Routes(ROUTES).find(method, path) is handler


@pytest.mark.parametrize("path", ["/", "", "*", "/v1", "/v1/thing", "/v1/thingsx", "/open//", "//open", "/open/x"])
def test_other_paths_are_unknown(path) -> None:
    with pytest.raises(NoRoute):
        Routes(ROUTES).find("GET", path)


def test_other_methods_are_told_which_there_are() -> None:
    for method, path, allow in [("PUT", "/v1/things", "POST, GET, HEAD"), ("POST", "/v1/things/x", "GET, HEAD")]:
        with pytest.raises(NoMethod) as caught:
            Routes(ROUTES).find(method, path)
        assert caught.value.allow == allow


async def test_what_a_refused_request_held_is_free_at_once() -> None:
    held: list[weakref.ref[Any]] = []

    async def refuse(_context: RequestContext) -> web.Response:
        body = frozenset((1, 2))  # in the frame of the error
        held.append(weakref.ref(body))
        raise BadRequest("no")

    server = Server(FrontendSettings(host="127.0.0.1", port=0), [Route("GET", "/refuse", refuse)], dict)
    await server.start(listener(), spawn=asyncio.create_task)
    gc.disable()
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as session:
            async with session.get("/refuse") as answer:
                assert answer.status == 400
            async with session.get("/live") as answer:
                assert answer.status == 200
        assert held[0]() is None
    finally:
        gc.enable()
        await server.stop(grace=0)


@pytest.mark.parametrize(
    ("path", "guarded"),
    [("/v1/things", True), ("/v1/unknown", True), ("/v1", True), ("/v1x", False), ("/open", False), ("", False)],
)
def test_the_folder_of_a_guarded_route_is_guarded(path, guarded) -> None:
    assert Routes(ROUTES).guarded(path) is guarded


async def test_a_server_of_routes_alone() -> None:
    state = {"endpoints": ["dyn://a.b.c"], "instances": []}
    server = Server(FrontendSettings(host="127.0.0.1", port=0, api_keys="key"), ROUTES, lambda: state)
    await server.start(listener(), spawn=asyncio.create_task)
    async with aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as session:

        async def get(path: str, **headers: str):
            async with session.get(path, headers=headers) as answer:
                return answer.status, await answer.json()

        assert await get("/open", **{"x-request-id": "mine"}) == (200, {"path": "/open", "id": "mine"})
        assert (await get("/v1/things"))[0] == (await get("/v1/nothing"))[0] == 401
        assert (await get("/v1/nothing", Authorization="Bearer key"))[0] == 404
        assert (await get("/v1/things/x/y", Authorization="Bearer key"))[1]["path"] == "/v1/things/x/y"
        assert (await get("/health"))[1]["endpoints"] == ["dyn://a.b.c"]
        status, body = await get("/broken")
        assert (status, body["error"]["code"]) == (500, "internal_error")
        assert "secret" not in str(body)
    await server.stop(0)


@pytest.mark.parametrize(
    ("host", "keys", "warns"),
    [
        *[
            ("0.0.0.0", "", True),
            ("0.0.0.0", "key", False),
            ("127.0.0.1", "", False),
            ("::1", "", False),
            ("::", "", True),
        ],
        *[("localhost", "", False), ("127.0.0.1,::", "", True)],
    ],
)
async def test_an_open_port_without_keys_is_said(host: str, keys: str, warns: bool, caplog) -> None:
    server = Server(FrontendSettings(host=host, port=0, api_keys=keys), ROUTES, dict)
    await server.start(*listen(hosts_of(host), 0, "Frontend"), spawn=asyncio.create_task)
    port = server.port
    await server.stop(grace=0)
    assert (f"other machines may use the models at port {port}" in caplog.text) == warns
