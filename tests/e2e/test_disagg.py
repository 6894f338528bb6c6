"""Prompts computed by prefill workers: the same answers as without, whoever dies, hangs or leaves meanwhile."""

import json
import os
import re
import signal
import socket
import time
from typing import Any

import pytest

from .asking import chat_body
from .disagg import LONG, SLOW, counts, handoffs, serve, sessions, unlike, workers
from .nodes import Servers, front, instances, on, put
from .together import together


@together
def test_a_prompt_is_computed_elsewhere_and_explained(machine: Any) -> None:
    serve(machine)
    command = machine.commands[-1]
    url = command.ready()
    assert [row["component"] for row in machine.ps()][:2] == ["PrefillWorker", "Worker"]
    assert [one["id"] for one in json.loads(machine.ask(url, "/v1/models")[1])["data"]] == ["sample"]
    remote = machine.chat(url, LONG, max_tokens=30)
    short = machine.chat(url, "hello", max_tokens=5)
    assert short
    found = counts(machine, url)
    assert (found["remote_prefill_total"], found["local_prefill_total"]) == (1, 1), found
    read = handoffs(machine)
    assert read["blocks"] > 20, read
    assert read["tokens"] == 16 * read["blocks"], read
    assert (read["transfers"], read["failed"], sessions(machine)["read"]) == (1, 0, 1), read

    asked = chat_body(LONG, max_tokens=2, nvext={"extra_fields": ["worker_id"]})
    answer = json.loads(machine.ask(url, "/v1/chat/completions", asked)[1])
    ids = answer["nvext"]["worker_id"]
    assert ids["prefill_worker_id"] != ids["decode_worker_id"]
    listed = json.loads(machine.ask(url, "/health")[1])["instances"]
    assert {*ids.values()} == {one["instance_id"] for one in listed}
    usage = answer["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    assert 0.8 * usage["prompt_tokens"] < cached <= usage["prompt_tokens"], "of the prefill worker, which knew it"
    fresh = json.loads(machine.ask(url, "/v1/chat/completions", chat_body(f"Other. {LONG}", max_tokens=2))[1])["usage"]
    cached = fresh["prompt_tokens_details"]["cached_tokens"]
    assert cached < 0.2 * fresh["prompt_tokens"], "what comes from the prefill worker is not cached"
    text = machine.run("dynamo", "explain", answer["id"]).out
    assert "prompt computed by a prefill worker: more than max_local_prefill_length 32" in text, text
    assert "prefill workers" in text

    shown = machine.run("dynamo", "top", "--once", "--interval=0.2").out
    assert "POOL" in shown
    assert " prefill " in shown
    rows = json.loads(machine.run("dynamo", "top", "--interval=0.2", "--output=json").out)["processes"]
    pools = {row["worker"]["pool"]: row["worker"]["sessions"] for row in rows if row["worker"]}
    assert pools == {"": None, "prefill": 0}

    off = serve(machine, "--Processor.remote-prefill=false", "--name=plain")
    assert machine.chat(off.ready(), LONG, max_tokens=30) == remote
    assert counts(machine, off.ready())["remote_prefill_total"] == 0


@together
def test_where_it_is_enforced_only_prefill_workers_compute_prompts(machine: Any) -> None:
    def worker(pool: str) -> None:
        words = (f"in=dyn://m.{pool}.generate", "out=mocker", "sample.gguf", "--model-name=sample")
        machine.start("dynamo-run", *words, "--disaggregation-mode", pool).ready()

    worker("decode")
    url = machine.start("dynamo-run", "in=http", "out=auto", "--http-port=0", "--enforce-disagg").ready()
    machine.until(lambda: len(json.loads(machine.ask(url, "/health")[1])["instances"]) == 1)
    waiting = machine.begin(url, "hello", request="waits", max_tokens=5)
    time.sleep(1)
    assert counts(machine, url).get("remote_prefill_total", 0) == 0
    worker("prefill")
    assert waiting.answer()["choices"][0]["message"]["content"]
    found = counts(machine, url)
    assert (found["remote_prefill_total"], "local_prefill_total" in found) == (1, False), "a short prompt, too"


@pytest.mark.parametrize("how", ["killed", "stopped"])
@together
def test_a_prefill_worker_that_goes_while_it_computes(machine: Any, how: str) -> None:
    machine.env["DYNAMOD_KILL_TIMEOUT"] = "60"  # a stopped worker is there until it goes on
    command = serve(machine)
    url = command.ready()
    whole = machine.chat(url, LONG, max_tokens=20)
    pid = machine.row("PrefillWorker")["pid"]
    begun = [machine.begin(url, f"{number} {LONG}", request=f"r{number}", max_tokens=20) for number in range(3)]
    time.sleep(0.1)
    os.kill(pid, signal.SIGKILL if how == "killed" else signal.SIGSTOP)
    texts = [one.answer()["choices"][0]["message"]["content"] for one in begun]
    began = time.monotonic()
    assert machine.chat(url, LONG, max_tokens=20) == whole, "aggregated, for nobody is there"
    assert time.monotonic() - began < 5
    if how == "stopped":
        os.kill(pid, signal.SIGCONT)
    machine.until(lambda: machine.row("PrefillWorker")["state"] == "Ready")
    assert [machine.chat(url, f"{number} {LONG}", max_tokens=20) for number in range(3)] == texts

    def remotely() -> bool:
        before = counts(machine, url)["remote_prefill_total"]
        machine.chat(url, f"{time.monotonic_ns()} {LONG}", max_tokens=1)
        return counts(machine, url)["remote_prefill_total"] > before

    machine.until(remotely)


@together
def test_the_answering_worker_dies_after_it_has_the_blocks(machine: Any) -> None:
    command = serve(machine, "--Worker.ServiceArgs.workers=2")
    url = command.ready()
    whole = machine.chat(url, LONG, max_tokens=200, ignore_eos=True)
    streams = [machine.stream(url, LONG, max_tokens=200, ignore_eos=True) for _ in range(4)]
    os.kill(machine.ps("Worker")[0]["pid"], signal.SIGKILL)
    assert [stream.read().text for stream in streams] == [whole] * 4
    assert all(stream.error is None for stream in streams)


@together
def test_an_answer_that_keeps_to_a_form(machine: Any) -> None:
    """Its prompt is computed elsewhere, its worker dies in the middle, and it is the same."""
    url = serve(machine, "--Worker.ServiceArgs.workers=2").ready()
    form: dict[str, Any] = {"guided_regex": "([a-z]{3,6} ){40}end", "seed": 3}
    whole = machine.chat(url, LONG, **form)
    assert re.fullmatch(form["guided_regex"], whole)
    assert counts(machine, url)["remote_prefill_total"] == 1
    streams = [machine.stream(url, LONG, **form) for _ in range(4)]
    os.kill(machine.ps("Worker")[0]["pid"], signal.SIGKILL)
    assert [stream.read().text for stream in streams] == [whole] * 4
    assert [(stream.error, stream.finish) for stream in streams] == [(None, "stop")] * 4


@together
def test_a_client_that_leaves_leaves_no_blocks(machine: Any) -> None:
    command = serve(machine, arguments={**SLOW, "speedup_ratio": 0.02})  # a prompt takes ten seconds
    url = command.ready()
    machine.until(lambda: len(json.loads(machine.ask(url, "/health")[1])["instances"]) == 2)
    begun = [machine.begin(url, f"{number} {LONG}", request=f"r{number}", max_tokens=50) for number in range(3)]
    machine.until(lambda: sessions(machine)["open"] == 3)
    for one in begun:
        one.leave()
    machine.until(lambda: sessions(machine)["open"] == 0, 2.0)
    assert sessions(machine)["held_bytes"] == 0
    assert machine.chat(url, "hello", max_tokens=2)
    machine.until(lambda: all(one["engine"]["running"] == one["engine"]["waiting"] == 0 for one in workers(machine)))


@together
def test_workers_that_are_not_alike(machine: Any) -> None:
    """Another block size: the answer is computed where it is given, and that is counted."""
    plain = serve(machine, "--Processor.remote-prefill=false", "--name=plain")
    expected = machine.chat(plain.ready(), LONG, max_tokens=20)
    plain.end()
    url = unlike(machine, "mocker", SLOW, {**SLOW, "block_size": 32})
    assert machine.chat(url, LONG, max_tokens=20) == expected
    assert handoffs(machine)["failures"] == {"layout": 1}


@together
def test_behind_the_kv_router(machine: Any) -> None:
    """What the answering worker has cached is not computed elsewhere."""
    command = serve(machine, graph="disagg_router")
    url = command.ready()
    first = machine.chat(url, LONG, max_tokens=8)

    def cached() -> bool:
        assert machine.chat(url, LONG, max_tokens=8) == first
        return counts(machine, url).get("local_prefill_total", 0) > 0

    machine.until(cached)


@together
def test_by_dynamo_run(machine: Any) -> None:
    arguments = ("--extra-engine-args", json.dumps(SLOW))
    for pool in ("prefill", "decode"):
        words = (f"in=dyn://m.{pool}.generate", "out=mocker", "sample", "--disaggregation-mode", pool, *arguments)
        machine.start("dynamo-run", *words)
    front = machine.start("dynamo-run", "in=http", "out=auto", "--http-port=0", "--max-local-prefill-length=1000")
    url = front.ready()
    machine.until(lambda: machine.serves(url))
    machine.until(lambda: len(machine.ps("Worker")) == 2)
    long = " ".join([LONG] * 4)

    def remotely() -> bool:
        machine.chat(url, f"{time.monotonic_ns()} {long}", max_tokens=4)
        return counts(machine, url).get("remote_prefill_total", 0) > 0

    machine.until(remotely)


def remotely(machine: Any, url: str) -> bool:
    """Whether a prompt that nobody has seen is computed by the prefill worker."""
    before = counts(machine, url).get("remote_prefill_total", 0)
    machine.chat(url, f"{time.monotonic_ns()} {LONG}", max_tokens=2)
    return counts(machine, url)["remote_prefill_total"] > before


@together
def test_the_limits_change_in_etcd_while_it_runs(machine: Any, servers: Servers) -> None:
    """Under NVIDIA Dynamo's key. What cannot be read is not followed, counted, and said once."""
    env = on(machine, servers, "one")
    url = serve(machine, **env).ready()
    path = machine.folder / "one/d.sock"
    [ingress] = [
        row["pid"] for row in machine.raw("GET", "/v1/ps", socket_path=path)[1] if row["component"] == "Frontend"
    ]
    key = "public/components/disagg_router/models/chat/sample"
    assert remotely(machine, url)
    put(servers, key, b'{"max_local_prefill_length": 100000}')
    machine.until(lambda: not remotely(machine, url))
    put(servers, key, b'{"max_local_prefill_length": 100000, "conditional_disagg": false}')
    machine.until(lambda: remotely(machine, url))
    put(servers, key, b'{"remote_prefill": false}')
    machine.until(lambda: not remotely(machine, url))

    def ignored() -> float:
        lines = machine.ask(url, "/metrics")[1].splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith("dynamod_records_ignored_total"))

    assert ignored() == 0
    put(servers, key, b'{"max_local_prefill_length": -1}')
    machine.until(lambda: remotely(machine, url), what="the file's settings hold")
    assert ignored() == 1
    said = machine.run("dynamo", "logs", **env).out
    assert said.count("ignored what stands at") == 1, said
    assert "LivePrefill" in said
    put(servers, key, b'{"max_local_prefill_length": 100000}')
    machine.until(lambda: not remotely(machine, url))
    put(servers, key)
    machine.until(lambda: remotely(machine, url))
    [still] = [
        row["pid"] for row in machine.raw("GET", "/v1/ps", socket_path=path)[1] if row["component"] == "Frontend"
    ]
    assert still == ingress


@together
def test_the_limits_change_by_a_reload(machine: Any) -> None:
    """Streams go on meanwhile, with the same text."""
    command = serve(machine)
    url = command.ready()
    assert remotely(machine, url)
    whole = machine.chat(url, LONG, max_tokens=300, ignore_eos=True)
    streams = [machine.stream(url, LONG, max_tokens=300, ignore_eos=True) for _ in range(3)]
    words = [*command.words[2:], "--Processor.max-local-prefill-length=100000"]
    done = machine.run("dynamo", "reload", "graphs.disagg:Frontend", *words, seconds=60)
    assert done.code == 0, done.err
    assert [stream.read().text for stream in streams] == [whole] * 3
    assert all(stream.error is None for stream in streams)
    machine.until(lambda: not remotely(machine, url))


def test_over_two_nodes(machine: Any, shared_servers: Servers) -> None:
    """The frontend on one node, the answering worker on another, the prefill worker on a third: blocks go over TCP."""
    _door, url = front(machine, shared_servers, "--max-local-prefill-length", 1000)
    arguments = ("--extra-engine-args", json.dumps(SLOW))
    started = {}
    for node, pool in (("two", "decode"), ("three", "prefill")):
        words = (f"in=dyn://m.{pool}.generate", "out=mocker", "sample", "--disaggregation-mode", pool, *arguments)
        started[pool] = machine.start("dynamo-run", *words, **on(machine, shared_servers, node))
    for command in started.values():
        command.prints("ready", 30)
    machine.until(lambda: instances(machine, url) == ["three", "two"] and machine.serves(url))
    long = " ".join([LONG] * 4)
    machine.until(lambda: machine.chat(url, f"{time.monotonic_ns()} {long}", max_tokens=4) and remote(machine, url))

    def read() -> int:
        details = [one.get("details") for one in machine.raw("GET", "/v1/inspect", socket_path=two)[1]]
        return sum(one["handoff"]["blocks"] for one in details if one and one.get("handoff"))

    two = machine.folder / "two/d.sock"
    assert read() > 60
    whole = machine.chat(url, f"again {long}", max_tokens=50)
    begun = [machine.begin(url, f"{number} {long}", request=f"r{number}", max_tokens=50) for number in range(3)]
    started["prefill"].kill()
    texts = [one.answer()["choices"][0]["message"]["content"] for one in begun]
    assert [machine.chat(url, f"{number} {long}", max_tokens=50) for number in range(3)] == texts
    assert machine.chat(url, f"again {long}", max_tokens=50) == whole


def remote(machine: Any, url: str) -> bool:
    return counts(machine, url).get("remote_prefill_total", 0) > 0


def test_a_prefill_worker_serves_no_clients(machine: Any) -> None:
    refused = machine.run("dynamo-run", "in=http", "out=mocker", "sample", "--disaggregation-mode", "prefill")
    assert refused.code != 0
    assert "a prefill worker serves no clients" in refused.err
    refused = machine.run("dynamo-run", "in=http", "out=mocker", "sample", "--disaggregation-mode", "half")
    assert refused.code != 0
    assert "prefill" in refused.err
    mode = ("in=dyn://m.prefill.generate", "out=echo_core", "sample", "--disaggregation-mode", "prefill")
    echo = machine.run("dynamo-run", *mode)
    assert echo.code != 0
    assert "cannot be a prefill worker" in echo.err


@together
def test_fixed_ports_and_little_memory_for_the_blocks_of_prompts(machine: Any) -> None:
    """Each worker has a port of its own, and a prompt with more blocks than fit comes whole."""
    port = next(one for one in iter(machine.port, None) if _free(one + 1))
    flags = (f"--PrefillWorker.transfer_port={port}", "--PrefillWorker.transfer_host=127.0.0.1")
    small = "--PrefillWorker.session_memory_gb=0.000005"
    command = serve(machine, *flags, small, "--PrefillWorker.ServiceArgs.workers=2")
    url = command.ready()
    for number in range(2):
        machine.ports.add(port + number)
        socket.create_connection(("127.0.0.1", port + number), timeout=5).close()
    assert machine.chat(url, LONG, max_tokens=5)
    read = handoffs(machine)
    assert (read["transfers"], read["failed"]) == (1, 0), read
    assert read["bytes"] > 5000, "more than the memory has"
    with socket.create_server(("127.0.0.1", machine.port())) as taken:
        number = taken.getsockname()[1]
        flags = ("--PrefillWorker.transfer_host=127.0.0.1", f"--PrefillWorker.transfer_port={number}")
        refused = serve(machine, *flags, "--name=other")
        assert refused.wait() != 0
        assert f"Address already in use: port {number} of 127.0.0.1; choose another transfer_port" in refused.err


def _free(port: int) -> bool:
    with socket.socket() as sock:
        try:
            sock.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
