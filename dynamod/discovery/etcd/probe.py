"""Asking one etcd member for its identity, over plain HTTP: needs neither credentials nor the client library."""

import asyncio
import ssl
import time
from email.utils import parsedate_to_datetime
from typing import Any

from dynamod.message.errors import UserError

from .settings import Endpoint, EtcdSettings


async def probe(endpoint: str, timeout: float = 2.0, settings: EtcdSettings | None = None) -> dict[str, Any] | None:
    """What stands at an endpoint (see Endpoint.parse): `version`, `cluster_version`, `healthy`, `seconds` it took, and
    `skew`, by how many seconds its clock is ahead of ours (to a second; None when it does not say).

    None when no etcd member answers there within `timeout` seconds. `settings` give the files for TLS. Raises
    UserError for what is no endpoint. Sources: etcd's /version and /health.
    """
    import aiohttp

    files = settings and (settings.ca, settings.client_cert, settings.client_key)
    where = Endpoint.parse(endpoint, tls=bool(files and any(files)))
    begin = time.monotonic()
    try:
        context: ssl.SSLContext | bool = True
        if where.tls and settings is not None:
            context = settings.tls_context()
            context.verify_flags &= (
                ~ssl.VERIFY_X509_STRICT
            )  # from Python 3.13 on; the nodes' own client is not so strict
        limits = aiohttp.ClientTimeout(total=timeout)
        async with aiohttp.ClientSession(timeout=limits) as session, asyncio.timeout(timeout):
            async with session.get(f"{where}/version", ssl=context) as answer:
                version = await answer.json(content_type=None)
            async with session.get(f"{where}/health", ssl=context) as answer:
                health = await answer.json(content_type=None)
                date = answer.headers.get("Date", "")
        return {
            "endpoint": str(where),
            "version": str(version["etcdserver"]),
            "cluster_version": str(version["etcdcluster"]),
            "healthy": str(health.get("health")) == "true",
            "seconds": time.monotonic() - begin,
            "skew": _skew(date),
        }
    except (OSError, UserError, TimeoutError, aiohttp.ClientError, ValueError, KeyError, TypeError, AttributeError):
        return None


def advised_against(version: str) -> str:
    """Why a version of etcd should not be used in production; empty when it may.

    Source: etcd's announcement of a data inconsistency in 3.5.0 to 3.5.2, which a crash under load may cause.
    """
    if version.partition("-")[0] not in ("3.5.0", "3.5.1", "3.5.2"):
        return ""
    return f"etcd {version} may lose consistency when a member crashes; its authors advise 3.5.3 or later"


def _skew(date: str) -> float | None:
    try:
        return parsedate_to_datetime(date).timestamp() - time.time()
    except (TypeError, ValueError):
        return None
