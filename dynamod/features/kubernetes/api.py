"""Calls of the API server: lists, watches, server-side apply. Its answers become four kinds of errors."""

from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import msgspec

from dynamod.message.errors import DynamodError

from .resources import LABEL, PODS, Kind
from .settings import ServerSettings

if TYPE_CHECKING:
    import aiohttp

CALL = 10.0
"""Seconds for an answer."""
WATCH = 240
"""Seconds after which the API server ends a watch; up to a quarter more, so that watches do not end together."""
SILENT = 150.0
"""Seconds without a byte after which a watch is begun again; up to a quarter more, too. A server sends a bookmark about
each minute."""
MANAGER = "dynamod"
"""The owner of the fields of what is applied."""


class ApiAway(DynamodError):
    """The API server does not answer, or has a fault."""


class ApiGone(DynamodError):
    """The API server does not keep the changes since this resource version any more: list again."""


class ApiRefused(DynamodError):
    """The API server refuses this service account, or does not know the kind or the namespace."""


class ApiInvalid(DynamodError):
    """The API server does not take this content, now or later."""


OPENED, BOOKMARK = "OPENED", "BOOKMARK"
"""Types of changes that name no resource; the first one is ours: the server has begun the watch."""


class Change(NamedTuple):
    """A line of a watch. `value` None: the resource is gone, or only the version is news."""

    type: str
    name: str
    version: str
    value: Any


class Api:
    """One session. `graph`: of the resources that lists and watches have. `jitter` gives a number from 0 to 1."""

    def __init__(self, settings: ServerSettings, graph: str = "", jitter: Callable[[], float] = lambda: 0.0) -> None:
        self._settings, self._graph, self._jitter = settings, graph, jitter
        self._trust = settings.trust()
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        import aiohttp  # slow to import, and only a node in Kubernetes needs it

        self._session = aiohttp.ClientSession(trust_env=False)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def all(self, kind: Kind) -> tuple[dict[str, Any], str]:
        """The resources of the graph by name, and the version to follow from. Raises ApiAway, ApiRefused."""
        body = await self._call("list", "GET", kind, "", query={"labelSelector": self._selector})
        try:
            items = {one["metadata"]["name"]: one for one in body.get("items") or ()}
            return items, str(body["metadata"]["resourceVersion"])
        except (KeyError, TypeError, AttributeError) as error:
            raise ApiAway(f"{kind.plural}: the list has no {error}") from None

    async def apply(self, kind: Kind, name: str, content: Any) -> None:
        """Make a resource have this content. Raises ApiAway, ApiRefused, ApiInvalid."""
        query, form = {"fieldManager": MANAGER, "force": "true"}, "application/apply-patch+yaml"
        await self._call("patch", "PATCH", kind, name, query=query, data=msgspec.json.encode(content), form=form)

    async def read(self, kind: Kind, name: str) -> dict[str, Any]:
        """One resource. Raises ApiAway, ApiRefused."""
        return await self._call("get", "GET", kind, name)

    async def merge(self, kind: Kind, name: str, content: Any) -> None:
        """Change fields of a resource that is there. Raises ApiAway, ApiRefused, ApiInvalid."""
        data = msgspec.json.encode(content)
        await self._call("patch", "PATCH", kind, name, data=data, form="application/merge-patch+json")

    async def delete(self, kind: Kind, name: str) -> None:
        """Remove a resource. Raises ApiAway, ApiRefused."""
        await self._call("delete", "DELETE", kind, name)

    async def changes(self, kind: Kind, since: str) -> AsyncGenerator[Change, None]:
        """The changes after a version, OPENED first, until the server ends the watch. Raises ApiAway, ApiGone."""
        import aiohttp

        longer = 1 + self._jitter() / 4
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(int(WATCH * longer)),
            "resourceVersion": since,
            "labelSelector": self._selector,
        }
        timeout = aiohttp.ClientTimeout(sock_connect=CALL, sock_read=SILENT * longer)
        url = self._settings.url + kind.path(self._settings.namespace)
        assert self._session is not None
        try:
            async with self._session.get(
                url, params=query, headers=self._headers(), timeout=timeout, ssl=self._trust
            ) as answer:
                if answer.status != 200:
                    raise self._error("watch", kind, "", answer.status, await answer.read())
                yield Change(OPENED, "", since, None)
                rest = b""
                async for part in answer.content.iter_any():
                    *lines, rest = (rest + part).split(b"\n")
                    for line in lines:
                        if line.strip():
                            yield self._change(kind, line)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ApiAway(self._said(error)) from None

    def _change(self, kind: Kind, line: bytes) -> Change:
        try:
            found = msgspec.json.decode(line)
            kind_of, value = found["type"], found["object"]
            if kind_of == "ERROR":
                raise self._error("watch", kind, "", int(value.get("code", 500)), msgspec.json.encode(value))
            metadata = value["metadata"]
            name, version = str(metadata.get("name", "")), str(metadata.get("resourceVersion", ""))
        except (msgspec.DecodeError, KeyError, TypeError, AttributeError, ValueError) as error:
            raise ApiAway(f"watch {kind.plural}: a line that cannot be read: {error}") from None
        return Change(kind_of, name, version, value if kind_of in ("ADDED", "MODIFIED") else None)

    @property
    def _selector(self) -> str:
        return f"{LABEL}={self._graph}"

    def _headers(self, form: str = "") -> dict[str, str]:
        token = self._settings.token()
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return headers | ({"Content-Type": form} if form else {})

    async def _call(
        self,
        verb: str,
        method: str,
        kind: Kind,
        name: str,
        *,
        query: Any = None,
        data: bytes | None = None,
        form: str = "",
    ) -> dict[str, Any]:
        import aiohttp

        url = self._settings.url + kind.path(self._settings.namespace, name)
        timeout = aiohttp.ClientTimeout(total=CALL)
        assert self._session is not None
        try:
            async with self._session.request(
                method, url, params=query, data=data, headers=self._headers(form), timeout=timeout, ssl=self._trust
            ) as answer:
                text = await answer.read()
                if answer.status >= 300 and not (answer.status == 404 and verb == "delete"):
                    raise self._error(verb, kind, name, answer.status, text)
                return dict(msgspec.json.decode(text))
        except (aiohttp.ClientError, TimeoutError, OSError) as error:  # first: that of a certificate is a ValueError
            raise ApiAway(self._said(error)) from None
        except (msgspec.DecodeError, TypeError, ValueError) as error:
            raise ApiAway(f"{method} {url}: {error}") from None

    def _error(self, verb: str, kind: Kind, name: str, status: int, body: bytes) -> DynamodError:
        """The error of an answer, which is one line."""
        try:
            said = " ".join(str(msgspec.json.decode(body).get("message", ""))[:300].split())
        except (msgspec.DecodeError, AttributeError):
            said = " ".join(body[:200].decode(errors="replace").split())
        what, where = (
            f"{verb} {kind.resource}{' ' + name if kind.part else ''}",
            f"namespace {self._settings.namespace}",
        )
        if said.startswith("Too large resource version"):  # the store of the server is an older one: a backup
            return ApiGone(said)
        match status:
            case 410:
                return ApiGone(said)
            case 401:
                return ApiRefused(f"the service account's token is not taken ({said}); see {self._settings.account}")
            case 403:
                group = f"the API group '{kind.group}'" if kind.group else "the core API group ''"
                grant = f"grant the verb '{verb}' on '{kind.granted}' of {group}"
                return ApiRefused(f"this pod may not {what} in {where} ({said}); {grant} to its service account")
            case 404:
                install = f"is the namespace right, and is the CustomResourceDefinition {kind.resource} installed?"
                if kind.part or kind is PODS:
                    install = "are the namespace and the name right?"
                return ApiRefused(f"{what} in {where} is not found ({said}); {install}")
            case 400 | 413 | 422:
                return ApiInvalid(f"{what} in {where}: {status} {said}")
        return ApiAway(f"{what} answers {status} {said}")

    def _said(self, error: BaseException) -> str:
        import ssl

        below = getattr(error, "certificate_error", None)
        if isinstance(below, ssl.SSLCertVerificationError):
            authorities = self._settings.account / "ca.crt"
            return f"its certificate is not taken: {below.verify_message}; authorities are those of {authorities}"
        return str(error) or type(error).__name__
