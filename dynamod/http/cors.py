"""Which pages in browsers may ask: CORS, off unless origins are allowed."""

from collections.abc import Collection, Mapping

from aiohttp import web

_LIMITS = ", ".join(
    f"x-ratelimit-{what}-{of}" for of in ("requests", "tokens") for what in ("limit", "remaining", "reset")
)
_AGE = "600"  # seconds for which a browser keeps the answer


def origin_headers(origins: Collection[str], origin: str | None) -> dict[str, str]:
    """What an answer to a page of this origin carries; nothing where it may not ask."""
    if origin is None or not origins or not (origin in origins or "*" in origins):
        return {}
    exposed = {"Access-Control-Expose-Headers": f"x-request-id, Retry-After, {_LIMITS}"}
    if "*" in origins:
        return {"Access-Control-Allow-Origin": "*", **exposed}
    return {"Access-Control-Allow-Origin": origin, "Vary": "Origin", **exposed}


def name_setting(error: Exception, asked: Mapping[str, str]) -> None:
    """Add to the error of a browser's question, whose page may not ask, which setting allows the page."""
    if "Access-Control-Request-Method" in asked and (origin := asked.get("Origin")):
        what = f"pages of {origin[:100]} may not ask this server (CORS)"
        how = "an operator adds the origin to `allowed_origins` or to DYN_HTTP_ALLOWED_ORIGINS"
        error.args = (f"{error}; {what}: {how}",)


def preflight(method: str, asked: Mapping[str, str], allowed: Mapping[str, str]) -> web.Response | None:
    """The answer to a browser that asks before it sends a request, whose headers it lists; None: it is something else.

    `allowed`: the headers of the answer so far, with those of `origin_headers`. No key is needed, because browsers send
    none with this question.
    """
    if "Access-Control-Allow-Origin" not in allowed:
        return None
    if method != "OPTIONS" or "Access-Control-Request-Method" not in asked:
        return None
    headers = {"Access-Control-Allow-Methods": "GET, POST, HEAD, DELETE", "Access-Control-Max-Age": _AGE}
    if wanted := asked.get("Access-Control-Request-Headers"):
        headers["Access-Control-Allow-Headers"] = wanted
    return web.Response(status=204, headers=headers)
