"""The picture that browsers show with the title of a page. Browsers ask for /favicon.ico, whatever the page says."""

from functools import cache
from pathlib import Path

from aiohttp import web

from .context import RequestContext
from .routes import Route

HEADERS = {
    "Cache-Control": "public, max-age=86400",
    "Content-Security-Policy": "default-src 'none'",  # an SVG that is opened as a page of its own
    "X-Content-Type-Options": "nosniff",
}


@cache
def _drawn() -> bytes:
    return Path(__file__).with_name("icon.svg").read_bytes()


async def _icon(_context: RequestContext) -> web.Response:
    return web.Response(body=_drawn(), headers=HEADERS, content_type="image/svg+xml")


ICON = Route("GET", "/favicon.ico", _icon)
"""The route, for servers with pages."""
