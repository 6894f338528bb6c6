"""The file of keys: names, digests and limits of clients. Keys themselves are not kept."""

import contextlib
import json
import os
import re
import stat
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from dynamod.message.discovery import Word
from dynamod.message.errors import UserError
from dynamod.message.hints import in_words, refusal

from .settings import check_mode

_Most = Annotated[int, Meta(ge=1, le=2**53)]
DIGEST = "sha256:"
"""What a key begins with that is given as its digest in hex."""
_HEX = re.compile("[0-9a-fA-F]{64}")
_REFERENCE = re.compile(r"\$\{(file|env):([^{}]+)\}")
_HINT = "write the key, sha256:HEX, ${file:PATH} or ${env:NAME}"
_SECRET = ("key", "sha256")


class ClientKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One client. Requests and tokens per minute, and requests at a time: None: any.

    `key`: one key, or several of which each is taken. A key stands there as clients send it, as `sha256:HEX`, or as
    `${file:PATH}` or `${env:NAME}`, which have it in one of these forms; `KeyFile.read` leaves digests alone. `sha256`:
    one key by its digest in hex. `models`: those it may ask for, None: all. `priority`: which requests go first when
    some have to wait, higher ones; None: as the requests say. `admin`: it sees and changes what belongs to other keys.
    """

    name: Word
    key: str | list[str] = ""
    sha256: Annotated[str, Meta(pattern="^([0-9a-fA-F]{64})?$")] = ""
    rpm: _Most | None = None
    tpm: _Most | None = None
    inflight: _Most | None = None
    models: list[str] | None = None
    priority: Annotated[int, Meta(ge=-(2**31), le=2**31)] | None = None
    admin: bool = False

    @property
    def given(self) -> list[str]:
        """Its keys as they stand in the file."""
        keys = [self.key] if isinstance(self.key, str) else self.key
        return [f"{DIGEST}{self.sha256}"] if self.sha256 else keys

    @property
    def digests(self) -> list[bytes]:
        """Of its keys."""
        return [_digest(one) for one in self.given]


class KeyFile:
    """The file at `path`, and the files that it names for keys."""

    def __init__(self, path: str, environ: Mapping[str, str] | None = None) -> None:
        self.path, self._environ = path, os.environ if environ is None else environ
        self._source = f"the file of keys {path}"
        self._stamps: dict[str, tuple[int, int, int] | None] = {}  # of the files that were read last
        self._reading = False

    def changed(self) -> bool:
        """Whether one of the files is another one than at the last `read`; false while `read` runs."""
        return not self._reading and any(_stamp(path) != stamp for path, stamp in self._stamps.items())

    def read(self) -> list[ClientKey]:
        """The keys of the file: YAML or JSON, a list of them. Raises UserError that names what is wrong."""
        self._reading = True
        before, self._stamps = self._stamps, {}
        try:
            return self._read()
        except UserError:
            self._stamps = {**before, **self._stamps}  # a repair may be in any of them
            raise
        finally:
            self._reading = False

    def _read(self) -> list[ClientKey]:
        source = self._source
        value = _decoded(self._text(self.path, source), source)
        if not isinstance(value, list) or not value:
            raise UserError(f"{source} holds no list of keys", "for example [{name: team-a, key: SECRET, rpm: 60}]")
        found = [self._client(place, one) for place, one in enumerate(value)]
        digests = [(place, digest) for place, client in enumerate(found) for digest in client.digests]
        names = [(place, client.name) for place, client in enumerate(found)]
        for what, values in (("name", names), ("key", digests)):
            seen = set[str | bytes]()
            for place, one in values:
                if one in seen:
                    raise UserError(f"{source}: [{place}].{what} is there already", "each client has its own")
                seen.add(one)
        return found

    def _client(self, place: int, value: object) -> ClientKey:
        source = self._source
        try:
            client = msgspec.convert(value, ClientKey)
        except msgspec.ValidationError as error:
            name, sentence, _ = refusal(error)
            given = value.get(name) if isinstance(value, dict) and name not in _SECRET else None
            where = f"[{place}]{f'.{name}' if name else ''}"
            known = ", ".join(ClientKey.__struct_fields__)
            raise UserError(f"{source}: {where}: {in_words(sentence, given)}", f"known: {known}") from None
        if bool(client.key) == bool(client.sha256) or not all(client.given):
            raise UserError(f"{source}: [{place}] ({client.name}) needs key or sha256", "give one of them")
        if client.admin and client.models is not None:
            raise UserError(f"{source}: [{place}] ({client.name}): an admin sees all models", "leave models out")
        where = f"{source}: [{place}].key ({client.name})"
        digests = [f"{DIGEST}{_digest(self._key(one, where)).hex()}" for one in client.given]
        return msgspec.structs.replace(client, key=digests, sha256="")

    def _key(self, text: str, where: str) -> str:
        """A key as clients send it, or its digest as `sha256:HEX`."""
        if text.startswith("${"):
            reference = _REFERENCE.fullmatch(text)
            if reference is None:
                raise UserError(f"{where} has an unknown reference", _HINT)
            what, text = self._referred(reference[1], reference[2], where)
            where = f"{where}: {what}"
        if text.startswith(DIGEST) and not _HEX.fullmatch(text.removeprefix(DIGEST)):
            raise UserError(f"{where} has no digest of 64 hex digits after {DIGEST}", "printf %s KEY | sha256sum")
        if not text or text != text.strip() or not text.isprintable():  # no header could carry it
            problem = f"{where} is empty, or has white space around it, or characters that cannot be sent"
            raise UserError(problem, "give the key as clients send it")
        return text

    def _referred(self, kind: str, name: str, where: str) -> tuple[str, str]:
        """What a reference names, in words, and the text there."""
        if kind == "env":
            if (text := self._environ.get(name)) is None:
                raise UserError(
                    f"{where}: the environment variable {name} is not set", "set it where the frontend runs"
                )
            return f"the variable {name}", text.strip()
        path = os.path.join(os.path.dirname(self.path), os.path.expanduser(name))
        return f"the file {path}", self._text(path, f"{where}: the file {path}").strip()

    def _text(self, path: str, source: str) -> str:
        self._stamps[path] = _stamp(path)  # before it is read: a change during that is seen later
        check_mode(path)
        try:
            return Path(path).read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"cannot read {source}: {error}") from None

    def world_readable(self) -> list[str]:
        """Those of the files that every user may read."""
        return [path for path in self._stamps if check_mode(path) & stat.S_IROTH]


def _digest(key: str) -> bytes:
    text = key.removeprefix(DIGEST)
    return bytes.fromhex(text) if text != key else sha256(key.encode()).digest()


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


def _stamp(path: str) -> tuple[int, int, int] | None:
    """What tells a changed file, by whatever means; None: there is none. Copies may keep the time of the contents."""
    with contextlib.suppress(OSError):
        found = os.stat(path)
        return found.st_ctime_ns, found.st_size, found.st_ino
    return None
