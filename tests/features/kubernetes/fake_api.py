"""A fake API server over real HTTP: lists, watches with versions and bookmarks, apply, delete, refusals, 410."""

import asyncio
import json
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from aiohttp import web

from tests.ports import accept_no_more, free_port

APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"


class FakeApi:
    """A server.

    `slow`: seconds that an apply takes. `refused`: (verb, plural) pairs that no role grants. `requests`: (verb, plural,
    version) as they came.
    """

    def __init__(self) -> None:
        self.port, self.scheme = free_port(), "http"
        self.version, self.namespace = 100, "ns"
        self.oldest = 0  # the first version whose history is kept
        self.objects: dict[str, dict[str, Any]] = {"dynamodinstances": {}, "endpointslices": {}}
        self.scales: dict[str, int] = {}  # replicas, by PLURAL/NAME
        self.there: dict[str, int] = {}  # pods, by PLURAL/NAME
        self.annotations: dict[str, dict[str, str]] = {}  # by pod
        self.history: list[tuple[int, str, str, Any]] = []
        self.slow = 0.0
        self.refused: set[tuple[str, str]] = set()
        self.requests: list[tuple[str, str, str]] = []
        self.tokens: list[str] = []
        self._changed = asyncio.Condition()
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    async def start(self, tls: ssl.SSLContext | None = None) -> None:
        app = web.Application()
        place = "/apis/{group}/{version}/namespaces/{namespace}/{plural}"
        app.router.add_get(place, self._get)
        app.router.add_patch(place + "/{name}", self._apply)
        app.router.add_route("*", place + "/{name}/scale", self._scale)
        app.router.add_patch("/api/v1/namespaces/{namespace}/{plural:pods}/{name}", self._annotate)
        app.router.add_delete(place + "/{name}", self._delete)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
        await self._runner.setup()
        self._listening = socket.create_server(("127.0.0.1", self.port))
        await web.SockSite(self._runner, self._listening, ssl_context=tls).start()
        self.scheme = "https" if tls is not None else "http"

    async def stop(self) -> None:
        """Away: connections break, objects stay."""
        if self._runner is not None:
            await accept_no_more(self._listening.fileno())
            for connection in list(getattr(self._runner.server, "connections", ())):
                if connection.transport is not None:
                    connection.transport.abort()
            await self._runner.cleanup()
            self._runner = None

    def forget(self) -> None:
        """Drop the history: watches from before get 410."""
        self.oldest = self.version + 1
        self.version += 1

    async def put(self, plural: str, value: Any) -> None:
        """As another client, or a controller, writes it."""
        name = value["metadata"]["name"]
        await self._happen("MODIFIED" if name in self.objects[plural] else "ADDED", plural, value)

    async def remove(self, plural: str, name: str) -> None:
        if name in self.objects[plural]:
            await self._happen("DELETED", plural, self.objects[plural][name])

    async def bookmark(self, plural: str) -> None:
        await self._happen("BOOKMARK", plural, {"metadata": {"name": ""}})

    async def _happen(self, what: str, plural: str, value: Any) -> None:
        async with self._changed:
            self.version += 1
            value = json.loads(json.dumps(value))
            value["metadata"]["resourceVersion"] = str(self.version)
            name = value["metadata"]["name"]
            if what == "DELETED":
                del self.objects[plural][name]
            elif what != "BOOKMARK":
                self.objects[plural][name] = value
            self.history.append((self.version, plural, what, value))
            self._changed.notify_all()

    def _refusal(self, verb: str, request: web.Request) -> web.Response | None:
        plural, namespace = request.match_info["plural"], request.match_info["namespace"]
        self.requests.append((verb, plural, request.query.get("resourceVersion", "")))
        self.tokens.append(request.headers.get("Authorization", ""))
        if namespace != self.namespace:
            return _status(404, f'namespaces "{namespace}" not found')
        if (verb, plural) in self.refused:
            user = f"system:serviceaccount:{namespace}:dynamod"
            return _status(403, f'{plural} is forbidden: User "{user}" cannot {verb} resource "{plural}"')
        return _status(404, "the server could not find the requested resource") if plural not in self.objects else None

    async def _get(self, request: web.Request) -> web.StreamResponse:
        watch = request.query.get("watch") == "true"
        if (refusal := self._refusal("watch" if watch else "list", request)) is not None:
            return refusal
        assert request.query["labelSelector"].startswith("dynamod.dev/graph=")
        plural = request.match_info["plural"]
        if not watch:
            items = list(self.objects[plural].values())
            return web.json_response({"metadata": {"resourceVersion": str(self.version)}, "items": items})
        since = int(request.query["resourceVersion"])
        if since > self.version:
            return _status(504, f"Too large resource version: {since}, current: {self.version}")
        answer = web.StreamResponse()
        await answer.prepare(request)
        with suppress(ConnectionError):
            if since < self.oldest:
                await self._line(answer, "ERROR", {"kind": "Status", "code": 410, "message": "too old"})
                return answer
            while True:
                async with self._changed:
                    news = [one for one in self.history if one[0] > since and one[1] == plural]
                    if not news:
                        await self._changed.wait()
                        continue
                for since, _, what, value in news:  # noqa: B007 - the next round begins after it
                    await self._line(answer, what, value)
        return answer

    async def _line(self, answer: web.StreamResponse, what: str, value: Any) -> None:
        await answer.write(json.dumps({"type": what, "object": value}).encode() + b"\n")

    async def _apply(self, request: web.Request) -> web.Response:
        if (refusal := self._refusal("patch", request)) is not None:
            return refusal
        assert request.content_type == APPLY
        assert request.query["fieldManager"]
        value = json.loads(await request.read())
        await asyncio.sleep(self.slow)
        await self.put(request.match_info["plural"], value)
        return web.json_response(value)

    async def _delete(self, request: web.Request) -> web.Response:
        if (refusal := self._refusal("delete", request)) is not None:
            return refusal
        await self.remove(request.match_info["plural"], request.match_info["name"])
        return web.json_response({})

    async def _scale(self, request: web.Request) -> web.Response:
        plural, name = request.match_info["plural"], request.match_info["name"]
        verb = {"GET": "get", "PATCH": "patch"}[request.method]
        key = f"{plural}/{name}"
        self.requests.append((verb, f"{plural}/scale", ""))
        if (verb, f"{plural}/scale") in self.refused:
            return _status(403, f'{key} is forbidden: cannot {verb} resource "{plural}/scale"')
        if key not in self.scales:
            return _status(404, f'{plural}.apps "{name}" not found')
        if verb == "patch":
            assert request.content_type == MERGE
            self.scales[key] = (await request.json())["spec"]["replicas"]
        status = {"replicas": self.there.get(key, 0)}
        return web.json_response({"kind": "Scale", "spec": {"replicas": self.scales[key]}, "status": status})

    async def _annotate(self, request: web.Request) -> web.Response:
        self.requests.append(("patch", "pods", ""))
        if ("patch", "pods") in self.refused:
            return _status(403, 'pods is forbidden: cannot patch resource "pods"')
        assert request.content_type == MERGE
        change = (await request.json())["metadata"]["annotations"]
        self.annotations.setdefault(request.match_info["name"], {}).update(change)
        return web.json_response({"kind": "Pod"})

    def count(self, verb: str, plural: str = "") -> int:
        return sum(one[0] == verb and plural in ("", one[1]) for one in self.requests)


def _status(code: int, message: str) -> web.Response:
    return web.json_response({"kind": "Status", "code": code, "message": message}, status=code)


def endpoint_slice(ready: dict[str, bool | None], name: str = "graph-1") -> dict[str, Any]:
    """As the controller of EndpointSlices writes it; `ready`: by the name of the pod."""
    endpoints = [
        {"addresses": ["10.244.0.5"], "conditions": {"ready": one}, "targetRef": {"kind": "Pod", **_pod(pod)}}
        for pod, one in ready.items()
    ]
    return {"metadata": {"name": name, "labels": {"dynamod.dev/graph": "g"}}, "endpoints": endpoints}


def resource(pod: str, keys: dict[str, str]) -> dict[str, Any]:
    owner = {"apiVersion": "v1", "kind": "Pod", **_pod(pod)}
    metadata = {"name": pod, "labels": {"dynamod.dev/graph": "g"}, "ownerReferences": [owner]}
    return {"metadata": metadata, "spec": {"node": pod, "keys": keys}}


def _pod(name: str) -> dict[str, str]:
    return {"name": name, "uid": f"uid-{name}"}


Condition = Callable[[], object]
