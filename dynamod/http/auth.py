"""API keys."""

import hmac
from collections.abc import Sequence

from .errors import Unauthorized


class KeyCheck:
    """Compares the bearer token with every key in constant time; without keys everybody may enter."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = [key.encode() for key in keys]

    def check(self, authorization: str | None) -> None:
        """Raise Unauthorized unless the `Authorization` header carries a known key."""
        if not self._keys:
            return
        scheme, _, token = (authorization or "").strip().partition(" ")
        given = token.strip().encode("utf-8", "surrogateescape")
        if scheme.lower() != "bearer" or not given:
            raise Unauthorized("You didn't provide an API key: send the header `Authorization: Bearer KEY`")
        known = False
        for key in self._keys:  # all of them, so that the time tells nothing about which one was close
            known |= hmac.compare_digest(key, given)
        if not known:
            raise Unauthorized("Incorrect API key provided")
