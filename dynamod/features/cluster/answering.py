"""Commands of other nodes: taken from the transport, run as those of the control socket, and answered."""

import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import msgspec

from dynamod import __version__
from dynamod.control.refusals import Refusal, refusal_of
from dynamod.message.errors import DynamodError
from dynamod.message.protocol import PROTOCOL
from dynamod.message.worker import Call, Request
from dynamod.transport.base import Reply, Spawn

from .messages import Greeting, Order, Outcome

log = logging.getLogger("dynamod.daemon")

AT_ONCE = 64
"""Commands of other nodes that run at the same time."""

Run = Callable[..., Awaitable[Any]]
"""Runs a command with its arguments for a node: `control.commands.Commands.call`. `signed=True`: the node signed it."""


class Answering:
    """`receive` is what the transports call for each command. `node`: the name of this node."""

    def __init__(self, node: str, run: Run, spawn: Spawn) -> None:
        self._node, self._run, self._spawn = node, run, spawn
        self._running = 0

    def receive(self, endpoint: str, request: Request, reply: Reply) -> None:
        """Greet, and begin a command. See transport.base.Receive."""
        try:
            if not isinstance(request, Call):
                raise TypeError(f"the daemon takes commands, not {type(request).__name__}")
            order = msgspec.convert(request.payload, Order)
        except (TypeError, msgspec.ValidationError) as error:
            reply.failed("BadRequest", str(error))
            return
        reply.accepted()
        greeting = Greeting(node=self._node, version=__version__, protocol=PROTOCOL, clock=time.time())
        reply.items((msgspec.to_builtins(greeting),))
        if self._running >= AT_ONCE:
            busy = f"{self._node} answers {AT_ONCE} commands of other nodes"
            self._end(reply, Outcome(error=Refusal(503, busy, "try again")))
            return
        self._running += 1
        task = self._spawn(self._answer(order, reply), f"{order.command:.40} for {order.sender:.40}")
        task.add_done_callback(self._ended)
        reply.on_cancel(task.cancel)

    def _ended(self, _task: object) -> None:
        self._running -= 1

    async def _answer(self, order: Order, reply: Reply) -> None:
        run, sender = self._run, order.sender or "another node"
        if reply.signer:
            run, sender = partial(run, signed=True), reply.signer
        try:
            outcome = Outcome(answer=await run(order.command, order.arguments, sender))
        except Exception as error:
            outcome = Outcome(error=refusal_of(error))
            if not isinstance(error, (DynamodError, TimeoutError)):
                log.exception("%s for node %s failed", order.command, order.sender)
        self._end(reply, outcome)

    @staticmethod
    def _end(reply: Reply, outcome: Outcome) -> None:
        reply.items((msgspec.to_builtins(outcome),), "stop")
