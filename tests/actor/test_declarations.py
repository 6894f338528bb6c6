"""What is refused before an actor runs, and what fails a test of actors."""

import asyncio
from typing import Any, TypeVar

import pytest

from dynamod.actor import (
    Actor,
    handle,
)
from dynamod.actor.testing import Deadlock, LeakedTasks, run


def test_a_test_that_waits_for_ever_fails_instead_of_hanging() -> None:
    async def wait() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Deadlock):
        run(wait())


def test_a_leaked_task_fails_the_test() -> None:
    tasks = []

    async def leak() -> None:
        tasks.append(asyncio.get_running_loop().create_task(asyncio.sleep(10)))

    with pytest.raises(LeakedTasks):
        run(leak())


def test_an_unannotated_receiver_is_refused_when_the_class_is_made() -> None:
    with pytest.raises(TypeError, match="annotate the message argument"):

        class Wrong(Actor):
            @handle
            async def work(self, message):  # type: ignore[no-untyped-def]
                pass


@pytest.mark.parametrize("kind", [Any, object, str | Any, TypeVar("T")])
def test_a_message_type_must_name_classes(kind: Any) -> None:
    async def work(self: Any, message: Any) -> None: ...

    work.__annotations__["message"] = kind
    with pytest.raises(TypeError, match="is no message type"):
        type("Wrong", (Actor,), {"work": handle(work)})
