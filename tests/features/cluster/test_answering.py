"""Commands that other nodes send: the greeting comes first, then an answer or a refusal."""

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any

import pytest

from dynamod.control.refusals import UnknownCommand
from dynamod.features.cluster import answering
from dynamod.features.cluster.answering import Answering
from dynamod.message.errors import UserError
from dynamod.message.ingress import Accepted, Failed, Items
from dynamod.message.worker import Call, Describe, Request
from dynamod.transport.base import Reply


class Mail:
    """Where replies put their deltas."""

    def __init__(self) -> None:
        self.streams: dict[int, Reply] = {}
        self.origin = object()
        self.deltas: list[Any] = []

    def add(self, delta: Any) -> None:
        self.deltas.append(delta)

    def backlog(self, stream: int) -> int:
        return 0

    @property
    def items(self) -> list[Any]:
        return [item for delta in self.deltas if isinstance(delta, Items) for item in delta.items]


class Far:
    """An answering node whose commands are those of a test."""

    def __init__(self) -> None:
        self.tasks: list[asyncio.Task[Any]] = []
        self.ran: list[Any] = []
        self.open = asyncio.Event()
        self.answering = Answering("two", self._run, self._spawn)

    def _spawn(self, work: Coroutine[Any, Any, Any], _name: str) -> asyncio.Task[Any]:
        self.tasks.append(task := asyncio.get_running_loop().create_task(work))
        return task

    async def _run(self, command: str, arguments: Mapping[str, Any], sender: str) -> Any:
        self.ran.append((command, dict(arguments), sender))
        if command == "wait":
            await self.open.wait()
        if command == "refuse":
            raise UserError("not here", "go elsewhere")
        if command == "nobody":
            raise UnknownCommand("unknown command", "see /v1")
        if command == "fail":
            raise RuntimeError("broken")
        return {"rows": [1]}

    def take(self, request: Request) -> tuple[Mail, Reply]:
        mail = Mail()
        reply = Reply(mail, 1)
        self.answering.receive("dynamod.daemon.commands", request, reply)
        return mail, reply

    def order(self, command: str, **more: Any) -> tuple[Mail, Reply]:
        return self.take(Call("x", {"command": command, "sender": "one", **more}))

    async def settle(self) -> None:
        await asyncio.gather(*self.tasks, return_exceptions=True)


@pytest.fixture
def far() -> Far:
    return Far()


async def test_the_greeting_does_not_wait_for_the_command(far: Far) -> None:
    mail, _ = far.order("wait", arguments={"graph": "agg"}, later="field")
    assert isinstance(mail.deltas[0], Accepted)
    (greeting,) = mail.items
    assert (greeting["node"], greeting["protocol"] > 0, greeting["clock"] > 1e9) == ("two", True, True)
    far.open.set()
    await far.settle()
    assert mail.items[1] == {"answer": {"rows": [1]}, "error": None}
    assert mail.deltas[-1].finish == "stop"
    assert far.ran == [("wait", {"graph": "agg"}, "one")]


@pytest.mark.parametrize(
    ("command", "refusal"),
    [
        ("refuse", {"status": 400, "message": "not here", "hint": "go elsewhere", "code": ""}),
        (
            "nobody",
            {"status": 404, "message": "unknown command", "hint": "see /v1", "code": "unknown_command"},
        ),
        ("fail", {"status": 500, "message": "RuntimeError: broken", "hint": "see the daemon's log", "code": ""}),
    ],
)
async def test_a_refusal_is_an_answer(far: Far, command: str, refusal: dict[str, Any]) -> None:
    mail, _ = far.order(command)
    await far.settle()
    assert mail.items[1] == {"answer": None, "error": refusal}


async def test_a_sender_without_a_name_is_another_node_too(far: Far) -> None:
    """An empty sender would be the control socket."""
    far.order("ps", sender="")
    await far.settle()
    assert far.ran == [("ps", {}, "another node")]


WRONG = [Describe("x"), *(Call("x", one) for one in (7, {"command": 7}, {"arguments": []}, {"sender": "a\nb"}))]


@pytest.mark.parametrize("request_", WRONG)
async def test_what_is_no_command_is_refused(far: Far, request_: Request) -> None:
    mail, _ = far.take(request_)
    assert [type(delta) for delta in mail.deltas] == [Failed]
    assert not far.ran


async def test_a_command_ends_with_its_reader(far: Far) -> None:
    _, reply = far.order("wait")
    await asyncio.sleep(0)
    reply.cancel()
    await far.settle()
    assert far.tasks[0].cancelled()


async def test_no_more_than_so_many_at_once(far: Far, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answering, "AT_ONCE", 2)
    waiting = [far.order("wait")[0] for _ in range(2)]
    mail, _ = far.order("ps")
    assert mail.items[1]["error"]["status"] == 503
    far.open.set()
    await far.settle()
    assert [len(one.items) for one in waiting] == [2, 2]
    mail, _ = far.order("ps")
    await far.settle()
    assert mail.items[1]["answer"] == {"rows": [1]}
