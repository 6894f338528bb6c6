"""What an operator can decide about the HTTP server: the keys of the frontend's section in a config file."""

import ipaddress
import os
import re
import ssl
import stat
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from dynamod.extension.settings import options
from dynamod.message.discovery import ReasoningField
from dynamod.message.errors import UserError
from dynamod.message.tls import TlsFiles, server_context

METRICS_PREFIX = "dynamo_frontend"
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s*?#]+")
STREAMED = ("chat", "responses", "messages")
"""APIs whose streams can have the arguments of tool calls in pieces."""
TRUE = ("1", "true", "yes", "on")

Seconds = Annotated[float, Meta(ge=0)]
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class FrontendSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The OpenAI frontend. Times are seconds; 0 switches a thing off."""

    SECTION: ClassVar = "frontend"
    host: Annotated[
        str | list[str],
        Meta(
            description="addresses or names to listen at; localhost: 127.0.0.1 and ::1; 0.0.0.0: all of IPv4; ::: all"
        ),
    ] = "localhost"
    port: Annotated[int, Meta(ge=0, le=65535, description="port to listen on; 0 takes a free one")] = 8000
    served_model_name: Annotated[str, Meta(description="accepted for old files; the worker names the model")] = ""
    endpoint: Annotated[str, Meta(description="accepted for old files, like dynamo.Processor.chat/completions")] = ""
    body_limit_mb: Annotated[float, Meta(gt=0, description="largest request body")] = 45.0
    body_min_rate: Annotated[
        float,
        Meta(ge=0, description="bytes per second that a request's body comes with on average, after 60 s; 0: none"),
    ] = 1000.0
    bodies_limit_mb: Annotated[
        float, Meta(gt=0, description="largest sum of the bodies in work; those below 64 kB do not count")
    ] = 512.0
    api_keys: Annotated[str, Meta(description="comma separated keys; clients send one as Bearer token")] = ""
    api_key_file: Annotated[str, Meta(description="file with one key per line")] = ""
    client_keys_file: Annotated[
        str, Meta(description="YAML or JSON: a list of keys with names and limits; read again when it changes")
    ] = ""
    guard_status: Annotated[bool, Meta(description="/health, /metrics, /openapi.json and /docs ask for a key too")] = (
        False
    )
    allowed_origins: Annotated[
        str | list[str],
        Meta(description="origins whose pages in browsers may ask, like https://example.org; * for all"),
    ] = ""
    trusted_proxies: Annotated[
        str | list[str],
        Meta(description="addresses or networks of proxies whose X-Forwarded-For names the client, like 10.0.0.0/8"),
    ] = ""
    unknown_fields: Literal["ignore", "reject"] = "ignore"
    per_request_metrics: Annotated[
        bool, Meta(description="answers of chats and completions have `metrics`: how long they took")
    ] = False
    reasoning_field_name: Annotated[
        ReasoningField,
        Meta(description="member of chat answers that has the reasoning, where the model's card has none"),
    ] = "reasoning_content"
    completion_max_tokens: Annotated[
        int, Meta(ge=0, le=2**31 - 1, description="max_tokens of completions that say none; 0: no limit")
    ] = 16
    stream_tool_arguments: Annotated[
        str | list[str],
        Meta(
            description="APIs whose streams have the arguments of tool calls in pieces as the model writes them: "
            "chat, responses, messages, or none"
        ),
    ] = "responses,messages"
    malformed_tool_calls: Annotated[
        Literal["arguments", "content"],
        Meta(
            description="what the model writes as a tool call without being one: a call whose arguments are the text, "
            "or content, for which no arguments are streamed"
        ),
    ] = "arguments"
    unenforced_tool_choice: Annotated[
        Literal["ask", "refuse"],
        Meta(
            description="`tool_choice` that an engine without grammars cannot enforce: the model is asked, and a "
            "header of the answer says so; or such requests are refused"
        ),
    ] = "ask"
    ignore_unsupported_fields: Annotated[
        bool,
        Meta(description="fields of requests that are known and not served are left out, not refused"),
    ] = False
    overload_status: Annotated[
        int, Meta(ge=400, le=599, description="HTTP status when no worker can take a request")
    ] = 503
    tls_cert_path: str = ""
    tls_key_path: str = ""
    tls_client_ca_cert_path: Annotated[
        str, Meta(description="PEM file: only clients with a certificate of these authorities are let in; needs TLS")
    ] = ""
    client_timeout: Annotated[Seconds, Meta(description="seconds that a client may read nothing; 0: no limit")] = 300.0
    keep_alive: Annotated[Seconds, Meta(description="seconds between SSE comments on a silent stream")] = 0.0
    request_timeout: Annotated[Seconds, Meta(description="seconds for a whole request")] = 0.0
    metrics_prefix: Annotated[str, Meta(description="what NVIDIA Dynamo's metric names begin with")] = METRICS_PREFIX
    force_include_usage: Annotated[bool, Meta(description="usage at the end of every stream")] = False

    def __post_init__(self) -> None:
        if bool(self.tls_cert_path) != bool(self.tls_key_path):
            raise UserError("TLS needs a certificate and a key", "give both files")
        if self.tls_client_ca_cert_path and not self.tls_cert_path:
            hint = "give tls_cert_path and tls_key_path too"
            raise UserError("tls_client_ca_cert_path: certificates of clients need TLS", hint)
        for origin in self.origins:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise UserError(
                    f"allowed_origins: {origin!r} is no origin", "write https://example.org, http://localhost:3000 or *"
                )

        for word in self.streamed_arguments:
            if word not in STREAMED:
                hint = f"write some of {', '.join(STREAMED)}, or none"
                raise UserError(f"stream_tool_arguments: {word!r} is no API", hint)
        _ = self.proxies

    def __repr__(self) -> str:
        return f"FrontendSettings({self.host}:{self.port})"  # a log must not show the keys

    @property
    def body_limit(self) -> int:
        """Largest request body in bytes."""
        return int(self.body_limit_mb * 1024 * 1024)

    @property
    def bodies_limit(self) -> int:
        """Largest sum of all request bodies in bytes; one of the largest size always fits."""
        return max(int(self.bodies_limit_mb * 1024 * 1024), self.body_limit)

    @property
    def origins(self) -> frozenset[str]:
        """`allowed_origins` one by one; as text they are comma separated, or a JSON list as vLLM takes it."""
        return frozenset(_words(self.allowed_origins))

    @property
    def proxies(self) -> "Sequence[Network]":
        """`trusted_proxies` one by one. Raises UserError for what is no address or network."""
        found: list[Network] = []
        for text in _words(self.trusted_proxies):
            try:
                found.append(ipaddress.ip_network(text))
            except ValueError as error:
                hint = "write addresses like 10.0.0.7 or networks like 10.0.0.0/8, as a list or with commas"
                raise UserError(f"trusted_proxies: {error}", hint) from None
        return found

    @property
    def streamed_arguments(self) -> frozenset[str]:
        """`stream_tool_arguments` one by one; as text they are comma separated."""
        return frozenset(_words(self.stream_tool_arguments)) - {"none"}

    @property
    def guarded(self) -> bool:
        """Whether clients have to send a key."""
        return bool(self.api_keys or self.api_key_file or self.client_keys_file)

    def keys(self) -> tuple[str, ...]:
        """The API keys without limits: of the text, and of the file with one per line (`#` begins a comment line).

        Raises UserError when the file cannot be read or holds no key: an empty key file must not let every client in.
        """
        keys = [key for part in self.api_keys.split(",") if (key := part.strip())]
        if file := self.api_key_file:
            check_mode(file)
            try:
                lines = Path(file).read_text(encoding="utf-8").splitlines()
            except (OSError, UnicodeDecodeError) as error:
                raise UserError(f"cannot read the API key file {file}: {error}") from error
            found = [key for line in lines if (key := line.strip()) and not key.startswith("#")]
            if not found:
                raise UserError(f"the API key file {file} holds no key", "write one key per line")
            keys += found
        return tuple(keys)

    def tls(self) -> ssl.SSLContext | None:
        """What HTTPS is served with; None for HTTP. Raises UserError when the files cannot be used."""
        if not self.tls_cert_path:
            return None
        return server_context(TlsFiles(self.tls_cert_path, self.tls_key_path, self.tls_client_ca_cert_path))


def _words(given: str | list[str]) -> list[str]:
    """A list of words; as text they are comma separated, or a JSON list."""
    if isinstance(given, str):
        given = given.strip().removeprefix("[").removesuffix("]").replace('"', "").split(",")
    return [word for one in given if (word := one.strip())]


def check_mode(file: str) -> int:
    """The mode of a file of keys; 0 when it cannot be had. Raises UserError when every user may write the file."""
    try:
        mode = stat.S_IMODE(os.stat(file).st_mode)
    except OSError:
        return 0  # to read it fails with the reason
    if mode & stat.S_IWOTH:
        raise UserError(f"every user may write the key file {file} (mode {mode:04o})", f"chmod 600 {file}")
    return mode


def from_environment(environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The settings that environment variables give, NVIDIA Dynamo's and ours. Raises UserError.

    DYN_HTTP_BODY_LIMIT_MB, DYN_HTTP_BODIES_LIMIT_MB, DYN_HTTP_OVERLOAD_STATUS_CODE,
    DYN_HTTP_SSE_KEEP_ALIVE_INTERVAL_MS, DYN_HTTP_ALLOWED_ORIGINS (comma separated), DYN_HTTP_GUARD_STATUS,
    DYN_HTTP_TRUSTED_PROXIES (comma separated), DYN_STREAM_TOOL_ARGUMENTS (comma separated),
    DYN_MALFORMED_TOOL_CALLS, DYN_UNENFORCED_TOOL_CHOICE,
    DYN_ENABLE_FORCE_INCLUDE_USAGE, DYN_METRICS_PREFIX, DYN_API_KEYS (comma separated),
    DYN_API_KEY_FILE, DYN_CLIENT_KEYS_FILE. Settings of features may have variables, too.
    """
    env = os.environ if environ is None else environ
    values: dict[str, Any] = {"metrics_prefix": metrics_prefix(env)}
    added = {one.variable: (key, _READ.get(one.metavar, str)) for key, one in options("frontend").items()}
    for name, (key, read) in (*VARIABLES.items(), *added.items()):
        if text := env.get(name):
            try:
                values[key] = read(text)
            except ValueError as error:
                raise UserError(f"{name} is {text!r}, not a number") from error
    return values


def _true(text: str) -> bool:
    return text.strip().lower() in TRUE


_READ: dict[str, Callable[[str], Any]] = {"BOOL": _true, "N": int}
"""By the metavar of an option."""
VARIABLES: dict[str, tuple[str, Callable[[str], Any]]] = {
    "DYN_HTTP_BODY_LIMIT_MB": ("body_limit_mb", float),
    "DYN_HTTP_OVERLOAD_STATUS_CODE": ("overload_status", lambda text: int(float(text))),
    "DYN_HTTP_SSE_KEEP_ALIVE_INTERVAL_MS": ("keep_alive", lambda text: float(text) / 1000),
    "DYN_HTTP_BODIES_LIMIT_MB": ("bodies_limit_mb", float),
    "DYN_HTTP_ALLOWED_ORIGINS": ("allowed_origins", str),
    "DYN_HTTP_TRUSTED_PROXIES": ("trusted_proxies", str),
    "DYN_STREAM_TOOL_ARGUMENTS": ("stream_tool_arguments", str),
    "DYN_MALFORMED_TOOL_CALLS": ("malformed_tool_calls", str),
    "DYN_UNENFORCED_TOOL_CHOICE": ("unenforced_tool_choice", str),
    "DYN_HTTP_GUARD_STATUS": ("guard_status", _true),
    "DYN_ENABLE_FORCE_INCLUDE_USAGE": ("force_include_usage", _true),
    "DYN_API_KEYS": ("api_keys", str),
    "DYN_API_KEY_FILE": ("api_key_file", str),
    "DYN_CLIENT_KEYS_FILE": ("client_keys_file", str),
}
"""Per environment variable the key that it gives when the section does not, and how its text is read."""


def metrics_prefix(environ: Mapping[str, str] | None = None) -> str:
    """What NVIDIA Dynamo's metric names begin with."""
    text = (os.environ if environ is None else environ).get("DYN_METRICS_PREFIX")
    return metric_name(text) if text else METRICS_PREFIX


def metric_name(text: str) -> str:
    """Make a legal prefix of metric names from what an operator wrote."""
    name = re.sub(r"[^a-zA-Z0-9_]", "_", text.strip()).strip("_")
    if not name:
        return METRICS_PREFIX
    return f"_{name}" if name[0].isdigit() else name
