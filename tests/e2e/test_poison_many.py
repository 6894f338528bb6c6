"""Two requests that end each worker, among more suspects of one worker than are always tried alone."""

import json
import threading
from typing import Any

from .test_poison import ask
from .together import together

GATED = """
import asyncio, os, signal
from pathlib import Path

folder = Path(__file__).parent

async def generate(request):
    left = request["stop_conditions"]["max_tokens"]
    with (folder / "came").open("a") as came:
        came.write("x")
    while not (folder / "open").exists():
        await asyncio.sleep(0.01)
    if left == 61:
        os._exit(3)
    if left == 63:
        os.kill(os.getpid(), signal.SIGSEGV)
    await asyncio.sleep(0.15)  # an answer that has begun before the crash could not go on
    for token in range(left):
        yield {"token_ids": [300 + token]}
        await asyncio.sleep(0.02)
"""
"""An engine that begins with nothing until a file is there, so that all requests are at the first worker."""

WORKERS = 4
INNOCENT = 10


@together
def test_two_among_twelve_suspects_cost_three_workers(machine: Any) -> None:
    """One that both were at, and one for each. All innocent requests are answered."""
    (machine.folder / "engine.py").write_text(GATED)
    command = machine.agg(f"--Worker.engine=pytok:{machine.folder / 'engine.py'}", "--Worker.ServiceArgs.workers=1")
    url = command.ready()
    machine.until(lambda: machine.serves(url))
    answers: dict[str, tuple[int, Any]] = {}

    def send(text: str, kind: int) -> None:
        answers[text] = ask(machine, url, text, kind)

    wanted = {"bad one": 61, **{f"good {number}": 12 for number in range(INNOCENT)}, "bad two": 63}
    threads = [threading.Thread(target=send, args=one) for one in wanted.items()]
    came = machine.folder / "came"
    for number, thread in enumerate(threads, 1):
        thread.start()
        machine.until(lambda number=number: came.exists() and len(came.read_text()) == number)
    machine.run("dynamo", "scale", "Worker", WORKERS)
    machine.until(lambda: [row["state"] for row in machine.ps("Worker")] == ["Ready"] * WORKERS)
    machine.until(lambda: len(json.loads(machine.ask(url, "/health")[1])["instances"]) >= WORKERS)
    (machine.folder / "open").touch()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    statuses = {text: status for text, (status, _) in answers.items()}
    assert statuses == {text: 422 if text.startswith("bad") else 200 for text in wanted}, (answers, command.err)
    machine.until(lambda: [row["state"] for row in machine.ps("Worker")] == ["Ready"] * WORKERS, 60)
    assert sum(row["restarts"] for row in machine.ps("Worker")) == 3
    command.end()
