"""Which handler answers which path."""

from collections.abc import Awaitable, Callable, Container, Iterable
from dataclasses import dataclass

from aiohttp import web

from .context import RequestContext
from .errors import OPENAI, ErrorForm, NoMethod, NoRoute

Handler = Callable[[RequestContext], Awaitable[web.StreamResponse]]
"""Answers one request. Raises RequestError while nothing has been sent."""


@dataclass(frozen=True, slots=True)
class Route:
    """One method of one path.

    `guarded`: it asks for an API key when the server has keys, and so do unknown paths in the same first folder.
    `prefix`: it takes every path that begins with `path` and has no route of its own. `suffix`: only paths that end
    with it, and no other route takes them. `errors`: the form of errors at this path. `counted`: all requests at this
    path and below it count at the limits of a key; elsewhere those of POST do.
    """

    method: str
    path: str
    handler: Handler
    guarded: bool = False
    prefix: bool = False
    suffix: str = ""
    errors: ErrorForm = OPENAI
    counted: bool = False


class Routes:
    """All routes of a server, by a dict lookup."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._exact: dict[str, dict[str, Handler]] = {}
        prefixes: dict[tuple[str, str], dict[str, Handler]] = {}
        self._guarded: set[str] = set()
        self._errors: dict[str, ErrorForm] = {}
        self._below: dict[str, ErrorForm] = {}  # by what the paths begin with
        self._asked: set[ErrorForm] = set()  # forms that clients ask for with a header (`ErrorForm.asked_by`)
        self._counted: set[str] = set()
        for route in routes:
            if route.prefix:
                prefixes.setdefault((route.path, route.suffix), {})[route.method] = route.handler
            else:
                self._exact.setdefault(route.path, {})[route.method] = route.handler
            if route.guarded:
                self._guarded.add(_folder(route.path))
            if route.errors is not OPENAI and route.prefix:
                self._below[route.path] = route.errors
            elif route.errors is not OPENAI:
                self._errors[route.path] = route.errors
            if route.errors.asked_by:
                self._asked.add(route.errors)
            if route.counted:
                self._counted.add(route.path)
        self._prefixes = sorted(prefixes.items(), key=lambda one: not one[0][1])  # those with a suffix first

    def guarded(self, path: str) -> bool:
        """Whether a request for this path needs an API key."""
        return _folder(path) in self._guarded

    def counts(self, method: str, path: str) -> bool:
        """Whether a request counts at the limits of a key."""
        return method == "POST" or any(f"{path}/".startswith(f"{one}/") for one in self._counted)

    def errors(self, path: str, headers: Container[str] = ()) -> ErrorForm:
        """The form of errors at this path, for a request with these headers."""
        found = self._errors_at(path)
        if found is OPENAI:
            return next((form for form in self._asked if form.asked_by in headers), OPENAI)
        return found

    def _errors_at(self, path: str) -> ErrorForm:
        if path in self._exact:
            return self._errors.get(path, OPENAI)
        if (form := self._errors.get(path.removesuffix("/"))) is not None:
            return form
        return next((form for start, form in self._below.items() if path.startswith(start)), OPENAI)

    def find(self, method: str, path: str) -> Handler:
        """The handler; GET also answers HEAD, and a slash at the end changes nothing. Raises NoRoute or NoMethod."""
        methods = self._exact.get(path) or self._exact.get(path.removesuffix("/"))
        if methods is None:
            plain = path.removesuffix("/")
            methods = next(
                (
                    found
                    for (start, end), found in self._prefixes
                    if path.startswith(start) and (not end or (plain.endswith(end) and len(plain) > len(start + end)))
                ),
                None,
            )
        if methods is None:
            raise NoRoute(f"unknown path: {method} {path[:200]}")
        handler = methods.get("GET" if method == "HEAD" else method)
        if handler is None:
            allow = ", ".join(["GET, HEAD" if name == "GET" else name for name in methods])
            raise NoMethod(f"{path[:200]} does not take {method[:20]}; it takes {allow}", allow)
        return handler


def _folder(path: str) -> str:
    return path[1:].partition("/")[0]
