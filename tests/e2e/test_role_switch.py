"""Workers that change between prefill and decode while they run: no stream is lost, the text is the same."""

import itertools
import json
import os
import signal
from typing import Any

from .disagg import LONG, SLOW, counts, serve
from .test_planner import moved, texts
from .together import together

PROMPTS = [f"{number} {LONG}" for number in range(6)]
FIELDS = {"max_tokens": 300, "ignore_eos": True}


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
    command = serve(machine, *flags, arguments={**SLOW, "speedup_ratio": 0.3})
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
    streams += [machine.stream(url, topic, **FIELDS) for topic in topics[6:]]
    assert details(machine, "PrefillWorker.0")["engine"]["running"], "it answers"
    assert switched(machine, "Worker.1", "decode", "--timeout=0.2")["Worker.1"] == "decode"
    assert switched(machine, "Worker.0", "prefill", "--timeout=0.2")["Worker.0"] == "prefill"
    found = texts(streams)
    answers = [one.answer()["choices"][0]["message"]["content"] for one in begun]
    machine.until(lambda: short("/Worker.0"), what="prompts computed by the other one")
    assert {row["process"]: row["pid"] for row in machine.ps()} == pids, "nobody was started again"
    command.end()
    url = serve(machine, "--Processor.remote-prefill=false", "--name=plain").ready()
    assert found == machine.chats(url, topics, **FIELDS)
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
