"""The arguments of the engine `openai`: where the server is, its key, its name for the model, and clocks."""

import os
import re
import shlex
from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from dynamod.message.errors import UserError

from ..arguments import Arguments

PORT = "{port}"
"""In `cmd` and `url`: a free port."""
_EXAMPLE = "for example openai:http://127.0.0.1:8080/v1"
Seconds = Annotated[float, Meta(gt=0, le=86400)]


class OpenAIArguments(msgspec.Struct, frozen=True):
    """`url`: what `/models` is appended to. `cmd`: starts the server, as words or as one line without a shell.

    `model`: the server's name for it. `embeddings`: that model makes vectors, and no answers. `api_key_env`: the
    variable that holds the key. Seconds: until a connection is made, until the first token (or all vectors of a
    request), between tokens, until a started server answers, between looks at its health.
    """

    url: str = ""
    cmd: str | list[str] = ""
    model: str = ""
    api_key_env: str = ""
    embeddings: bool = False
    connect_timeout: Seconds = 5.0
    first_timeout: Seconds = 600.0
    gap_timeout: Seconds = 60.0
    start_timeout: Seconds = 600.0
    health_interval: Seconds = 5.0

    @property
    def words(self) -> list[str]:
        """`cmd` word by word."""
        return shlex.split(self.cmd) if isinstance(self.cmd, str) else self.cmd

    def at(self, port: int) -> "OpenAIArguments":
        """The same with `port` wherever one is asked for; without a url the server is at that port."""
        url = self.url or f"http://127.0.0.1:{PORT}/v1"
        words = [word.replace(PORT, str(port)) for word in self.words]
        return msgspec.structs.replace(self, url=url.replace(PORT, str(port)).rstrip("/"), cmd=words)

    def key(self, environ: Mapping[str, str] = os.environ) -> str:
        """The key, empty without one. Raises UserError."""
        if not self.api_key_env:
            return ""
        key = environ.get(self.api_key_env, "").strip()
        if not key:
            problem = f"openai: the variable {self.api_key_env} is empty or not set"
            raise UserError(problem, "it must hold the key of the server")
        if not re.fullmatch(r"[\x21-\x7e]+", key):
            raise UserError(f"openai: the key in {self.api_key_env} has characters that no header may have")
        return key


_READ = Arguments("openai", OpenAIArguments)
flags = _READ.flags


def arguments_of(given: Mapping[str, Any], _block_size: int | None = None) -> OpenAIArguments:
    """Check them. Raises UserError that names the key."""
    arguments = _READ.read(given, None)
    try:
        words = arguments.words
    except ValueError as error:
        raise _READ.wrong("cmd", f"{error}") from None
    if not arguments.url and not words:
        raise UserError("engine 'openai' needs a URL", f"{_EXAMPLE}; or the argument cmd, which starts a server")
    if PORT in arguments.url and not words:
        raise _READ.wrong("url", f"{PORT} belongs to cmd")
    _check_url(arguments.at(1).url)
    return arguments


def _check_url(text: str) -> None:
    try:
        url = urlsplit(text)
        good = url.scheme in ("http", "https") and bool(url.hostname) and not (url.query or url.fragment)
        good = good and url.port != 0  # reading the port checks it
    except ValueError:
        good = False
    if not good:
        raise _READ.wrong("url", f"{text!r} is no http or https address", f"{_EXAMPLE}; ")
    if url.username or url.password:
        raise _READ.wrong("url", "it holds a password", "put the key into a variable that api_key_env names; ")
