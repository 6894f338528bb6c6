"""API keys: keys without limits, and keys of a file with names and limits, which is read again when it changes."""

import asyncio
import contextlib
import json
import logging
import os
import stat
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from dynamod.message.discovery import Word
from dynamod.message.errors import RequestError, UserError
from dynamod.message.hints import in_words, refusal
from dynamod.observe.metrics import Definition

from .errors import Unauthorized
from .limits import Bucket, duration, remaining
from .settings import FrontendSettings, check_mode

if TYPE_CHECKING:
    from prometheus_client.core import Metric

log = logging.getLogger("dynamod.frontend")

LOOK = 1.0
"""Seconds between looks at the file."""
_Most = Annotated[int, Meta(ge=1, le=2**53)]


_LIMITED = "client:"


class ClientKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One client. `key`, or `sha256` of it in hex. Requests and tokens per minute, and requests at a time: None: any.

    `models`: those it may ask for, None: all. `priority`: which requests go first when some have to wait, higher ones;
    None: as the requests say.
    """

    name: Word
    key: str = ""
    sha256: Annotated[str, Meta(pattern="^([0-9a-fA-F]{64})?$")] = ""
    rpm: _Most | None = None
    tpm: _Most | None = None
    inflight: _Most | None = None
    models: list[str] | None = None
    priority: Annotated[int, Meta(ge=-(2**31), le=2**31)] | None = None

    @property
    def digest(self) -> bytes:
        """Of its key."""
        return bytes.fromhex(self.sha256) if self.sha256 else sha256(self.key.encode()).digest()


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

    def headers(self, now: float) -> dict[str, str]:
        """OpenAI's headers, of the limits that there are."""
        found: dict[str, str] = {}
        for name, bucket in (("requests", self.requests_left), ("tokens", self.tokens_left)):
            if bucket is not None:
                found[f"x-ratelimit-limit-{name}"] = str(bucket.size)
                found[f"x-ratelimit-remaining-{name}"] = str(remaining(bucket, now))
                found[f"x-ratelimit-reset-{name}"] = duration(bucket.full_in(now))
        return found

    def _refusal(self, limit: str, what: str, wait: float) -> RateLimited:
        self.refused[limit] += 1
        self.requests[RateLimited.status] += 1
        return RateLimited(f"the key {self.key.name!r} allows {what}", retry_after=wait)


class Keys:
    """The keys of a server. `watch` reads the file again when it has changed, until `close`.

    `now`: seconds of a monotonic clock. Raises UserError as `FrontendSettings.keys` and `read_keys` do.
    """

    def __init__(self, settings: FrontendSettings, now: Callable[[], float] = time.monotonic) -> None:
        self._file, self._now = settings.client_keys_file, now
        self._files = [file for file in (settings.api_key_file, settings.client_keys_file) if file]
        plain = settings.keys()
        self._plain = {sha256(key.encode()).digest() for key in plain}
        self.clients: dict[str, Client] = {}  # by name
        self._by_digest: dict[bytes, Client] = {}
        self._seen = _stamp(self._file)
        self._wrong = ""  # what was last said about the file
        self._timer: asyncio.TimerHandle | None = None
        if self._file:
            self._use(read_keys(self._file))

    def __bool__(self) -> bool:
        """Whether clients need one."""
        return bool(self._plain or self._file)

    def check(self, headers: Mapping[str, str]) -> tuple[str, Client | None]:
        """The sender: a name that no two keys share, and what is known of a key with limits. Raises Unauthorized.

        The name is empty when no key is needed. Keys are found by their digests, so that the time tells nothing about
        which one was close.
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
            if (found := self._by_digest.get(one)) is not None:
                return _LIMITED + found.key.name, found
        for one in digests:
            if one in self._plain:
                return _plain_name(one), None
        raise Unauthorized("Incorrect API key provided")

    def client(self, owner: str) -> Client | None:
        """What is known of a key by the name that `check` gave it. Raises Unauthorized when the key is gone."""
        if not self and not owner:
            return None
        if owner.startswith(_LIMITED) and (found := self.clients.get(owner.removeprefix(_LIMITED))) is not None:
            return found
        if any(_plain_name(one) == owner for one in self._plain):
            return None
        raise Unauthorized("the API key is there no more")

    def watch(self) -> None:
        """Look at the file now and then. A warning says which files every user may read."""
        for file in self._files:
            if check_mode(file) & stat.S_IROTH:
                log.warning("every user may read the key file %s: chmod 600 it", file)
        self._wait()

    def _wait(self) -> None:
        if self._file:
            self._timer = asyncio.get_running_loop().call_later(LOOK, self._look)

    def close(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._wait()
        stamp = _stamp(self._file)
        if stamp == self._seen:
            return
        self._seen = stamp
        read = asyncio.get_running_loop().run_in_executor(None, read_keys, self._file)
        read.add_done_callback(self._has_read)

    def _has_read(self, read: "asyncio.Future[list[ClientKey]]") -> None:
        """A file that is wrong changes nothing, and is said once."""
        if read.cancelled():
            return
        error = read.exception()
        if error is None:
            self._wrong = ""
            self._use(read.result())
            log.info("the keys of %s have been read again: %d clients", self._file, len(self.clients))
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
        self._by_digest = {client.key.digest: client for client in self.clients.values()}

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


def read_keys(file: str) -> list[ClientKey]:
    """The keys of a file: YAML or JSON, a list of them. Raises UserError that names what is wrong."""
    source = f"the file of keys {file}"
    check_mode(file)
    try:
        text = Path(file).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {source}: {error}") from None
    value = _decoded(text, source)
    hint = "for example [{name: team-a, key: SECRET, rpm: 60}]"
    if not isinstance(value, list) or not value:
        raise UserError(f"{source} holds no list of keys", hint)
    found: list[ClientKey] = []
    for place, one in enumerate(value):
        try:
            key = msgspec.convert(one, ClientKey)
        except msgspec.ValidationError as error:
            name, sentence, _ = refusal(error)
            given = one.get(name) if isinstance(one, dict) and name not in ("key", "sha256") else None
            where = f"[{place}]{f'.{name}' if name else ''}"
            known = ", ".join(ClientKey.__struct_fields__)
            raise UserError(f"{source}: {where}: {in_words(sentence, given)}", f"known: {known}") from None
        if bool(key.key) == bool(key.sha256):
            raise UserError(f"{source}: [{place}] ({key.name}) needs key or sha256", "give one of them")
        if key.key != key.key.strip() or not key.key.isprintable():  # no header could carry it
            problem = (
                f"{source}: [{place}].key ({key.name}) has white space around it, or characters that cannot be sent"
            )
            raise UserError(problem, "give the key as clients send it")
        found.append(key)
    for what, values in (("name", [key.name for key in found]), ("key", [key.digest for key in found])):
        if len(set(values)) < len(values):
            twice = next(place for place, one in enumerate(values) if one in values[:place])
            raise UserError(f"{source}: [{twice}].{what} is there already", "each client has its own")
    return found


def _decoded(text: str, source: str) -> Any:
    """The value of a JSON or YAML text. Raises UserError, also for a member that is written twice."""

    def members(found: list[tuple[str, Any]]) -> dict[str, Any]:
        _check_once([name for name, _ in found], source)
        return dict(found)

    try:
        return json.loads(text, object_pairs_hook=members)
    except ValueError:
        return _yaml(text, source)


def _yaml(text: str, source: str) -> Any:
    import yaml

    try:
        node: Any = yaml.compose(text, Loader=yaml.SafeLoader)
        for one in node.value if isinstance(node, yaml.SequenceNode) else ():
            if isinstance(one, yaml.MappingNode):
                _check_once([key.value for key, _ in one.value], f"{source}: line {one.start_mark.line + 1}")
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)  # the error itself would show the line, and in it the key
        where = f" in line {mark.line + 1}" if mark is not None else ""
        raise UserError(f"{source} is no YAML or JSON{where}") from None


def _check_once(names: Sequence[str], source: str) -> None:
    for place, name in enumerate(names):
        if name in names[:place]:
            raise UserError(f"{source}: the member {name!r} is written twice", "each limit of a client is given once")


def _plain_name(digest: bytes) -> str:
    """Of a key without limits; made of its digest, which it does not tell."""
    return f"key:{sha256(b'owner' + digest).hexdigest()[:32]}"


def _stamp(file: str) -> tuple[int, int, int] | None:
    """What tells a changed file, by whatever means; None: there is none. Copies may keep the time of the contents."""
    with contextlib.suppress(OSError):
        found = os.stat(file) if file else None
        return (found.st_ctime_ns, found.st_size, found.st_ino) if found is not None else None
    return None


def _resized(bucket: Bucket | None, size: int | None, now: float) -> Bucket | None:
    if size is None:
        return None
    return Bucket(size, now) if bucket is None else bucket if bucket.size == size else bucket.resized(size, now)
