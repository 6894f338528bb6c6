"""Prefill workers that leave, are replaced, have no room or are not there: the answers are the same."""

import itertools
import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from dynamod import sample

from .block_ways import Detour, Late, Lost, Slow, Stalled, TcpWay
from .disagg import LONG, SLOW, counts, handoffs, serve, sessions, unlike, workers
from .together import together

EXACT = {"block_size": 16, "flash_attn": "off", "split_tail": True, "n_threads": 1, "step_seconds": 60.0}
MOCK = {**SLOW, "kv_bytes_per_token": 1024}
LLAMACPP = pytest.param("llamacpp", marks=pytest.mark.skipif(not find_spec("llama_cpp"), reason="needs the extra"))
engines = pytest.mark.parametrize("engine", ["mocker", LLAMACPP])


def arguments_of(engine: str) -> dict[str, Any]:
    return MOCK if engine == "mocker" else EXACT


def alone(machine: Any, prompts: list[str], length: int = 12, **given: Any) -> list[str]:
    """What a worker answers that computes all itself."""
    command = serve(machine, "--Processor.remote-prefill=false", "--name=alone", **given)
    url = command.ready()
    found = [machine.chat(url, prompt, max_tokens=length, ignore_eos=length > 12) for prompt in prompts]
    command.end()
    return found


def transfers(machine: Any) -> int:
    """Prompts that were read."""
    return sum(one["handoff"]["transfers"] for one in workers(machine) if one["handoff"])


@contextmanager
def behind(machine: Any, fault: Any) -> Iterator[None]:
    """The way to the blocks of the prefill worker is bad."""
    [path] = machine.folder.glob("d.sock.d/*/*PrefillWorker*.sock")
    with closing(Detour(path)) as detour, closing(TcpWay(machine.folder, fault)) as way:
        detour.way = way
        yield


@contextmanager
def left(machine: Any, url: str, fault: Any) -> Iterator[None]:
    """A client has left whose prompt is being read over a way that is bad."""
    with behind(machine, fault):
        begun = machine.begin(url, LONG, request="r", max_tokens=50)
        assert fault.reached.wait(20)
        assert sessions(machine)["open"] == 1
        begun.leave()
        yield


@contextmanager
def reading(machine: Any, url: str, fault: Any, length: int = 12) -> Iterator[Any]:
    """While a prompt is read from the prefill worker over a way that is bad; gives the answer to come."""
    with behind(machine, fault), ThreadPoolExecutor(1) as pool:
        answer = pool.submit(machine.chat, url, LONG, max_tokens=length, ignore_eos=length > 12)
        assert fault.reached.wait(20)
        yield answer


@engines
@pytest.mark.parametrize("when", ["before the read", "amid it", "behind it"])
@together
def test_a_prefill_worker_is_killed(machine: Any, engine: str, when: str) -> None:
    """Wherever its reader is, the answer is the same; when it is back it computes prompts again."""
    given: dict[str, Any] = {"engine": engine, "arguments": arguments_of(engine)}
    [expected] = alone(machine, [LONG], length=100, **given)
    url = serve(machine, **given).ready()
    pid = machine.row("PrefillWorker")["pid"]
    if when == "behind it":
        stream = machine.stream(url, LONG, max_tokens=100, ignore_eos=True)
        os.kill(pid, signal.SIGKILL)
        assert (stream.read().text, stream.error) == (expected, None)
    else:
        fault = Late(1) if when == "before the read" else Lost()
        with reading(machine, url, fault, length=100) as answer:
            os.kill(pid, signal.SIGKILL)
            fault.over.set()
            assert answer.result() == expected
    read = handoffs(machine)
    done = when == "behind it"
    assert (read["transfers"], read["failed"]) == (int(done), int(not done)), read
    assert (read["blocks"] > 0) == (when != "before the read"), read
    numbers = itertools.count()  # it is started again
    machine.until(lambda: machine.chat(url, f"{next(numbers)} {LONG}", max_tokens=1) and transfers(machine) > done)
    assert (sessions(machine)["open"], sessions(machine)["held_bytes"]) == (0, 0)


@engines
@pytest.mark.parametrize("how", ["drain", "reload"])
@together
def test_a_prefill_worker_leaves_when_its_sessions_are_gone(machine: Any, engine: str, how: str) -> None:
    given: dict[str, Any] = {"engine": engine, "arguments": arguments_of(engine)}
    [expected] = alone(machine, [LONG], **given)
    command = serve(machine, **given)
    url = command.ready()
    pid = machine.row("PrefillWorker")["pid"]
    with reading(machine, url, Slow(4)) as answer:
        assert sessions(machine)["open"] == 1
        if how == "reload":
            other = f"--PrefillWorker.engine_args={json.dumps({**arguments_of(engine), 'max_num_batched_tokens': 48})}"
            words = ["reload", "graphs.disagg:Frontend", *command.words[2:], other]
        else:
            words = [how, "PrefillWorker"]
        done = machine.run("dynamo", *words, seconds=60)
        assert done.code == 0, done.err
        if how == "drain":
            assert machine.ps("PrefillWorker") == []
        assert answer.result() == expected
    read = handoffs(machine)
    assert (read["transfers"], read["failed"]) == (1, 0), read
    machine.until(lambda: pid not in [row["pid"] for row in machine.ps()], 10)
    if how == "reload":
        numbers = itertools.count()  # the first may come before the detour is forgotten
        machine.until(lambda: machine.chat(url, f"{next(numbers)} {LONG}", max_tokens=1) and transfers(machine) > 1)
    else:
        assert machine.chat(url, f"again {LONG}", max_tokens=1)
        assert transfers(machine) == 1


@engines
@together
def test_a_stop_waits_for_no_session(machine: Any, engine: str) -> None:
    """Whatever is under way: the client is told, and everything is gone in the time that a stop takes."""
    command = serve(machine, engine=engine, arguments=arguments_of(engine))
    url = command.ready()
    with reading(machine, url, Stalled()) as answer:
        began = time.monotonic()
        done = machine.run("dynamo", "stop", seconds=30)
        assert done.code == 0, done.err
        assert time.monotonic() - began < 10
        error = answer.exception()
        assert error is None or "503" in str(error) or "error" in str(error) or isinstance(error, OSError), error
    command.wait()


@engines
@together
def test_a_full_queue_of_prompts(machine: Any, engine: str) -> None:
    """What would wait too long is computed where it is answered."""
    arguments = {**MOCK, "speedup_ratio": 0.5} if engine == "mocker" else EXACT
    prompts = [f"{number} {LONG}" for number in range(8)]
    given: dict[str, Any] = {"engine": engine, "arguments": arguments}
    expected = alone(machine, prompts, **given)
    url = serve(machine, "--Processor.max-prefill-queue-size=1", **given).ready()
    assert machine.chats(url, prompts, max_tokens=12) == expected
    found = counts(machine, url)
    assert found["remote_prefill_total"] + found["local_prefill_total"] == 8, found
    assert min(found["remote_prefill_total"], found["local_prefill_total"]) >= 1, found
    assert 'reason="queue"' in machine.ask(url, "/metrics")[1]
    assert (sessions(machine)["open"], sessions(machine)["held_bytes"]) == (0, 0)


@engines
@together
def test_no_prefill_worker_is_left_and_then_there_is_one(machine: Any, engine: str) -> None:
    arguments = json.dumps(arguments_of(engine))
    model = (
        ("out=mocker", "sample") if engine == "mocker" else ("out=llamacpp", "sample.gguf", "--model-name", "sample")
    )

    def start(pool: str) -> Any:
        words = (f"in=dyn://m.{pool}.generate", *model, "--disaggregation-mode", pool, "--extra-engine-args", arguments)
        started = machine.start("dynamo-run", *words)
        started.prints("ready", 60)
        return started

    given: dict[str, Any] = {"engine": engine, "arguments": arguments_of(engine)}
    expected = alone(machine, [f"{number} {LONG}" for number in range(8)], **given)
    start("decode")
    first = start("prefill")
    url = machine.start("dynamo-run", "in=http", "out=auto", "--http-port=0", "--max-local-prefill-length=16").ready()
    machine.until(lambda: machine.serves(url))
    numbers = itertools.count()

    def asked() -> int:
        number = next(numbers)
        answer = machine.chat(url, f"{number} {LONG}", max_tokens=12)
        assert answer == expected[number] if number < len(expected) else answer
        return transfers(machine)

    machine.until(asked)
    first.end()
    before = asked()
    assert asked() == before, "aggregated"
    start("prefill")
    machine.until(lambda: asked() > before)


@pytest.mark.parametrize("what", ["block size", "weights"])
@pytest.mark.skipif(not find_spec("llama_cpp"), reason="needs the extra llama_cpp")
@together
def test_workers_of_llamacpp_that_are_not_alike(machine: Any, what: str) -> None:
    """What one has computed is of no use to the other: it is not moved, and that is counted."""
    if what == "weights":
        path = machine.folder / "other.gguf"
        data = bytearray(Path(sample.path("sample.gguf")).read_bytes())
        data[-1000] ^= 1
        path.write_bytes(data)
        other = f"--PrefillWorker.model={path}"
    else:
        other = ""
    given: dict[str, Any] = {"engine": "llamacpp", "arguments": EXACT}
    expected = alone(machine, [LONG], **given)
    if other:
        url = serve(machine, other, **given).ready()
    else:
        url = unlike(machine, "llamacpp", EXACT, {**EXACT, "block_size": 32})
    assert [machine.chat(url, LONG, max_tokens=12)] == expected
    read = handoffs(machine)
    assert (read["failures"], read["blocks"]) == ({"layout": 1}, 0), read
    assert (sessions(machine)["open"], sessions(machine)["read"]) == (0, 0)


@pytest.mark.skipif(not find_spec("llama_cpp"), reason="needs the extra llama_cpp")
@together
def test_the_answering_worker_of_llamacpp_dies_after_it_has_the_blocks(machine: Any) -> None:
    """The other one gets the prompt's blocks, and those of what was answered, from the prefill worker again."""
    given: dict[str, Any] = {"engine": "llamacpp", "arguments": EXACT}
    url = serve(machine, "--Worker.ServiceArgs.workers=2", **given).ready()
    whole = machine.chat(url, LONG, max_tokens=1400, ignore_eos=True)
    before = counts(machine, url)["remote_prefill_total"]
    stream = machine.stream(url, LONG, max_tokens=1400, ignore_eos=True)
    busy = [row for row in machine.ps("Worker") if running(machine, row["process"])]
    os.kill(busy[0]["pid"], signal.SIGKILL)
    stream.read()
    assert (stream.text, stream.error) == (whole, None)
    assert counts(machine, url)["remote_prefill_total"] > before
    machine.until(lambda: sessions(machine)["open"] == 0, 5)


@pytest.mark.skipif(not find_spec("llama_cpp"), reason="needs the extra llama_cpp")
@together
def test_a_client_that_leaves_leaves_no_blocks_of_llamacpp(machine: Any) -> None:
    url = serve(machine, engine="llamacpp", arguments=EXACT, DYNAMOD_HEARTBEAT_TIMEOUT="2").ready()
    with left(machine, url, Stalled()):
        machine.until(lambda: sessions(machine)["open"] == 0, 2.0)
    assert sessions(machine)["held_bytes"] == 0
    assert machine.chat(url, "hello", max_tokens=2)
    machine.until(lambda: all(one["engine"]["running"] == one["engine"]["waiting"] == 0 for one in workers(machine)))


def running(machine: Any, process: str) -> bool:
    """Whether an engine of the process has a request."""
    found = [one for one in machine.raw("GET", "/v1/inspect")[1] if one["process"] == process and one.get("details")]
    return any(one["details"]["engine"]["running"] for one in found if "engine" in one["details"])
