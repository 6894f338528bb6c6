"""Accelerators: each replica has its own, keeps it over a crash, and too few are one line."""

import os
import signal
from pathlib import Path
from typing import Any

from .together import together


def visible(pid: int) -> str:
    words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    (found,) = [word.decode().partition("=")[2] for word in words if word.startswith(b"CUDA_VISIBLE_DEVICES=")]
    return found


@together
def test_each_worker_has_its_own_and_keeps_it(machine: Any) -> None:
    machine.env["DYNAMOD_GPUS"] = "3,5"
    gpus = ("--Worker.ServiceArgs.resources.gpu=1", "--Worker.ServiceArgs.workers=2")
    command = machine.agg(*gpus, fresh=True)  # the kernel shows the variables that a new interpreter began with
    url = command.ready()
    rows = machine.ps("Worker")
    assert [row["gpus"] for row in rows] == [["3"], ["5"]]
    assert [visible(row["pid"]) for row in rows] == ["3", "5"]
    assert machine.raw("GET", "/v1/status")[1]["gpus"] == {"agg/Worker.0": ["3"], "agg/Worker.1": ["5"]}

    for row in rows:
        os.kill(row["pid"], signal.SIGKILL)
    machine.until(lambda: [(row["state"], row["restarts"]) for row in machine.ps("Worker")] == [("Ready", 1)] * 2)
    command.tree()
    assert [visible(row["pid"]) for row in machine.ps("Worker")] == ["3", "5"]
    more = machine.run("dynamo", "scale", "Worker", 3).mistake()
    assert "GPU" in more
    assert len(machine.ps("Worker")) == 2

    # what is given back can be used again
    assert machine.run("dynamo", "scale", "Worker", 1).code == 0
    assert machine.run("dynamo", "scale", "Worker", 2).code == 0
    assert [row["gpus"] for row in machine.ps("Worker")] == [["3"], ["5"]]
    machine.until(lambda: [row["state"] for row in machine.ps("Worker")] == ["Ready"] * 2)
    command.tree()
    assert machine.serves(url)


@together
def test_too_few_are_one_line(machine: Any) -> None:
    line = machine.agg("--Worker.ServiceArgs.resources.gpu=2", DYNAMOD_GPUS="7").wait(20).mistake()
    assert "asks for 2 GPUs, 1 of 1 are free" in line
    assert "DYNAMOD_GPUS" in line


@together
def test_a_reload_moves_them_or_changes_nothing(machine: Any) -> None:
    machine.env["DYNAMOD_GPUS"] = "3,5"

    def reload(gpu: int, workers: int) -> None:
        texts = f"['--Worker.engine=echo_full', '--Worker.ServiceArgs.resources.gpu={gpu}', "
        texts += f"'--Worker.ServiceArgs.workers={workers}']"
        graph = f"{{target: 'graphs.agg:Frontend', config: configs/agg.yaml, service_name: Worker, overrides: {texts}}}"
        (machine.folder / "d.yaml").write_text(f"graphs:\n  - {graph}\n")

    def held() -> dict[str, list[str]]:
        found: dict[str, list[str]] = machine.raw("GET", "/v1/status")[1]["gpus"]
        return found

    def pids(count: int) -> dict[str, int]:
        machine.until(lambda: [row["state"] for row in machine.ps()] == ["Ready"] * count)
        return {row["process"]: row["pid"] for row in machine.ps()}

    reload(1, 1)
    daemon = machine.start("dynamod", "-c", "d.yaml", fresh=True)
    machine.until(machine.raw_status)
    before = pids(1)
    assert held() == {"agg/Worker.0": ["3"]}
    reload(1, 3)
    daemon.send(signal.SIGHUP)
    machine.until(lambda: "graph agg runs on as it was" in daemon.err)
    assert "asks for 1 GPU, 0 of 2 are free" in daemon.err
    assert (held(), pids(1)) == ({"agg/Worker.0": ["3"]}, before)
    reload(1, 2)
    daemon.send(signal.SIGHUP)
    machine.until(lambda: held() == {"agg/Worker.0": ["3"], "agg/Worker.1": ["5"]})
    assert pids(2)["agg/Worker.0"] == before["agg/Worker.0"]
    reload(2, 1)
    daemon.send(signal.SIGHUP)
    machine.until(lambda: held() == {"agg/Worker.0": ["3", "5"]})
    machine.until(lambda: [row["state"] for row in machine.ps()] == ["Ready"])
    daemon.tree()
    assert visible(machine.row("Worker")["pid"]) == "3,5"
    assert machine.row("Worker")["pid"] != before["agg/Worker.0"]
