"""Where NATS is and how to speak to it, from the environment variables that NVIDIA Dynamo reads."""

import importlib.util
import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

from dynamod.message.errors import UserError
from dynamod.transport.credentials import client_context, readable_file, tls_files, user_and_password

_TLS = ("NATS_TLS_CA", "NATS_TLS_CERT", "NATS_TLS_KEY")
_SERVER = re.compile(
    r"(?:(?P<scheme>nats|tls)://)?(?:(?P<user>[^\s:/@]*)(?::(?P<password>[^\s/@]*))?@)?"
    r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^\s:/@\[\]]+)(?::(?P<port>\d{1,5}))?/?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsSettings:
    """How a process reaches NATS. Times are seconds, sizes bytes.

    `servers` are URLs without credentials. `credentials` names the variables that the credentials came from, for error
    messages. `alive`: how often each end of a link with open streams gives a sign of life; `silence`: how long the
    other end may give none; `patience`: how long a lost connection to NATS is waited for before its links fail; `idle`:
    how long a link without streams is remembered.
    """

    servers: tuple[str, ...]
    tls: bool = False
    username: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    nkey: str = field(default="", repr=False)
    credentials_file: Path | None = None
    credentials: str = ""
    ca: Path | None = None
    client_cert: Path | None = None
    client_key: Path | None = None
    alive: float = 1.0
    silence: float = 3.0
    patience: float = 1.0
    idle: float = 60.0
    connect_timeout: float = 2.0
    queue_bytes: int = 128 * 1024 * 1024
    half_bytes: int = 256 * 1024 * 1024
    pending_messages: int = 64 * 1024
    pending_bytes: int = 128 * 1024 * 1024

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> "NatsSettings | None":
        """Read the variables below; None when NATS_SERVER is not set: then there is no NATS.

        NATS_SERVER (one or several of nats://host:4222, tls://host:4222, comma separated), then the first of
        NATS_AUTH_USERNAME with NATS_AUTH_PASSWORD, NATS_AUTH_TOKEN, NATS_AUTH_NKEY (a seed), NATS_AUTH_CREDENTIALS_FILE
        that is set (NVIDIA Dynamo's order), else the user and password of the first URL that has them; NATS_TLS_CA,
        NATS_TLS_CERT, NATS_TLS_KEY. Raises UserError that names the variable.
        """
        env = os.environ if environ is None else environ
        texts = [part.strip() for part in env.get("NATS_SERVER", "").split(",") if part.strip()]
        if not texts:
            return None
        if importlib.util.find_spec("nats") is None:
            raise UserError("NATS_SERVER is set, but the library nats-py is not installed", "pip install nats-py")
        parsed = [_server(text) for text in texts]
        ca, cert, key = tls_files(env, *_TLS)
        tls = bool(ca or cert) or any(match["scheme"] == "tls" for match in parsed)
        scheme = "tls" if tls else "nats"
        servers = dict.fromkeys(f"{scheme}://{match['host']}:{match['port'] or 4222}" for match in parsed)
        username, password = user_and_password(env, "NATS_AUTH")
        token, nkey = env.get("NATS_AUTH_TOKEN", ""), env.get("NATS_AUTH_NKEY", "").strip()
        file = readable_file(env, "NATS_AUTH_CREDENTIALS_FILE")
        if nkey or file:
            _check_nkeys(nkey)
        names = {
            "NATS_AUTH_USERNAME and NATS_AUTH_PASSWORD": username,
            "NATS_AUTH_TOKEN": token,
            "NATS_AUTH_NKEY": nkey,
            "NATS_AUTH_CREDENTIALS_FILE": file,
        }
        used = next((name for name, value in names.items() if value), "")
        for match in parsed if not used else ():
            if match["user"] and not used:  # as NATS clients read it: a user alone is a token
                used = "the URL in NATS_SERVER"
                if match["password"] is None:
                    token = unquote(match["user"])
                else:
                    username, password = unquote(match["user"]), unquote(match["password"])
        return cls(
            servers=tuple(servers),
            tls=tls,
            username=username,
            password=password,
            token=token,
            nkey=nkey,
            credentials_file=file,
            credentials=used,
            ca=ca,
            client_cert=cert,
            client_key=key,
        )

    def tls_context(self) -> ssl.SSLContext:
        """What TLS connections trust and show. Raises UserError for files that hold no certificate."""
        return client_context(_TLS, self.ca, self.client_cert, self.client_key)


def _server(text: str) -> re.Match[str]:
    match = _SERVER.fullmatch(text)
    if match is None or int(match["port"] or 0) > 65535:
        shown = re.sub(r"//[^/]*@", "//...@", text)  # a mistyped URL may hold a password
        raise UserError(
            f"NATS_SERVER names '{shown}', which is no server",
            "write nats://host:4222 or tls://host:4222, several with commas between them",
        )
    return match


def _check_nkeys(seed: str) -> None:
    """Seeds and credentials files are signed with by a library that nats-py does not bring along."""
    if importlib.util.find_spec("nkeys") is None:
        name = "NATS_AUTH_NKEY" if seed else "NATS_AUTH_CREDENTIALS_FILE"
        raise UserError(f"{name} is set, but the library nkeys is not installed", "pip install nkeys")
    if seed:
        nkeys = importlib.import_module("nkeys")
        try:
            nkeys.from_seed(bytearray(seed.encode())).wipe()
        except Exception:  # the library raises many kinds, none of which may show the seed
            raise UserError("NATS_AUTH_NKEY is no seed of a user key", "it begins with SU") from None
