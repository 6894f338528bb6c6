"""The files of the console: one page, its modules, its style, and the libraries that it needs."""

from functools import cache
from hashlib import sha256
from pathlib import Path

from aiohttp import web

from dynamod.http.context import RequestContext
from dynamod.http.errors import NoRoute

STATIC = Path(__file__).parent / "static"
PREFIX = "/console/"
TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".mjs": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
}
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'; "
    "object-src 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
"""Of each file: scripts and styles only from this server, and no page of another server around it."""


@cache
def files() -> dict[str, tuple[bytes, str, str]]:
    """Content, type and tag of each file, by its path below `/console/`."""
    found: dict[str, tuple[bytes, str, str]] = {}
    for path in sorted(STATIC.rglob("*")):
        if path.is_file() and path.suffix in TYPES:
            data = path.read_bytes()
            tag = f'"{sha256(data).hexdigest()[:32]}"'
            found[path.relative_to(STATIC).as_posix()] = data, TYPES[path.suffix], tag
    return found


async def file(context: RequestContext) -> web.Response:
    """A file of the console. Raises NoRoute."""
    name = context.request.rel_url.path.removeprefix(PREFIX)
    if name not in files():
        raise NoRoute(f"the console has no file {name[:100]}")
    return answer(context, name)


async def page(context: RequestContext) -> web.Response:
    """The page itself."""
    return answer(context, "index.html")


def answer(context: RequestContext, name: str) -> web.Response:
    """A file, or 304 where the browser has it."""
    data, kind, tag = files()[name]
    headers = {**HEADERS, "ETag": tag}
    if context.request.headers.get("If-None-Match") == tag:
        return web.Response(status=304, headers=headers)
    return web.Response(body=data, headers=headers, content_type=kind, charset="utf-8")
