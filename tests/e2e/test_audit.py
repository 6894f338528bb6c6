"""What several nodes owe their users beside the streams: clear refusals, true findings, settings that can be set."""

import json
import os
import re
import signal
import subprocess
from typing import Any

import pytest

from dynamod.discovery.etcd.probe import advised_against
from dynamod.features.infra import brokers as infra

from .nodes import Servers, instances, models, on, worker
from .together import together

GUARD = {"ETCD_AUTH_USERNAME": "root", "ETCD_AUTH_PASSWORD": "hush"}


def findings(machine: Any, env: dict[str, str]) -> dict[str, list[dict[str, str]]]:
    """What `dynamo doctor` finds, by check."""
    done = machine.run("dynamo", "doctor", "--output", "json", "--port", machine.port(), **env)
    found: dict[str, list[dict[str, str]]] = {}
    for one in json.loads(done.out):
        found.setdefault(one["check"], []).append(one)
    return found


def etcd_state() -> str:
    """`warn` where the authors of etcd advise against the release that the tests start, `ok` otherwise."""
    told = subprocess.run([infra._binary("etcd"), "--version"], capture_output=True, text=True, check=True).stdout
    return "warn" if advised_against(told.splitlines()[0].removeprefix("etcd Version: ").strip()) else "ok"


def guard(servers: Servers) -> dict[str, str]:
    """Let etcd know `root`, and `weak` who may nothing; returns how it is reached."""
    etcd = servers.servers["etcd"].url
    for words in (
        ["user", "add", "root:hush"],
        ["user", "grant-role", "root", "root"],
        ["user", "add", "weak:hush"],
        ["auth", "enable"],
    ):
        done = subprocess.run([infra._binary("etcdctl"), "--endpoints", etcd, *words], capture_output=True)
        assert done.returncode == 0, done.stderr
    return {**servers.env, "DYNAMOD_CLUSTER": "auto"}


@together
def test_doctor_sees_credentials_that_etcd_refuses(machine: Any, servers: Servers) -> None:
    guarded = guard(servers)
    for user, why in (
        ({}, "refuses a node without ETCD_AUTH_USERNAME: user name is empty"),
        ({**GUARD, "ETCD_AUTH_PASSWORD": "guess"}, "refuses the user of ETCD_AUTH_USERNAME: authentication failed"),
        ({**GUARD, "ETCD_AUTH_USERNAME": "weak"}, "refuses the user of ETCD_AUTH_USERNAME: permission denied"),
    ):
        (one,) = findings(machine, {**guarded, **user})["etcd"]
        assert one["state"] == "fail"
        assert why in one["found"]
        assert "ETCD_AUTH_PASSWORD" in one["mend"]
        assert "v1/" in one["mend"]
    found = findings(machine, {**guarded, **GUARD})
    assert [one["state"] for one in found["etcd"] + found["nats"]] == [etcd_state(), "ok"]


@together
def test_doctor_looks_at_each_server_and_at_what_is_missing(machine: Any, servers: Servers) -> None:
    env = {**servers.env, "DYNAMOD_CLUSTER": "auto"}
    dead = machine.port()
    several = {
        **env,
        "NATS_SERVER": f"nats://127.0.0.1:{dead},{env['NATS_SERVER']}",
        "ETCD_ENDPOINTS": f"http://127.0.0.1:{dead},{env['ETCD_ENDPOINTS']}",
    }
    found = findings(machine, several)
    for check, answering in (("etcd", etcd_state()), ("nats", "ok")):
        assert [one["state"] for one in found[check]] == ["warn", answering], "one of several that answers will do"
        assert str(dead) in found[check][0]["found"]
        assert found[check][0]["mend"]
    (alone,) = findings(machine, {**env, "NATS_SERVER": ""})["nats"]
    assert alone["state"] == "warn"
    assert "NATS_SERVER is not set" in alone["found"]
    (clear,) = findings(machine, {**env, "NATS_SERVER": env["NATS_SERVER"].replace("nats:", "tls:")})["nats"]
    assert clear["state"] == "fail", "a node refuses it too"
    assert "offers no TLS" in clear["found"]


@together
def test_a_card_that_conflicts_is_refused_on_another_node_too(machine: Any, servers: Servers) -> None:
    """`dynamo-run` gives its graph the same name on both."""
    worker(machine, servers, "one", "--model-name", "mine")
    words = ("in=dyn://mine", "out=mocker", "sample", "--model-name", "mine", "--context-length", "64")
    other = machine.start("dynamo-run", *words, **on(machine, servers, "two"))
    machine.until(lambda: other.code is not None)
    line = other.err.splitlines()[-1]
    assert line.startswith("error: Worker cannot start: the model name 'mine' is taken: run-mocker/Worker.0 on one")
    assert re.search(r"context length \(\d+ tokens, here 64\)", line)
    assert "--model-name" in line


@pytest.mark.parametrize("value", ["-1", "1024", "x", "1.5"])
def test_the_limit_of_moves_has_bounds(machine: Any, value: str) -> None:
    for words in (("in=http", "out=auto"), ("in=dyn://a", "out=mocker", "sample")):
        line = machine.run("dynamo-run", *words, f"--migration-limit={value}").mistake()
        assert "from 0 to 1023" in line
    line = machine.run("dynamo.frontend", "--migration-limit", value).mistake()
    assert "from 0 to 1023" in line


@together
def test_a_reload_of_one_service_stays_one_service(machine: Any) -> None:
    config = machine.folder / "c.yaml"
    config.write_text("Worker: {engine: echo_core, model: sample, migration_limit: 1}\n")
    graph = ("graphs.agg:Frontend", "-f", config, "--service-name", "Worker")
    started = machine.start("dynamo", "serve", *graph)
    started.ready()
    config.write_text("Worker: {engine: echo_core, model: sample, migration_limit: 2}\n")
    shown = machine.run("dynamo", "reload", *graph, "--dry-run")
    assert shown.out.splitlines()[0] == "Worker.config.migration_limit: 1 -> 2", shown
    done = machine.run("dynamo", "reload", *graph)
    assert done.code == 0, done.err
    assert {row["component"] for row in machine.ps()} == {"Worker"}


@together
def test_a_static_worker_with_a_shorter_context_is_no_reason_to_warn(machine: Any, servers: Servers) -> None:
    """As in the guide: the worker is given --context-length, the frontend is not."""
    env = {"ETCD_ENDPOINTS": "", "NATS_SERVER": servers.env["NATS_SERVER"]}
    words = ("in=dyn://short.backend.generate", "out=mocker", "sample", "--static-worker", "--context-length", "64")
    there = machine.start("dynamo-run", *words, **on(machine, servers, "one", **env))
    there.prints("ready")
    door = machine.start(
        *("dynamo-run", "in=http", "out=dyn://short.backend.generate", "--http-port", 0),
        *("--model-name", "sample", "--model-path", "sample"),
        **on(machine, servers, "two", **env),
    )
    url = door.ready()
    machine.until(lambda: models(machine, url) == ["sample"])
    status, answer = machine.ask(url, "/v1/completions", {"model": "sample", "prompt": "word " * 80, "max_tokens": 1})
    assert status == 400
    assert "maximum context length is 64" in answer
    warned = [line for line in (there.err + door.err).splitlines() if " WARN " in line]
    expected = ("set api_keys, or host", "(see dynamo trust)")  # of each node with brokers and without keys or a secret
    assert [line for line in warned if not any(text in line for text in expected)] == []
    again = machine.run("dynamo-run", *words, **on(machine, servers, "one", **env))
    assert again.err.splitlines()[-1].startswith("error: Worker cannot start: a static worker serves dyn://short")
    assert "another node" not in again.err, "it is on this one"


@together
def test_doctor_sees_workers_that_disagree(machine: Any, servers: Servers) -> None:
    """Each node came while it was alone, so nobody could refuse the other."""
    for name in ("nats-server", "etcd"):
        servers.kill(name)
    worker(machine, servers, "one")
    worker(machine, servers, "two", "--context-length", "64")
    servers.up()
    env = on(machine, servers, "one")

    def differ() -> list[dict[str, str]]:
        return [one for one in findings(machine, env).get("workers", ()) if " differ in " in one["found"]]

    (one,) = machine.until(differ)
    assert one["state"] == "fail"
    assert "run-mocker/Worker.0 on one (sample)" in one["found"]
    assert "run-mocker/Worker.0 on two (sample)" in one["found"]
    assert one["mend"]


@together
def test_who_waits_for_a_worker_says_so_and_leaves_quietly(machine: Any) -> None:
    prompts = machine.folder / "prompts.jsonl"
    prompts.write_text('{"text": "hello"}\n')
    waiting = machine.start("dynamo-run", f"in=batch:{prompts}", "out=auto")
    machine.until(lambda: "waiting for a worker that serves a model" in waiting.err)
    ended = waiting.end(signal.SIGTERM)
    assert "Traceback" not in ended.err
    assert "mistake" not in ended.err


@pytest.mark.parametrize("given", ["at the worker", "at both"])
@together
def test_the_front_doors_limit_of_moves_counts_before_the_workers(machine: Any, given: str) -> None:
    """Two workers that forbid a move; a frontend that says nothing, or allows three."""
    words = ("dynamo-run", "in=dyn://a", "out=mocker", "sample", "--migration-limit", 0)
    for _ in range(2):
        machine.start(*words).prints("ready")
    more = ("--migration-limit=3",) if given == "at both" else ()
    url = machine.start("dynamo-run", "in=http", "out=auto", "--http-port", 0, *more).ready()
    machine.until(lambda: len(instances(machine, url)) == 2)
    limit = re.search(r"^dynamo_frontend_model_migration_limit\{.*\} (\S+)", machine.ask(url, "/metrics")[1], re.M)
    assert limit is not None
    assert float(limit[1]) == (3 if more else 0)
    whole = machine.chat(url, "tell me", max_tokens=200, ignore_eos=True)
    stream = machine.stream(url, "tell me", max_tokens=200, ignore_eos=True)
    [last] = machine.raw("GET", f"/v1/requests/{stream.id}/decision")[1]
    [process] = [one["process"] for one in last["candidates"] if one["instance"] == last["chosen"]]
    [pid] = [row["pid"] for row in machine.ps("Worker") if row["process"] == process]
    os.kill(pid, signal.SIGKILL)
    stream.read()
    if more:
        assert (stream.text, stream.done) == (whole, True)
    else:
        assert stream.error is not None
        assert "migration is off (limit 0)" in stream.error["error"]["message"]
        assert not stream.done
