"""A request that ends each worker it meets, while answers run at all workers that cannot move to another one."""

import threading
from typing import Any

import pytest

from .test_poison import ask
from .together import together

CRASHES = """
import asyncio, os, signal

async def generate(request):
    left = request["stop_conditions"]["max_tokens"]
    if left == 61:
        os._exit(3)
    if left == 63:
        os.kill(os.getpid(), signal.SIGSEGV)
    for token in range(left):
        yield {"token_ids": [300 + token]}
        await asyncio.sleep(0.05)
"""
"""An engine whose answers nobody continues elsewhere. How many tokens a request wants says what the engine does."""

WORKERS = 4
STREAMS = 6


class Company:
    """Answers of 60 tokens that run at all workers; each is read by a thread of its own."""

    def __init__(self, machine: Any, url: str) -> None:
        self.streams = [machine.stream(url, f"stream {number}", max_tokens=60) for number in range(STREAMS)]
        self._threads = [threading.Thread(target=stream.read) for stream in self.streams]
        for thread in self._threads:
            thread.start()

    def ended(self) -> None:
        """Each has ended: whole, or with the one error of an answer that cannot move."""
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive()
        for stream in self.streams:
            if stream.error is None:
                assert (stream.finish, stream.done) == ("length", True)
            else:
                assert stream.error["error"]["code"] == "engine_failed", stream.error


def serve(machine: Any, *more: str) -> tuple[Any, str]:
    (machine.folder / "engine.py").write_text(CRASHES)
    flag = f"--Worker.engine=pytok:{machine.folder / 'engine.py'}"
    command = machine.agg(flag, f"--Worker.ServiceArgs.workers={WORKERS}", *more)
    url = command.ready()
    machine.until(lambda: ready(machine))
    return command, url


def ready(machine: Any) -> bool:
    return [row["state"] for row in machine.ps("Worker")] == ["Ready"] * WORKERS


def restarts(machine: Any) -> int:
    return sum(row["restarts"] for row in machine.ps("Worker"))


@pytest.mark.parametrize("kind", [61, 63])
@together
def test_it_costs_two_workers_and_is_remembered(machine: Any, kind: int) -> None:
    command, url = serve(machine)
    company = Company(machine, url)
    status, answer = ask(machine, url, "the bad one", kind)
    assert (status, answer["error"]["code"]) == (422, "poison_request"), (answer, command.err)
    company.ended()
    assert sum(stream.error is not None for stream in company.streams) <= STREAMS // WORKERS + 1, "of one worker"
    machine.until(lambda: ready(machine), 60)
    assert restarts(machine) == 2
    company = Company(machine, url)
    status, answer = ask(machine, url, "the bad one", kind)
    assert (status, answer["error"]["code"]) == (422, "poison_request"), "it is remembered"
    company.ended()
    assert [stream.error for stream in company.streams] == [None] * STREAMS
    assert restarts(machine) == 2
    command.end()


@together
def test_two_of_them_cost_two_workers_each_and_others_are_answered(machine: Any) -> None:
    command, url = serve(machine)
    company = Company(machine, url)
    answers: dict[str, tuple[int, Any]] = {}

    def send(text: str, kind: int) -> None:
        answers[text] = ask(machine, url, text, kind)

    wanted = {"bad one": 61, "good one": 10, "bad two": 63, "good two": 10, "good three": 10}
    threads = [threading.Thread(target=send, args=one) for one in wanted.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    company.ended()
    codes = {text: answer["error"]["code"] if status != 200 else "" for text, (status, answer) in answers.items()}
    assert {text for text, code in codes.items() if code == "poison_request"} == {"bad one", "bad two"}, codes
    for text, code in codes.items():
        assert wanted[text] != 10 or code in ("", "engine_failed"), codes
    machine.until(lambda: ready(machine), 60)
    assert restarts(machine) <= 4
    for text, kind in wanted.items():
        assert (ask(machine, url, text, kind)[0] == 422) == (kind != 10)
    assert restarts(machine) <= 4
    command.end()


@together
def test_streams_of_another_ingress_process_are_convicted_of_nothing(machine: Any) -> None:
    """A trial may be beside them, so that they share its crash. Each has one error at most, and none of them is 422."""
    command, url = serve(machine, "--Frontend.ServiceArgs.workers=2")
    companies = [Company(machine, url) for _ in range(2)]
    status, answer = ask(machine, url, "the bad one", 61)
    assert (status, answer["error"]["code"]) == (422, "poison_request"), (answer, command.err)
    for company in companies:
        company.ended()
    machine.until(lambda: ready(machine), 60)
    assert restarts(machine) == 2
    for number in range(4):
        assert ask(machine, url, f"stream {number}", 10)[0] == 200
    command.end()
