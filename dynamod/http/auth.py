"""API keys."""

import hmac
from collections.abc import Sequence

from .errors import Unauthorized


def check_key(keys: Sequence[str], authorization: str | None) -> None:
    """Raise Unauthorized unless the `Authorization` header carries one of the keys. Without keys everybody may enter.

    The token is compared with all of them, so that the time tells nothing about which one was close.
    """
    if not keys:
        return
    scheme, _, token = (authorization or "").strip().partition(" ")
    given = token.strip().encode("utf-8", "surrogateescape")
    if scheme.lower() != "bearer" or not given:
        raise Unauthorized("You didn't provide an API key: send the header `Authorization: Bearer KEY`")
    if not sum(hmac.compare_digest(key.encode(), given) for key in keys):
        raise Unauthorized("Incorrect API key provided")
