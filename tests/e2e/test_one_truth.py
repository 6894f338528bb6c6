"""`status`, `doctor`, `ps`, `/health` and `/v1/models` agree about which models can be asked, whatever happens."""

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

MOMENT = 4
"""Samples in a row that may differ: one source was asked before a change, the other after it."""


@dataclass(frozen=True)
class Sample:
    """What each source said, one after the other. `at`: when the first one was asked."""

    at: float
    models: frozenset[str]
    healthy: bool
    instances: bool
    status: frozenset[str]
    ready: bool
    problems: bool
    ps: frozenset[str]
    worker: frozenset[str]

    def faults(self) -> list[str]:
        """How the sources differ."""
        said = {"status": self.status, "ps": self.ps, "ps of the workers": self.worker}
        found = [
            f"{who} {sorted(one)}, /v1/models {sorted(self.models)}" for who, one in said.items() if one != self.models
        ]
        if self.healthy != bool(self.models):
            found.append(f"/health {self.healthy}, /v1/models {sorted(self.models)}")
        if self.instances != bool(self.models):
            found.append(f"/health lists instances: {self.instances}, /v1/models {sorted(self.models)}")
        if self.ready and not self.models:
            found.append("status says ready, /v1/models is empty")
        return found


def sample(machine: Any, url: str) -> Sample:
    """Ask all of them. An ingress that is away has no models."""
    at = time.monotonic()
    try:
        models = {one["id"] for one in json.loads(machine.ask(url, "/v1/models")[1])["data"]}
        code, text = machine.ask(url, "/health")
    except (OSError, KeyError):
        models, code, text = set(), 503, "{}"
    status, rows = machine.raw("GET", "/v1/status")[1], machine.raw("GET", "/v1/ps")[1]
    (graph,) = status["graphs"] or [{"models": [], "ready": False}]  # it is about to start
    return Sample(
        at,
        frozenset(models),
        code == 200,
        bool(json.loads(text).get("instances")),
        frozenset(graph["models"]),
        graph["ready"],
        bool(status["problems"]),
        frozenset(name for row in rows if row["component"] == "Processor" for name in row["models"]),
        frozenset(name for row in rows if row["component"] == "Worker" for name in row["models"]),
    )


@dataclass(frozen=True)
class Diagnosis:
    """The models that `dynamo doctor` named, and when it began and ended."""

    begun: float
    ended: float
    models: frozenset[str]


def diagnose(machine: Any) -> Diagnosis:
    begun = time.monotonic()
    found = json.loads(machine.run("dynamo", "doctor", "--output", "json", "--port", machine.port(), seconds=60).out)
    said = [one["found"] for one in found if one["check"] == "models" and one["state"] == "ok"]
    names = [name for text in said for name in text.partition(" serves ")[2].split(", ")]
    return Diagnosis(begun, time.monotonic(), frozenset(names))


class Watch:
    """Samples all sources again and again, until it is closed. `dynamo doctor` takes longer, and has its own turn."""

    def __init__(self, machine: Any, url: str) -> None:
        self._machine, self._url = machine, url
        self.samples: list[Sample] = []
        self.diagnoses: list[Diagnosis] = []
        self._over = threading.Event()
        self._threads = [threading.Thread(target=one) for one in (self._run, self._run_doctor)]
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                self.samples.append(sample(self._machine, self._url))
            except OSError:  # the daemon is not there yet
                pass
            time.sleep(0.01)

    def _run_doctor(self) -> None:
        while not self._over.is_set():
            self.diagnoses.append(diagnose(self._machine))
            time.sleep(0.1)

    def close(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def settled(self, models: set[str]) -> Sample:
        """Wait until all sources agree that these can be asked."""

        def look() -> Sample | None:
            last = self.samples[-1] if self.samples else None
            return last if last is not None and last.models == models and not last.faults() else None

        return self._machine.until(look, what=f"{models} everywhere, not {self.samples[-1:]}")

    def differences(self) -> list[str]:
        """Disagreements that lasted for longer than a moment."""
        row, found = 0, list[str]()
        for one in self.samples:
            row = row + 1 if (faults := one.faults()) else 0
            if row > MOMENT:
                found += faults
        for told in self.diagnoses:
            # With a sample before and one after: things change between two samples, and there is none without a daemon.
            before = [one.at for one in self.samples if one.at <= told.begun]
            after = [one.at for one in self.samples if one.at >= told.ended]
            if not before or not after:
                continue
            meanwhile = [one for one in self.samples if min(before[-1], told.begun - 0.1) <= one.at <= after[0]]
            models = {one.models for one in meanwhile}
            if len(models) == 1 and told.models not in models and not any(one.faults() for one in meanwhile):
                found.append(f"doctor {sorted(told.models)}, all others {models} from {told.begun} to {told.ended}")
        return found


@contextmanager
def watched(machine: Any, url: str) -> Iterator[Watch]:
    watch = Watch(machine, url)
    try:
        yield watch
    finally:
        watch.close()
    assert watch.differences() == []
    assert frozenset({"sample"}) in {told.models for told in watch.diagnoses}


def test_all_say_the_same_during_start_switch_drain_and_kill(machine: Any) -> None:
    port = machine.port()
    url = f"http://127.0.0.1:{port}"
    with watched(machine, url) as watch:
        command = machine.start(
            "dynamo",
            *("serve", "graphs.agg:Frontend", "-f", "configs/agg.yaml", "--Worker.engine=mocker"),
            f"--Frontend.port={port}",
        )
        command.ready()
        assert not watch.settled({"sample"}).problems

        def change(*words: object) -> Any:
            return machine.run("dynamo", *words, seconds=60)

        assert change("switch", "Worker.0", "prefill", "--force").code == 0
        assert watch.settled(set()).problems, "no model, although all processes are Ready"
        assert (machine.run("dynamo", "status").code, machine.run("dynamo", "doctor").code) == (1, 1)
        assert "serves no model" in machine.run("dynamo", "status").out
        assert change("switch", "Worker.0", "aggregated").code == 0
        assert not watch.settled({"sample"}).problems
        shown = machine.run("dynamo", "status")
        assert (shown.code, "agg: ready" in shown.out, "serves sample" in shown.out) == (0, True, True)
        assert "graph agg serves sample" in machine.run("dynamo", "doctor", "--port", machine.port()).out
        assert "| sample" in machine.run("dynamo", "ps").out

        os.kill(machine.row("Worker")["pid"], signal.SIGKILL)
        watch.settled(set())
        watch.settled({"sample"})
        os.kill(machine.row("Worker")["pid"], signal.SIGSTOP)
        watch.settled(set())
        watch.settled({"sample"})  # it is killed and started again

        assert change("scale", "Worker", "0", "--force").code == 0
        assert watch.settled(set()).problems
        assert change("scale", "Worker", "1").code == 0
        watch.settled({"sample"})
        assert change("drain", "Worker", "--force").code == 0
        watch.settled(set())
        os.kill(machine.row("Frontend")["pid"], signal.SIGKILL)
        machine.until(lambda: machine.row("Frontend")["state"] == "Ready")
        watch.settled(set())
