"""Rows as objects of S3, or of a store that speaks its protocol: each has the rows of one interval, packed."""

import gzip
import importlib
import importlib.util
import os
import socket
import time
import uuid
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from dynamod.message.errors import UserError
from dynamod.message.install import extra_hint

TRY_S = 30.0
"""Seconds of one attempt to put an object."""
PUT_S = 90.0
"""Seconds until an object is given up, with all attempts."""
AGAIN = 2
"""Further attempts after one that the network or the store has failed."""
ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
"""Variables that the library reads for the place of a store that is not Amazon's."""


class S3Rows:
    """A `observe.line_writer.LineFile`: each call puts an object into a bucket. Used by one thread at a time.

    Names are NVIDIA Dynamo's: `PREFIX/date=YYYY-MM-DD/hour=HH/MMSS-NUMBER-HOST-RUN.jsonl.gz`, in UTC. Credentials, and
    the region where none is given, come from the variables and services of AWS. Raises UserError for settings that
    cannot be used.
    """

    def __init__(self, bucket: str, region: str = "", prefix: str = "") -> None:
        if not bucket:
            what = "request_trace_s3_bucket: the sink s3 needs the name of a bucket"
            raise UserError(what, "set it, or DYN_REQUEST_TRACE_S3_BUCKET")
        if importlib.util.find_spec("obstore") is None:
            raise UserError("request_trace_sinks: s3: the package obstore is not installed", extra_hint("trace"))
        self.failure = ""
        self._bucket, self._region, self._prefix = bucket, region, prefix.strip("/")
        self._writer = f"{os.environ.get('POD_NAME') or socket.gethostname()}-{uuid.uuid4().hex}"
        self._number = 0
        self._store: Any = None

    @property
    def path(self) -> Path:
        """For the log."""
        return Path(f"s3:{self._bucket}", self._prefix)

    def append(self, lines: Sequence[bytes]) -> int:
        """Put rows. Returns how many the store has: all or none."""
        self.failure = ""
        name, self._number = self._name(time.time()), self._number + 1
        try:
            if self._store is None:
                self._store = self._opened()
            packed = gzip.compress(b"".join(lines), 6)
            self._store.put(name, packed, attributes={"Content-Type": "application/gzip"}, use_multipart=False)
        except Exception as error:  # whatever the library raises, the rows count as dropped
            self.failure = _plain(error)
            return 0
        return len(lines)

    def close(self) -> None:
        """Nothing is open between two objects."""

    def _name(self, now: float) -> str:
        at = time.strftime("date=%Y-%m-%d/hour=%H/%M%S", time.gmtime(now))
        return f"{self._prefix and f'{self._prefix}/'}{at}-{self._number:04d}-{self._writer}.jsonl.gz"

    def _opened(self) -> Any:
        """The library's client of the bucket; importing the library takes its time, which is the thread's."""
        store = importlib.import_module("obstore.store").S3Store
        plain = any(os.environ.get(name, "").startswith("http://") for name in ENDPOINTS)
        return store(
            self._bucket,
            **({"region": self._region} if self._region else {}),
            client_options={"timeout": timedelta(seconds=TRY_S), **({"allow_http": True} if plain else {})},
            retry_config={"max_retries": AGAIN, "retry_timeout": timedelta(seconds=PUT_S)},
        )


def _plain(error: Exception) -> str:
    """The first line of an error: the library's have their whole insides below."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:500]
