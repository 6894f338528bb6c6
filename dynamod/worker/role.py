"""The role of a worker, which part of requests it is for, and how it changes while the worker runs."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from dynamod.message.control import FINISH
from dynamod.message.discovery import ROLES, DisaggregationMode
from dynamod.message.errors import UserError
from dynamod.transport.base import Spawn


class Switch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Message to a worker: have this role from now on. The reply is its `Role`, or a UserError.

    `timeout`: seconds that open requests and sessions get to finish. Then the worker ends them, and their senders
    continue at another worker. `expected_epoch`: refuse if the role has changed since.
    """

    role: DisaggregationMode
    timeout: Annotated[float, Meta(gt=0)] = FINISH
    expected_epoch: int | None = None

    @classmethod
    def of(cls, arguments: dict[str, Any]) -> "Switch":
        """From JSON-like arguments. Raises UserError."""
        try:
            return msgspec.convert(arguments, cls)
        except msgspec.ValidationError as error:
            raise UserError(f"no other role: {error}", f"roles: {', '.join(ROLES)}") from None


class Role(msgspec.Struct, frozen=True):
    """What a worker is for. `epoch`: how often that has changed."""

    role: DisaggregationMode
    epoch: int = 0


class RoleSwitch:
    """One change at a time.

    `leave(role, timeout)` ends what is open before the worker gets a role, `become(role)` begins it; `become` may raise
    OSError or UserError, with the worker in its old role.
    """

    def __init__(
        self,
        leave: Callable[[DisaggregationMode, float], Awaitable[None]],
        become: Callable[[DisaggregationMode], Awaitable[None]],
    ) -> None:
        self._leave, self._become = leave, become
        self._task: asyncio.Task[Any] | None = None
        self._next: DisaggregationMode = "aggregated"
        self.epoch = 0

    def begin(self, now: DisaggregationMode, message: Switch, spawn: Spawn) -> asyncio.Future[Any] | UserError | Role:
        """Begin a change, or join the same one. `now`: the role."""
        expected, epoch = message.expected_epoch, self.epoch
        if expected is not None and expected != epoch:
            return UserError(f"the role has changed since: its epoch is {epoch}, not {expected}", "look at it again")
        if self._task is not None and message.role != self._next:
            return UserError(f"it is about to become {self._next}", "ask again when it is")
        if self._task is None:
            if message.role == now:
                return Role(now, epoch)
            self._next = message.role
            self._task = spawn(self._change(message), "role")
        return asyncio.shield(self._task)

    def stop(self) -> None:
        """The worker ends: its role does not change any more."""
        if self._task is not None:
            self._task.cancel()

    async def _change(self, message: Switch) -> Role | UserError:
        try:
            await self._leave(message.role, message.timeout)
            await self._become(message.role)
        except UserError as error:
            return error
        except OSError as error:
            return UserError(f"it cannot become {message.role}: {error}")
        finally:
            self._task = None
        self.epoch += 1
        return Role(message.role, self.epoch)
