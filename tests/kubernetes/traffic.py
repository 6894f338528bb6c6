"""Clients of the frontends that ask all the time, while something happens to the pods."""

import http.client
import threading
import time
from collections.abc import Mapping
from typing import Self

from .cluster import Cluster


class Traffic:
    """One client for each text, which asks any ready frontend again and again; `wanted`: answers by text.

    The block begins when each client has a stream open. Its end waits for the streams that are open, and is an
    AssertionError where one has failed or has another text.
    """

    def __init__(self, cluster: Cluster, wanted: Mapping[str, str], tokens: int) -> None:
        self._cluster, self._wanted, self._tokens = cluster, wanted, tokens
        self.answers = self.elsewhere = 0
        self.errors: list[str] = []
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._opened = threading.Barrier(len(wanted) + 1, timeout=60)
        self._threads = [threading.Thread(target=self._client, args=each, daemon=True) for each in enumerate(wanted)]

    def __enter__(self) -> Self:
        for one in self._threads:
            one.start()
        self._opened.wait()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._ended.set()
        for one in self._threads:
            one.join(120)
        assert kind is not None or not self.errors, f"{len(self.errors)} failed, {self.answers} not: {self.errors[:3]}"
        assert kind is not None or not any(one.is_alive() for one in self._threads), "a stream has no end"

    def _client(self, number: int, text: str) -> None:
        first = True
        try:
            while first or not self._ended.is_set():
                first = self._ask(number, text, first)
        except Exception as error:
            self._failed(f"{text}: {error!r}")
            self._opened.abort()

    def _ask(self, number: int, text: str, first: bool) -> bool:
        """Ask once; returns whether the first stream is still to be opened."""
        fronts = [*self._cluster.ready("frontend").values()]
        front, begun = fronts[number % len(fronts)], time.monotonic()
        try:
            stream = self._cluster.stream(front, text, max_tokens=self._tokens)
        except (OSError, http.client.HTTPException):
            if front in self._cluster.ready("frontend").values():
                raise
            self._other()  # a service would name another pod
            return first
        if stream.status == 503:  # a frontend that ends takes no new request
            self._other()
            return first
        if first:
            self._opened.wait()
        stream.read()
        if (stream.error, stream.finish, stream.text) != (None, "length", self._wanted[text]):
            known = f"{stream.error}, {stream.finish}, {len(stream.text)} of {len(self._wanted[text])} characters"
            self._failed(f"{text} at {front} after {time.monotonic() - begun:.1f} s: {known}")
        with self._lock:
            self.answers += 1
        return False

    def _other(self) -> None:
        with self._lock:
            self.elsewhere += 1
        time.sleep(0.2)

    def _failed(self, what: str) -> None:
        with self._lock:
            self.errors.append(what)
