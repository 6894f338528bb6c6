"""The cluster secret: where it stands, what is wrong with it, and the keys that are made of it."""

import hashlib
import hmac
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from dynamod.message.errors import UserError

MODE = "DYNAMOD_TRUST"
SECRET = "DYNAMOD_CLUSTER_SECRET"
SECRET_FILE = "DYNAMOD_CLUSTER_SECRET_FILE"
CLOCK = "DYNAMOD_TRUST_CLOCK_S"
Mode = Literal["off", "accept", "require"]
SHORTEST = 32
"""Characters of a secret, at least: 32 hexadecimal digits are 128 random bits."""
MOST = 2
"""Secrets at once: the first one signs, both are taken."""
CLOCK_S = 60.0
"""Seconds by which the clocks of two nodes may differ."""
MOST_CLOCK_S = 3600.0
MAKE = "dynamo trust new FILE makes one"


class Key(NamedTuple):
    """`key`: signs. `digest`: tells secrets apart, and does not reveal the secret."""

    key: bytes
    digest: str


class TrustSettings(NamedTuple):
    """`keys`: of the secrets, the one that signs first; none without a secret. `clock_s`: allowed clock difference."""

    mode: Mode = "off"
    keys: tuple[Key, ...] = ()
    clock_s: float = CLOCK_S


def key_of(secret: str) -> Key:
    """The key that signs, of a secret."""
    raw = secret.encode()
    key = hmac.digest(raw, b"dynamod trust 1: signatures", hashlib.sha256)
    return Key(key, hmac.digest(raw, b"dynamod trust 1: digest", hashlib.sha256)[:4].hex())


def settings(environ: Mapping[str, str]) -> TrustSettings:
    """Read the variables, and the file. Raises UserError, which names variable or file and what is allowed."""
    secrets, where = _secrets(environ)
    default = "accept" if secrets else "off"
    mode = _mode(environ.get(MODE) or default)
    if mode != "off" and not secrets:
        raise UserError(f"{MODE}={mode} needs a cluster secret", f"set {SECRET_FILE}; {MAKE}")
    if len(secrets) > MOST:
        hint = f"give at most {MOST}: the one that signs, and the one before it"
        raise UserError(f"{where} has {len(secrets)} secrets", hint)
    for secret in secrets:
        _require_long(secret, where)
    return TrustSettings(mode, tuple(key_of(secret) for secret in secrets), _clock(environ))


def _require_long(secret: str, where: str) -> None:
    if len(secret) < SHORTEST or len({*secret}) < SHORTEST // 4:
        few = f"{len(secret)}" if len(secret) < SHORTEST else f"{len({*secret})} different"
        raise UserError(f"{where} has a secret of {few} characters", f"give at least {SHORTEST} random ones; {MAKE}")


def _mode(text: str) -> Mode:
    for known in get_args(Mode):
        if text == known:
            return known  # type: ignore[no-any-return]
    raise UserError(f"{MODE} is {text!r}", f"one of: {', '.join(get_args(Mode))}")


def _clock(environ: Mapping[str, str]) -> float:
    text = environ.get(CLOCK) or str(CLOCK_S)
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 1 <= seconds <= MOST_CLOCK_S:
        raise UserError(f"{CLOCK}={text} is no allowed clock difference", f"seconds from 1 to {MOST_CLOCK_S:g}")
    return seconds


def _secrets(environ: Mapping[str, str]) -> tuple[list[str], str]:
    """The secrets, and what they were read from."""
    file, text = environ.get(SECRET_FILE), environ.get(SECRET)
    if file and text:
        raise UserError(f"{SECRET_FILE} and {SECRET} are both set", "set one of them")
    if file:
        if not Path(file).is_absolute():  # a daemon in the background has another folder than who started it
            raise UserError(f"{SECRET_FILE}: {file} is no absolute path", "give the path from / on")
        return _in_file(Path(file)), f"{SECRET_FILE}: {file}"
    return [one for one in (text or "").replace(",", " ").split() if one], SECRET


def _in_file(path: Path) -> list[str]:
    """The secrets of a file: one a line; lines that begin with # are comments."""
    name = f"{SECRET_FILE}: {path}"
    try:
        with path.open("rb") as opened:
            status = os.fstat(opened.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise UserError(f"{name} is no file", MAKE)
            if status.st_mode & 0o077:
                shown = f"{stat.S_IMODE(status.st_mode):04o}"
                raise UserError(f"{name} can be read by other users (mode {shown})", f"chmod 600 {path}")
            text = opened.read(64 * 1024).decode()
    except FileNotFoundError:
        raise UserError(f"{name} does not exist", MAKE) from None
    except IsADirectoryError:
        raise UserError(f"{name} is no file", MAKE) from None
    except UnicodeDecodeError:
        raise UserError(f"{name} is no text", MAKE) from None
    except OSError as error:
        raise UserError(f"{name} cannot be read: {error.strerror}", "give it to the daemon's user") from None
    lines = [line.strip() for line in text.splitlines()]
    found = [line for line in lines if line and not line.startswith("#")]
    if not found:
        raise UserError(f"{name} is empty", MAKE)
    return found


def write_new(path: Path, secret: str) -> bool:
    """Write a file with a new secret, mode 0600. In a file that is there the first secret stays the one that signs.

    Returns whether one was there. Raises UserError.
    """
    before = _in_file(path)[:1] if path.exists() else []
    for one in before:
        _require_long(one, str(path))
    text = "\n".join(
        ["# The secret of a dynamod cluster. The first line signs, a second one is taken too.", *before, secret, ""]
    )
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
            opened.write(text)
        beside.replace(path)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}", "give another path") from None
    return bool(before)
