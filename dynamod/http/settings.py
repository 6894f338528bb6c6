"""What an operator can decide about the HTTP server."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from dynamod.message.errors import UserError

METRICS_PREFIX = "dynamo_frontend"


@dataclass(frozen=True, kw_only=True)
class FrontendSettings:
    """Settings of one server; `port` 0 takes a free one. Times are seconds, 0 or None switches a thing off."""

    host: str = "0.0.0.0"
    port: int = 8000
    body_limit_mb: float = 45.0
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    unknown_fields: Literal["ignore", "reject"] = "ignore"
    overload_status: int = 503
    tls_cert: str = ""
    tls_key: str = ""
    keep_alive: float = 0.0  # interval of SSE comments that keep proxies from closing a silent stream
    total_timeout: float | None = None
    client_timeout: float = 300.0  # a client that reads nothing for so long is disconnected
    metrics_prefix: str = METRICS_PREFIX
    force_include_usage: bool = False
    backlog: int = 4096

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise UserError(f"port {self.port} is not between 0 and 65535")
        if not self.body_limit_mb > 0:
            raise UserError(f"body limit of {self.body_limit_mb} MB is not above 0")
        if self.unknown_fields not in ("ignore", "reject"):
            raise UserError(f"unknown_fields is {self.unknown_fields!r}", "use ignore or reject")
        if not 400 <= self.overload_status <= 599:
            raise UserError(f"overload status {self.overload_status} is no HTTP error", "use 503, 529 or 429")
        if bool(self.tls_cert) != bool(self.tls_key):
            raise UserError("TLS needs a certificate and a key", "give both files")
        if (
            self.keep_alive < 0
            or self.client_timeout < 0
            or (self.total_timeout is not None and self.total_timeout < 0)
        ):
            raise UserError("a time of the frontend is negative")

    @property
    def body_limit(self) -> int:
        """Largest request body in bytes."""
        return int(self.body_limit_mb * 1024 * 1024)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None, **overrides: Any) -> "FrontendSettings":
        """Defaults, then the original's environment variables, then `overrides` that are not None.

        DYN_HTTP_BODY_LIMIT_MB, DYN_HTTP_OVERLOAD_STATUS_CODE, DYN_HTTP_SSE_KEEP_ALIVE_INTERVAL_MS,
        DYN_ENABLE_FORCE_INCLUDE_USAGE, DYN_METRICS_PREFIX, DYN_API_KEYS (comma separated), DYN_API_KEY_FILE.
        """
        env = os.environ if environ is None else environ
        values: dict[str, Any] = {}
        if text := env.get("DYN_HTTP_BODY_LIMIT_MB"):
            values["body_limit_mb"] = _number("DYN_HTTP_BODY_LIMIT_MB", text)
        if text := env.get("DYN_HTTP_OVERLOAD_STATUS_CODE"):
            values["overload_status"] = int(_number("DYN_HTTP_OVERLOAD_STATUS_CODE", text))
        if text := env.get("DYN_HTTP_SSE_KEEP_ALIVE_INTERVAL_MS"):
            values["keep_alive"] = _number("DYN_HTTP_SSE_KEEP_ALIVE_INTERVAL_MS", text) / 1000
        if text := env.get("DYN_ENABLE_FORCE_INCLUDE_USAGE"):
            values["force_include_usage"] = text.strip().lower() in ("1", "true", "yes", "on")
        values["metrics_prefix"] = metrics_prefix(env)
        if keys := read_keys(text=env.get("DYN_API_KEYS", ""), file=env.get("DYN_API_KEY_FILE", "")):
            values["api_keys"] = keys
        return cls(**values | {name: value for name, value in overrides.items() if value is not None})


def metrics_prefix(environ: Mapping[str, str] | None = None) -> str:
    """What names of the original's metrics begin with."""
    text = (os.environ if environ is None else environ).get("DYN_METRICS_PREFIX")
    return metric_name(text) if text else METRICS_PREFIX


def read_keys(text: str = "", file: str = "") -> tuple[str, ...]:
    """API keys from comma separated text and from a file with one per line (`#` begins a comment line).

    Raises UserError when the file cannot be read or holds no key: an empty key file must not let everybody in.
    """
    keys = [key for part in text.split(",") if (key := part.strip())]
    if file:
        try:
            lines = Path(file).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"cannot read the API key file {file}: {error}") from error
        found = [key for line in lines if (key := line.strip()) and not key.startswith("#")]
        if not found:
            raise UserError(f"the API key file {file} holds no key", "write one key per line")
        keys += found
    return tuple(keys)


def metric_name(text: str) -> str:
    """Make a legal prefix of metric names from what an operator wrote."""
    name = re.sub(r"[^a-zA-Z0-9_]", "_", text.strip()).strip("_")
    if not name:
        return METRICS_PREFIX
    return f"_{name}" if name[0].isdigit() else name


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise UserError(f"{name} is {text!r}, not a number") from error
