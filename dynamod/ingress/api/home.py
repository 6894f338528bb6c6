"""GET /: a short page for people at the address of the server, and an answer for clients that look for it."""

from collections.abc import Mapping
from html import escape
from typing import Any

from dynamod import __version__

LINKS: Mapping[str, Any] = {
    "name": "dynamod",
    "version": __version__,
    "links": {
        "docs": "/docs",
        "openapi": "/openapi.json",
        "models": "/v1/models",
        "health": "/health",
        "metrics": "/metrics",
    },
}
"""What clients that are no browsers find at the address of the server."""

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src 'self'; frame-ancestors 'none'"
}
"""Of the page: it has its own style, and a browser loads only its icon."""

_STYLE = (
    "body { font: 15px/1.6 sans-serif; max-width: 42rem; margin: 3rem auto; padding: 0 1rem; color: #222; }"
    "pre { background: #f4f4f4; padding: .7rem; overflow-x: auto; }"
)


def wants_page(headers: Mapping[str, str]) -> bool:
    """Whether a client asks for a page, as browsers do."""
    return "text/html" in headers.get("Accept", "").lower()


def home(origin: str, guarded: bool) -> str:
    """The page. `origin`: how the client calls this server, with scheme and port. `guarded`: requests need a key."""
    key = ' -H "Authorization: Bearer KEY"' if guarded else ""
    url = f"{origin}/v1"
    asked = f"curl {url}/chat/completions{key} -H 'Content-Type: application/json' \\\n  -d "
    asked += '\'{"messages": [{"role": "user", "content": "Hello"}]}\''
    return (
        f"<!doctype html><html lang=en><head><meta charset=utf-8><title>dynamod</title><style>{_STYLE}</style></head>"
        f"<body><h1>dynamod {escape(__version__)}</h1><p>This is a server for language models. The base URL is "
        f"<code>{escape(url)}</code>.</p><pre>{escape(asked)}</pre><ul>"
        "<li><a href=docs>docs</a>: all routes<li><a href=openapi.json>openapi.json</a>: the same for programs"
        "<li><a href=v1/models>v1/models</a>: the models<li><a href=health>health</a>: whether a model can be asked"
        "</ul></body></html>"
    )
