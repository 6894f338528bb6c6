"""Workers that change between prefill and decode while they run: no stream is lost, the text is the same."""

import itertools
import json
import os
import signal
from contextlib import closing
from typing import Any

from .disagg import LONG, SLOW, counts, serve
from .test_planner import moved, plan, pool, texts
from .test_planner import serve as planned
from .together import together

PROMPTS = [f"{number} {LONG}" for number in range(6)]
FIELDS, FEWER = {"max_tokens": 300, "ignore_eos": True}, {"max_tokens": 150, "ignore_eos": True}


def details(machine: Any, process: str) -> dict[str, Any]:
    """Statistics of a worker."""
    (found,) = [
        one["details"]
        for one in machine.raw("GET", "/v1/inspect")[1]
        if one["process"].endswith(process) and "engine" in (one.get("details") or {})
    ]
    return dict(found)


def prompts_of(machine: Any, process: str) -> int:
    """Prompts that it has computed for others and that were read."""
    sessions = (details(machine, process)["handoff"] or {}).get("sessions")
    return sessions["read"] if sessions else 0


def switched(machine: Any, *words: str) -> dict[str, str]:
    """Roles by process afterwards."""
    done = machine.run("dynamo", "switch", *words, "--output", "json", seconds=90)
    assert done.code == 0, done.err
    return {row["process"].partition("/")[2]: row["role"] for row in done.json}


@together
def test_streams_go_on_while_workers_change_their_role(machine: Any) -> None:
    flags = ("--Worker.ServiceArgs.workers=2", "--Worker.migration_limit=10")
    command = serve(machine, *flags, arguments={**SLOW, "max_num_batched_tokens": 256, "speedup_ratio": 0.4})
    url = command.ready()
    machine.until(lambda: all(row["role"] for row in machine.ps() if "Worker" in row["component"]))
    pids = {row["process"]: row["pid"] for row in machine.ps()}
    topics = [f"topic {number}" for number in range(6)]
    streams = [machine.stream(url, topic, **FIELDS) for topic in topics]
    assert switched(machine, "Worker.1", "prefill", "--timeout=0.2") == {
        "Worker.0": "aggregated",
        "Worker.1": "prefill",
    }
    assert moved(machine, url) >= 1, "what has not finished goes on elsewhere"
    assert "ROLE" in machine.run("dynamo", "ps").out
    words = {"_DYNAMO_COMPLETE": "complete_bash", "COMP_WORDS": "dynamo switch W", "COMP_CWORD": "2"}
    assert set(machine.run("dynamo", **words).out.split()) == {"Worker", "Worker.0", "Worker.1"}
    rows = json.loads(machine.run("dynamo", "top", "--interval=0.2", "--output=json").out)["processes"]
    pools = {row["process"].partition("/")[2]: row["worker"]["pool"] for row in rows if row["worker"]}
    assert pools == {"Worker.0": "", "Worker.1": "prefill", "PrefillWorker.0": "prefill"}

    number = itertools.count()

    def short(process: str) -> int:
        """A prompt more; how many the process has computed by then."""
        assert machine.chat(url, f"{next(number)} {LONG}", max_tokens=2)
        return prompts_of(machine, process)

    machine.until(lambda: short("/Worker.1"), what="prompts computed by a worker that has answered before")
    begun = [machine.begin(url, prompt, request=prompt[:1], max_tokens=40) for prompt in PROMPTS]
    assert switched(machine, "PrefillWorker", "decode", "--timeout=30") == {"PrefillWorker.0": "decode"}
    topics += [f"other {number}" for number in range(6)]
    streams += [machine.stream(url, topic, **FEWER) for topic in topics[6:]]
    assert details(machine, "PrefillWorker.0")["engine"]["running"], "it answers"
    assert switched(machine, "Worker.1", "decode", "--timeout=0.2")["Worker.1"] == "decode"
    assert switched(machine, "Worker.0", "prefill", "--timeout=0.2")["Worker.0"] == "prefill"
    found = texts(streams)
    answers = [one.answer()["choices"][0]["message"]["content"] for one in begun]
    machine.until(lambda: short("/Worker.0"), what="prompts computed by the other one")
    assert {row["process"]: row["pid"] for row in machine.ps()} == pids, "nobody was started again"
    command.end()
    url = serve(machine, "--Processor.remote-prefill=false", "--name=plain").ready()
    assert found == machine.chats(url, topics[:6], **FIELDS) + machine.chats(url, topics[6:], **FEWER)
    assert answers == machine.chats(url, PROMPTS, max_tokens=40)


@together
def test_a_worker_that_is_started_again_keeps_its_role(machine: Any) -> None:
    command = serve(machine, "--Worker.ServiceArgs.workers=2")
    url = command.ready()
    machine.until(lambda: all(row["role"] for row in machine.ps("Worker")))
    assert switched(machine, "Worker.0", "prefill")["Worker.0"] == "prefill"
    assert switched(machine, "PrefillWorker", "decode") == {"PrefillWorker.0": "decode"}
    first = machine.ps("Worker")[0]
    os.kill(first["pid"], signal.SIGKILL)
    machine.until(
        lambda: [row["state"] for row in machine.ps("Worker") if row["pid"] != first["pid"]] == ["Ready", "Ready"]
    )
    assert [row["role"] for row in machine.ps("Worker")] == ["prefill", "aggregated"]
    before = counts(machine, url).get("remote_prefill_total", 0)
    number = iter(range(1000))
    machine.until(
        lambda: (
            machine.chat(url, f"{next(number)} {LONG}", max_tokens=2)
            and counts(machine, url)["remote_prefill_total"] > before
        ),
        what="it computes prompts again",
    )
    assert prompts_of(machine, "/Worker.0") >= 1
    command.end()


@together
def test_engines_and_names_that_have_no_role_to_change(machine: Any) -> None:
    command = machine.agg("--Worker.engine=echo_core")
    command.ready()
    machine.until(lambda: machine.ps("Worker")[0]["role"])
    told = machine.run("dynamo", "switch", "Worker", "prefill").mistake()
    assert "Worker.0: engine echo_core, as it has been started, keeps its role" in told
    assert "no role that could change" in machine.run("dynamo", "switch", "Frontend", "prefill").mistake()
    assert "no component 'Wroker'" in machine.run("dynamo", "switch", "Wroker", "decode").mistake()
    assert machine.raw("POST", "/v1/switch/Worker", {"role": "both"})[0] == 400
    status, told = machine.raw("POST", "/v1/switch/Worker", {"role": "decode", "expected_epoch": "now"})
    assert (status, "expected_epoch" in told["error"]["message"]) == (400, True)
    command.end()


BY_LOAD = (
    *("--Planner.optimization-target=load", "--Planner.decode-kv-scale-up-threshold=0.2"),
    *("--Planner.decode-kv-scale-down-threshold=0.1", "--Planner.max-gpu-budget=3"),
    *("--Processor.max-local-prefill-length=32", "--Processor.max-prefill-queue-size=1000"),
)


def roles(machine: Any) -> list[str]:
    """Of the workers that are Ready and do not change."""
    rows = [row for row in machine.ps() if "Worker" in row["component"]]
    return sorted(row["role"] for row in rows if row["state"] == "Ready" and not row["detail"])


def wants(machine: Any, component: str) -> int:
    """Workers that a pool proposes to have."""
    last = pool(machine, component)["last"]
    return last["tick"]["target"] if last else 0


@together
def test_a_planner_moves_a_worker_to_where_the_load_is(machine: Any) -> None:
    """Prompts that wait, then answers: three are the budget, so a prefill worker answers, and then back."""
    arguments = json.dumps({**SLOW, "num_gpu_blocks": 400, "speedup_ratio": 0.5})
    flags = (f"--Worker.engine_args={arguments}", f"--PrefillWorker.engine_args={arguments}", *BY_LOAD)
    command = planned(machine, *flags, "--Planner.prefill-min-endpoint=2", graph="disagg_planner")
    url = command.ready()
    machine.until(lambda: roles(machine) == ["aggregated", "prefill", "prefill"], 30, "two prefill workers")
    pids = {row["pid"] for row in machine.ps("Worker") + machine.ps("PrefillWorker")}

    def begun(count: int) -> list[Any]:
        return [machine.begin(url, f"{number} {LONG}", request=str(number), max_tokens=2) for number in range(count)]

    prompts = begun(12)
    machine.until(
        lambda: wants(machine, "PrefillWorker") == 3, 30, "more prefill workers are wanted, and not to be had"
    )
    topics, fields = ["topic 0", "topic 1"], {"max_tokens": 180, "ignore_eos": True}
    streams = [machine.stream(url, topic, **fields) for topic in topics]
    load = [machine.stream(url, f"load {number}", max_tokens=3000, ignore_eos=True) for number in range(10)]
    machine.until(lambda: pool(machine)["last"]["context"] > 1800, 30, "more than a worker should have")
    assert wants(machine, "Worker") == 2
    plan(machine, action="set", component="PrefillWorker", min=1)
    machine.until(lambda: roles(machine) == ["aggregated", "decode", "prefill"], 60, "one of them answers")
    [record] = [one for one in pool(machine)["records"] if one["switched"]]
    changed = record["switched"].split()[0]
    assert (record["tick"]["reason"], record["replicas"]) == ("switch", 2)
    assert record["switched"] == f"{changed} becomes decode"
    topics.append("topic 2")
    streams += [machine.stream(url, topics[-1], **fields)]

    def answered() -> int:
        assert machine.chat(url, "hello", max_tokens=2)
        return int(details(machine, changed)["engine"]["tokens"])

    machine.until(answered, what="it answers")
    more = begun(40)
    machine.until(lambda: wants(machine, "PrefillWorker") == 2, 30, "another prefill worker is wanted")
    for stream in load:
        stream.close()
    machine.until(lambda: roles(machine).count("prefill") == 2, 60, "it goes back, or the other one does")
    assert " becomes prefill" in machine.run("dynamo", "explain", "planner").out
    assert pids == {row["pid"] for row in machine.ps("Worker") + machine.ps("PrefillWorker")}, "nobody is started"
    for one in more:
        one.leave()
    assert all(one.answer()["usage"]["completion_tokens"] for one in prompts)
    found = texts(streams)
    with closing(machine.unix()) as connection:
        connection.request("GET", "/v1/metrics")
        lines = connection.getresponse().read().decode().splitlines()
    counted = [line for line in lines if line.startswith("dynamo_planner_role_switches_total{")]
    assert sorted(float(line.rpartition(" ")[2]) for line in counted) == [1.0, 1.0]
    assert pool(machine)["state"] == pool(machine, "PrefillWorker")["state"] == "active"
    command.end()
    url = serve(machine, "--name=plain").ready()
    assert found == machine.chats(url, topics, **fields)


def has_to_answer(machine: Any, url: str) -> list[Any]:
    """More streams than one worker should have, so that another is wanted."""
    load = [machine.stream(url, f"load {number}", max_tokens=3000, ignore_eos=True) for number in range(12)]
    machine.until(lambda: wants(machine, "Worker") == 2, 30, "another worker that answers is wanted")
    return load


@together
def test_a_planner_that_may_not_switch_starts_another(machine: Any) -> None:
    arguments = json.dumps({**SLOW, "num_gpu_blocks": 400, "speedup_ratio": 0.5})
    flags = (f"--Worker.engine_args={arguments}", f"--PrefillWorker.engine_args={arguments}", *BY_LOAD)
    words = ("--Planner.prefill-min-endpoint=2", "--Planner.role-switch=false")
    url = planned(machine, *flags, *words, graph="disagg_planner").ready()
    machine.until(lambda: roles(machine) == ["aggregated", "prefill", "prefill"], 30, "two prefill workers")
    pids = {row["pid"] for row in machine.ps("Worker") + machine.ps("PrefillWorker")}
    load = has_to_answer(machine, url)
    plan(machine, action="set", component="PrefillWorker", min=1)
    machine.until(lambda: roles(machine) == ["aggregated", "aggregated", "prefill"], 60, "one is started")
    assert len({row["pid"] for row in machine.ps("Worker") + machine.ps("PrefillWorker")} - pids) == 1
    assert not any(
        record["switched"] for name in ("Worker", "PrefillWorker") for record in pool(machine, name)["records"]
    )
    for stream in load:
        stream.close()
