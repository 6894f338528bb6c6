"""The part of a worker that is asked for another role: one change at a time."""

import asyncio
from typing import Annotated, Any, ClassVar, Self

import msgspec
from msgspec import Meta

from dynamod.message.control import FINISH
from dynamod.message.discovery import ROLES, DisaggregationMode
from dynamod.message.errors import UserError
from dynamod.worker.parts import Question, Role, WorkerContext, WorkerPart


class Switch(Question, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Have this role from now on. The answer is the worker's `Role`, or a UserError.

    `timeout`: seconds that open requests and sessions get to finish. Then the worker ends them, and their senders
    continue at another worker. `expected_epoch`: refuse if the role has changed since.
    """

    name: ClassVar = "switch"

    role: DisaggregationMode
    timeout: Annotated[float, Meta(gt=0)] = FINISH
    expected_epoch: int | None = None

    @classmethod
    def of(cls, arguments: dict[str, Any]) -> Self:
        """From JSON-like arguments. Raises UserError."""
        try:
            return msgspec.convert(arguments, cls)
        except msgspec.ValidationError as error:
            raise UserError(f"no other role: {error}", f"roles: {', '.join(ROLES)}") from None


class RoleSwitch(WorkerPart):
    """Begins changes of the worker's role, and says how they have ended."""

    capabilities = ("role_switch",)

    def __init__(self, context: WorkerContext) -> None:
        super().__init__(context)
        self._task: asyncio.Task[Any] | None = None
        self._next: DisaggregationMode = "aggregated"

    def switch(self, question: Switch) -> asyncio.Future[Any] | UserError | Role:
        """Begin a change, or join the same one. Model and KV cache stay."""
        engine, now, expected = self.context.engine, self.context.role(), question.expected_epoch
        if getattr(self.context.settings, "static", False):
            return UserError("a static worker keeps its role: frontends would not hear of another role")
        if not engine.card().capabilities.role_switch:
            text = f"engine {engine.name}, as it has been started, keeps its role"
            return UserError(text, "restart the worker with another disaggregation mode")
        if expected is not None and expected != now.epoch:
            return UserError(
                f"the role has changed since: its epoch is {now.epoch}, not {expected}", "look at it again"
            )
        if self._task is not None and question.role != self._next:
            return UserError(f"it is about to become {self._next}", "ask again when it is")
        if self._task is None:
            if question.role == now.role:
                return now
            self._next = question.role
            self._task = self.context.spawn(self._change(question), "role")
        return asyncio.shield(self._task)

    questions: ClassVar = {Switch: switch}

    async def _change(self, question: Switch) -> Role | UserError:
        try:
            return await self.context.become(question.role, question.timeout)
        except UserError as error:
            return error
        except OSError as error:
            return UserError(f"it cannot become {question.role}: {error}")
        finally:
            self._task = None

    def drain(self) -> None:
        """The role does not change any more."""
        if self._task is not None:
            self._task.cancel()

    def close(self) -> None:
        """As `drain`."""
        self.drain()
