"""How many requests begin in one turn of the event loop."""

import asyncio
from collections import deque
from time import perf_counter

from .outlet import Outlets

TURN = 0.01
"""Seconds for the requests that begin in one turn. A request that takes longer begins alone."""
_SHARE = 2  # how many times as long as all other work between two turns a turn may take, where that is more
_FIRST = 4  # requests in the first turn, whose cost is not known


class Turns:
    """Lets requests begin in the order of their arrival, as many in each turn as take about `TURN` seconds.

    Requests that arrive together would all begin in one turn, and the loop would read and write nothing until the last
    of them has begun: open streams would wait, and workers would get the first request with the last. In a loop that is
    busy with open streams, requests that wait get two thirds of its time. Frames that wait in
    `outlets` leave before requests begin.
    """

    def __init__(self, outlets: Outlets) -> None:
        self._outlets = outlets
        self._width = _FIRST  # requests that may begin in a turn
        self._count = 0  # that have begun in this turn
        self._since = 0.0  # when the first of them did
        self._ended = 0.0  # when the last turn ended
        self._others = 0.0  # seconds of other work between the last two turns
        self._waiting: deque[asyncio.Future[None]] = deque()

    def begin(self) -> "asyncio.Future[None] | None":
        """What a request has to wait for before it begins; None: it may begin now."""
        if self._waiting or self._count >= self._width:
            future = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            return future
        self._count += 1
        if self._count == 1:
            if self._outlets.waiting:
                self._outlets.send()
            self._since = perf_counter()
            self._others = 0.0
            asyncio.get_running_loop().call_soon(self._end)
        return None

    def _start(self) -> None:
        """The requests that waited begin now, before all that the loop has to do later."""
        if self._outlets.waiting:
            self._outlets.send()
        self._since = perf_counter()
        self._others = self._since - self._ended

    def _end(self) -> None:
        """The turn is over: requests of the next one may begin."""
        self._ended = perf_counter()
        took = max(self._ended - self._since, 1e-6)
        self._width = max(int(self._count * max(TURN, _SHARE * self._others) / took), 1)
        self._count = 0
        loop = asyncio.get_running_loop()
        if self._waiting:
            loop.call_soon(self._start)
        while self._waiting and self._count < self._width:
            future = self._waiting.popleft()
            if not future.done():  # else its client has left
                future.set_result(None)
                self._count += 1
        if self._count:
            loop.call_soon(self._end)
