"""`dynamo doctor` beside what runs, and beside what is broken."""

import json
import os
import shutil
import signal
import socket
from pathlib import Path
from typing import Any

from dynamod.preprocess.locate import locate

from .together import together


def findings(machine: Any, *words: Any, **env: str) -> tuple[int, dict[str, list[dict[str, str]]]]:
    """Exit code, and findings by check."""
    done = machine.run("dynamo", "doctor", "--output", "json", "--port", machine.port(), *words, **env)
    found: dict[str, list[dict[str, str]]] = {}
    for one in json.loads(done.out):
        found.setdefault(one["check"], []).append(one)
    return done.code, found


@together
def test_a_healthy_machine(machine: Any) -> None:
    code, found = findings(machine)
    assert code == 0
    assert {one["state"] for ones in found.values() for one in ones} == {"ok"}
    assert "none runs" in found["daemon"][0]["found"]
    text = machine.run("dynamo", "doctor", "--port", machine.port()).out
    assert "0 failed" in text.splitlines()[-1]


@together
def test_workers_and_tokenizers(machine: Any) -> None:
    folder = Path(machine.folder) / "model"
    shutil.copytree(locate("sample"), folder)
    command = machine.start(
        *("dynamo", "serve", "-f", "configs/agg.yaml", "--Frontend.port=0", "--Worker.engine=echo_core"),
        f"--Worker.model={folder}",
    )
    command.ready()
    code, found = findings(machine)
    assert code == 0, found
    assert "agg/Worker.0" in found["workers"][0]["found"]
    assert "fastokens and the reference give the same tokens" in found["tokenizer"][0]["found"]

    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["chat_template"] = "{{ messages[0].content }}"
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    for extra in folder.glob("chat_template*"):
        extra.unlink()
    code, found = findings(machine)
    assert code == 1
    assert "has changed since" in found["tokenizer"][0]["found"]
    assert "restart the worker" in found["tokenizer"][0]["mend"]

    pid = machine.row("Worker")["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        code, found = findings(machine)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert code == 1
    assert "does not answer" in found["workers"][0]["found"]
    command.end()


@together
def test_status_and_doctor_report_what_does_not_serve(machine: Any) -> None:
    """A model that cannot be loaded, a worker that does not respond, logs that cannot be written."""
    folder = Path(machine.folder) / "model"
    shutil.copytree(locate("sample"), folder)
    (Path(machine.folder) / "file").touch()
    machine.start("dynamod", LOGS_DIRECTORY=f"{machine.folder}/file/logs", DYNAMOD_KILL_TIMEOUT="60")
    machine.until(machine.raw_status)
    graph = ("dynamo", "serve", "--detach", "-f", "configs/agg.yaml", "--Frontend.port=0", "--Worker.engine=echo_core")
    assert machine.run(*graph, f"--Worker.model={folder}").code == 0
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["chat_template"] = "{{ messages[0].content "
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    for extra in folder.glob("chat_template*"):
        extra.unlink()
    assert machine.run("dynamo", "restart", "Worker").code == 0

    def problems() -> str:
        status = machine.run("dynamo", "status", "--output", "json")
        assert status.code == 1
        return " | ".join(problem["found"] for problem in status.json["problems"])

    machine.until(
        lambda: "agg/ingress.0 cannot serve model model: the model's chat template is not valid" in problems()
    )
    code, found = findings(machine)
    assert code == 1
    for what in ("chat template", "log files in "):
        assert any(what in one["found"] for one in found["health"])

    pid = machine.row("Worker")["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        machine.until(lambda: "agg/Worker.0 is unresponsive" in problems())
    finally:
        os.kill(pid, signal.SIGCONT)
    machine.until(lambda: "unresponsive" not in problems())


@together
def test_what_is_wrong_is_named_with_a_remedy(machine: Any) -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        code, found = findings(
            machine,
            *("--port", taken.getsockname()[1]),
            DYNAMOD_CLUSTER="auto",
            ETCD_ENDPOINTS="127.0.0.1:1",
            NATS_SERVER="127.0.0.1:1",
        )
    assert code == 1
    assert [one["state"] for one in found["ports"]] == ["ok", "warn"]
    assert f", by process {os.getpid()} (" in found["ports"][1]["found"]
    for check, variable in (("etcd", "ETCD_ENDPOINTS"), ("nats", "NATS_SERVER")):
        assert found[check][0]["state"] == "fail"
        assert variable in found[check][0]["mend"]
    code, found = findings(machine, DYNAMOD_CLUSTER="auto", ETCD_ENDPOINTS="ftp://other")
    assert code == 1
    assert "ETCD_ENDPOINTS" in found["cluster"][0]["found"]


@together
def test_memory_of_each_process_and_what_its_structures_hold(machine: Any) -> None:
    command = machine.start(
        *("dynamo", "serve", "graphs.agg_router:Frontend", "-f", "configs/agg_router.yaml", "--Frontend.port=0"),
        "--Worker.ServiceArgs.workers=1",
    )
    url = command.ready()
    for number in range(3):
        machine.chat(url, f"{number} is a question of more than one block of tokens: " + "why? " * 40)

    def told() -> dict[str, Any]:
        return {one["process"]: one for one in machine.run("dynamo", "doctor", "memory", "--output", "json").json}

    def held(process: str, name: str) -> dict[str, Any]:
        (one,) = [one for one in told()[f"agg_router/{process}"]["bounded"] if one["name"] == name]
        return one

    found, rows = told(), machine.ps()
    assert found.keys() == {"dynamod", "agg_router/ingress.0", "agg_router/Worker.0"}
    assert {row["process"]: row["pid"] for row in rows} == {name: found[name]["pid"] for name in [*found][1:]}
    for one in found.values():
        assert one["rss"] > 10 << 20, one
        assert one["pss"] is None or 0 < one["pss"] <= one["rss"]
        assert one["descendants"] < 1 << 30
        assert (one["error"], [box for box in one["bounded"] if box["name"] == "mailbox"] != []) == ("", True)
        assert all(0 <= here["count"] <= here["bound"] for here in one["bounded"]), one
    decisions = held("ingress.0", "kept decisions")
    assert decisions == {"name": "kept decisions", "of": "", "count": 3, "bound": 1000, "unit": "requests"}
    assert held("ingress.0", "router index")["of"] == "sample"
    machine.until(lambda: held("ingress.0", "router index")["count"] == held("Worker.0", "KV blocks")["count"] > 2)

    lines = machine.run("dynamo", "doctor", "memory").out.splitlines()
    assert any("kept decisions" in line and "1,000 requests" in line and "0.3%" in line for line in lines)
    assert "further structures are empty" in lines[-1]
    command.end()
