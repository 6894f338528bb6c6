"""What crashes of workers say about one request: how many workers ended with it, and whether it is tried alone."""

from dynamod.message.discovery import Instance
from dynamod.message.errors import EngineFailed
from dynamod.message.worker import Request
from dynamod.router.placement import Placement

from .attempt import Break
from .base import Suspicions

PASSED_AFTER = 1.0
"""Seconds behind the first token of a request that is tried alone, for slow engines; see `PASSED`."""
PASS_LOOK = 0.02

CAUSE = 0.25
"""Seconds for a daemon to say how a process of its node ended; some milliseconds are usual. Of a prefill worker on any
node: the worker that answers may notice its end first."""

TRIAL_PAUSE = 0.05
"""Seconds until an instance is asked again that tries the request of another ingress process."""

MAX_DEATHS = 2
"""Workers that may crash or hang with a request before it ends."""


class Trial:
    """The part of one request in crashes of its workers.

    `suspect`: whether the next placement is alone at its instance. `deaths`: workers that crashed or hung with the
    request, except those for which another request was convicted. A request that is like one of a crash begins as a
    suspect with one death. `ever`: whether the request was a suspect at any time.
    """

    __slots__ = ("_ended", "_request", "_suspicions", "deaths", "ever", "suspect")

    def __init__(self, suspicions: Suspicions, request: Request, suspect: bool) -> None:
        self._suspicions, self._request = suspicions, request
        self.suspect = self.ever = suspect
        self.deaths = int(suspect)
        self._ended: set[int] = set()  # instances whose end was judged

    def placed(self, placement: Placement) -> None:
        """The request has a place. One that is not alone means that another request was convicted meanwhile."""
        if self.suspect and not placement.alone:
            self.suspect, self.deaths = False, 0

    def passed(self) -> None:
        """An instance has lived through the request, alone, or the answer is complete."""
        if self.ever:
            self._suspicions.acquit(self._request)
        self.suspect, self.deaths = False, 0

    def about_prompt(self, broken: Break) -> bool:
        """Whether an attempt may have broken because the prefill worker crashed, before a token came."""
        return broken.prompt or (broken.displaced and not self.suspect)

    async def cause(self, instance: Instance | None, timeout: float | None) -> str:
        """Why `instance` crashed or hung; empty when it did not. `None`: an instance that computed nothing.

        `timeout`: as for `Suspicions.cause`.
        """
        return await self._suspicions.cause(instance, timeout) if instance is not None else ""

    def died(
        self, instance: Instance, cause: str, at: Placement | None, *, alone: bool = False, begun: bool = True
    ) -> None:
        """`instance` crashed or hung while it had the request. `at`: where the request is placed.

        `alone`: no other request was there. `begun`: the instance had begun with the request, as far as is known.
        Raises PoisonRequest for a request that was alone, EngineFailed for one whose second worker this is.
        """
        if at is not None and alone:
            at.guilty = True
            raise self._suspicions.convict(self._request, cause)
        self._suspicions.suspect(self._request)
        self.suspect = self.ever = True
        if not begun or instance.instance_id in self._ended:
            return
        self._ended.add(instance.instance_id)
        self.deaths += 1
        if self.deaths >= MAX_DEATHS:
            raise EngineFailed(f"{cause}; it is the second worker that ended with this request")
