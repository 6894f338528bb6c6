"""API keys: keys without limits, and keys of a file with names and limits, which is read again when it changes."""

import asyncio
import hmac
import logging
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Generic, TypeVar

from dynamod.message.errors import RequestError, UserError
from dynamod.observe.metrics import Definition

from .errors import Limit, Unauthorized
from .key_file import ClientKey, KeyFile
from .limits import Bucket, duration, remaining
from .settings import FrontendSettings, check_mode

if TYPE_CHECKING:
    from prometheus_client.core import Metric

log = logging.getLogger("dynamod.frontend")

LOOK = 1.0
"""Seconds between looks at the files."""
_LIMITED = "client:"
_START = 8
"""Bytes of a digest by which it is looked up; the rest is compared in constant time."""
T = TypeVar("T")


class Digests(Generic[T]):
    """Values by the digests of keys. The time of `find` tells nothing about a digest that is nearly there."""

    def __init__(self, pairs: Iterable[tuple[bytes, T]]) -> None:
        self._by_start: dict[bytes, list[tuple[bytes, T]]] = {}
        for digest, value in pairs:
            self._by_start.setdefault(digest[:_START], []).append((digest, value))

    def find(self, digest: bytes) -> T | None:
        """The value of a digest; None: it is not there."""
        found = None
        for one, value in self._by_start.get(digest[:_START], ()):
            if hmac.compare_digest(one, digest):
                found = value
        return found


class RateLimited(RequestError):
    """429: the client asks for more than its key allows."""

    status = 429
    kind = "rate_limit_error"
    code_default = "rate_limit_exceeded"


class Client:
    """A key, what is left for it, and what it has used. `requests`: by HTTP status. `refused`: by limit."""

    def __init__(self, key: ClientKey, now: float) -> None:
        self.key = key
        self.requests_left = Bucket(key.rpm, now) if key.rpm else None
        self.tokens_left = Bucket(key.tpm, now) if key.tpm else None
        self.inflight = self.prompt_tokens = self.completion_tokens = 0
        self.requests: Counter[int] = Counter()
        self.refused: Counter[str] = Counter()

    def changed(self, key: ClientKey, now: float) -> None:
        """It has these limits from now on; what it has used stays used."""
        self.key = key
        self.requests_left = _resized(self.requests_left, key.rpm, now)
        self.tokens_left = _resized(self.tokens_left, key.tpm, now)

    def may_ask(self, model: str) -> bool:
        """Whether it may ask for a model."""
        return self.key.models is None or model in self.key.models

    def take(self, now: float) -> None:
        """A request begins. Raises RateLimited, and takes nothing then."""
        key, requests, tokens = self.key, self.requests_left, self.tokens_left
        if requests is not None and (wait := requests.wait(now)):
            raise self._refusal("requests", f"{key.rpm} requests per minute", wait)
        if tokens is not None and (wait := tokens.wait(now)):
            raise self._refusal("tokens", f"{key.tpm} tokens per minute", wait)
        if key.inflight is not None and self.inflight >= key.inflight:
            raise self._refusal("inflight", f"{key.inflight} requests at a time", 1.0)
        if requests is not None:
            requests.use(1, now)
        self.inflight += 1

    def give(self, status: int, prompt_tokens: int, completion_tokens: int, now: float) -> None:
        """A request that was taken has ended, and has used so many tokens."""
        self.inflight -= 1
        self.requests[status] += 1
        self.prompt_tokens += prompt_tokens
        self.completion_tokens += completion_tokens
        if self.tokens_left is not None:
            self.tokens_left.use(prompt_tokens + completion_tokens, now)

    def limits(self, now: float) -> list[Limit]:
        """The limits that there are."""
        buckets = (("requests", self.requests_left), ("tokens", self.tokens_left))
        return [
            Limit(name, bucket.size, remaining(bucket, now), bucket.full_in(now))
            for name, bucket in buckets
            if bucket is not None
        ]

    def headers(self, now: float) -> dict[str, str]:
        """OpenAI's headers, of the limits that there are."""
        found: dict[str, str] = {}
        for one in self.limits(now):
            found[f"x-ratelimit-limit-{one.name}"] = str(one.size)
            found[f"x-ratelimit-remaining-{one.name}"] = str(one.remaining)
            found[f"x-ratelimit-reset-{one.name}"] = duration(one.full_in)
        return found

    def _refusal(self, limit: str, what: str, wait: float) -> RateLimited:
        self.refused[limit] += 1
        self.requests[RateLimited.status] += 1
        return RateLimited(f"the key {self.key.name!r} allows {what}", retry_after=wait)


class Keys:
    """The keys of a server. `watch` reads the file again when it has changed, until `close`.

    `now`: seconds of a monotonic clock. Raises UserError as `FrontendSettings.keys` and `KeyFile.read` do.
    """

    def __init__(self, settings: FrontendSettings, now: Callable[[], float] = time.monotonic) -> None:
        self._file = KeyFile(settings.client_keys_file) if settings.client_keys_file else None
        self._now, self._plain_file = now, settings.api_key_file
        given = settings.keys()
        plain = {sha256(key.encode()).digest() for key in given}
        self._plain = Digests((digest, _plain_name(digest)) for digest in plain)
        self._plain_names = {_plain_name(digest) for digest in plain}
        self.clients: dict[str, Client] = {}  # by name
        self._by_digest: Digests[Client] = Digests(())
        self._wrong = ""  # what was last said about the file
        self._timer: asyncio.TimerHandle | None = None
        if self._file is not None:
            self._use(self._file.read())

    def __bool__(self) -> bool:
        """Whether clients need one."""
        return bool(self._plain_names or self._file)

    def check(self, headers: Mapping[str, str]) -> tuple[str, Client | None]:
        """The sender: a name that no two keys share, and what is known of a key with limits. Raises Unauthorized.

        The name is empty when no key is needed.
        """
        if not self:
            return "", None
        scheme, _, token = headers.get("Authorization", "").strip().partition(" ")
        bearer = token if scheme.lower() == "bearer" else ""
        given = [key.strip().encode("utf-8", "surrogateescape") for key in (bearer, headers.get("x-api-key", ""))]
        if not any(given):
            raise Unauthorized("You didn't provide an API key: send the header `Authorization: Bearer KEY`")
        digests = [sha256(one).digest() for one in given if one]
        for one in digests:
            if (found := self._by_digest.find(one)) is not None:
                return _LIMITED + found.key.name, found
        for one in digests:
            if (name := self._plain.find(one)) is not None:
                return name, None
        raise Unauthorized("Incorrect API key provided")

    def client(self, owner: str) -> Client | None:
        """What is known of a key by the name that `check` gave it. Raises Unauthorized when the key is gone."""
        if not self and not owner:
            return None
        if owner.startswith(_LIMITED) and (found := self.clients.get(owner.removeprefix(_LIMITED))) is not None:
            return found
        if owner in self._plain_names:
            return None
        raise Unauthorized("the API key is there no more")

    def watch(self) -> None:
        """Look at the file now and then. A warning says which files every user may read."""
        open_files = [self._plain_file] if self._plain_file and check_mode(self._plain_file) & stat.S_IROTH else []
        for file in (*open_files, *(self._file.world_readable() if self._file is not None else ())):
            log.warning("every user may read the key file %s: chmod 600 it", file)
        self._wait()

    def _wait(self) -> None:
        if self._file is not None:
            self._timer = asyncio.get_running_loop().call_later(LOOK, self._look)

    def close(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._wait()
        if self._file is not None and self._file.changed():
            read = asyncio.get_running_loop().run_in_executor(None, self._file.read)
            read.add_done_callback(self._has_read)

    def _has_read(self, read: "asyncio.Future[list[ClientKey]]") -> None:
        """A file that is wrong changes nothing, and is said once."""
        if read.cancelled():
            return
        error = read.exception()
        if error is None:
            self._wrong = ""
            self._use(read.result())
            path = self._file.path if self._file is not None else ""
            log.info("the keys of %s have been read again: %d clients", path, len(self.clients))
            return
        why = error.line() if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        if why != self._wrong:
            self._wrong = why
            log.error("the keys stay as they were: %s", why)

    def _use(self, keys: Sequence[ClientKey]) -> None:
        now, before = self._now(), self.clients
        self.clients = {}
        for key in keys:
            client = before.get(key.name)
            if client is None:
                client = Client(key, now)
            else:
                client.changed(key, now)
            self.clients[key.name] = client
        self._by_digest = Digests((one, client) for client in self.clients.values() for one in client.key.digests)

    def families(self, prefix: str) -> "list[Metric]":
        """What each client has used; the label is its name, never its key."""
        if not self.clients:
            return []
        requests, tokens, refused, inflight = families = [one.family(prefix) for one in METRICS]
        for name, client in self.clients.items():
            for status, count in client.requests.items():
                requests.add_metric([name, str(status)], count)
            tokens.add_metric([name, "prompt"], client.prompt_tokens)
            tokens.add_metric([name, "completion"], client.completion_tokens)
            for limit, count in client.refused.items():
                refused.add_metric([name, limit], count)
            inflight.add_metric([name], client.inflight)
        return families


METRICS = (
    Definition("counter", "key_requests", "Requests by client key.", ("key", "status")),
    Definition("counter", "key_tokens", "Tokens by client key.", ("key", "type")),
    Definition("counter", "key_refused", "Requests above a limit of a client key.", ("key", "limit")),
    Definition("gauge", "key_inflight_requests", "Open requests by client key.", ("key",)),
)
"""The metrics of keys, in the order of `ClientKeys.families`."""


def key_label(owner: str) -> str:
    """The label `key` of metrics about what an owner keeps: the name of the key, or what stands for it."""
    return owner.removeprefix(_LIMITED)


def _plain_name(digest: bytes) -> str:
    """Of a key without limits; made of its digest, which it does not tell."""
    return f"key:{sha256(b'owner' + digest).hexdigest()[:32]}"


def _resized(bucket: Bucket | None, size: int | None, now: float) -> Bucket | None:
    if size is None:
        return None
    return Bucket(size, now) if bucket is None else bucket if bucket.size == size else bucket.resized(size, now)
