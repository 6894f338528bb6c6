"""`python -m tools.bench.tracing`: CPU of the ingress per request with and without traces, and of the exporter.

Two frontends, one with all requests sampled, get the same requests in turns, so that a busy machine slows both. Numbers
are CPU time from /proc, not wall time. The collector is the receiver of the tests, in this process. With `--audit` the
second frontend writes the audit log instead. A frontend has a mocker in a process of its own.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from dynamod.features.tracing.context import read_context
from dynamod.features.tracing.handed import Handed
from dynamod.features.tracing.ingress import TracingReader, collector, line
from dynamod.features.tracing.otlp import Sender
from dynamod.features.tracing.settings import TracingSettings
from dynamod.message.discovery import Instance
from dynamod.observe.records import RequestRecord
from dynamod.observe.timeline import ACCEPTED, ASKED, FINISHED, FIRST, PLACED, SENT, Timeline
from dynamod.router.decision import Candidate, Decision
from tests.features.tracing.receiver import Collector
from tools.bench.load import Work, run

TICK = os.sysconf("SC_CLK_TCK")
WARM = 100


class Served:
    """A frontend with echo_core on a daemon of its own."""

    def __init__(self, folder: Path, name: str, more: dict[str, str]) -> None:
        (folder / name).mkdir()
        env = {**os.environ, "DYNAMOD_SOCKET": str(folder / name / "s"), "DYN_TOKEN_ECHO_DELAY_MS": "0", **more}
        words = ("in=http", "out=mocker", "sample", "--http-port=0", "--model-name=sample", "--", "--speedup-ratio=0")
        command = [str(Path(sys.executable).with_name("dynamo-run")), *words]
        self.log = (folder / name / "log").open("w+")
        self.process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=self.log, text=True)
        assert self.process.stdout is not None
        for said in self.process.stdout:
            if "http://" in said:
                port = int(said.strip().rstrip("/").rpartition(":")[2].split()[0])
                break
        else:
            raise SystemExit(f"the frontend has not started: {(folder / name / 'log').read_text()[-2000:]}")
        self.port = port
        dynamo = str(Path(sys.executable).with_name("dynamo"))
        told = subprocess.run([dynamo, "ps", "--output", "json"], env=env, capture_output=True, text=True, check=True)
        self.pid = next(row["pid"] for row in json.loads(told.stdout) if row["component"] == "Frontend")

    def ask(self, count: int, tokens: int, at_once: int) -> None:
        """Chats, streamed if they have more than one token of answer, so many at a time."""
        work = Work("sample", requests=count, streams=at_once, words=10, tokens=tokens, unary=tokens == 1)
        errors = asyncio.run(run(self.port, work, [])).errors
        assert not errors, errors

    def cpu(self) -> float:
        """Seconds of CPU of the ingress process."""
        return _cpu(self.pid)

    def exporter(self) -> int | None:
        """The exporter process."""
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                if b"tracing.exporter" in Path(f"/proc/{child}/cmdline").read_bytes():
                    return int(child)
        return None

    def end(self) -> None:
        """End it."""
        self.process.terminate()
        self.process.communicate(timeout=30)
        self.log.close()


def _cpu(pid: int) -> float:
    """Seconds of CPU of a process: of its threads that live, to the nanosecond, where the system says it."""
    try:
        tasks = Path(f"/proc/{pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9
    except OSError:
        pass
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def parts(count: int = 20_000) -> dict[str, float]:
    """Microseconds of CPU per request of what tracing adds in the ingress, with its threads, and of making the spans.

    The times of a request are made up; a real exporter process takes the lines, and no collector the spans.
    """
    settings = TracingSettings(otel_export_enabled=True, otel_exporter_otlp_protocol="http/protobuf")
    instance = Instance("n", "c", "generate", 5, {}, process="agg/Worker.0", node="one")
    candidates = tuple(Candidate(number, 1, 1, 2.0) for number in range(4))
    decision = Decision("r", "m", "kv", 1.0, 40, 16, candidates, 1, "lowest total")
    about = {PLACED: (instance, decision, 0.0001), SENT: instance}
    lines: list[bytes] = []

    async def taken() -> float:
        reader = TracingReader(settings)
        spent = 0.0
        for number in range(count):
            began = time.perf_counter()
            timeline = Timeline(began, began, began, began, began, began, began, began, began)
            timeline.marks.extend(
                (what, 0, time.perf_counter(), about.get(what))
                for what in (ASKED, PLACED, SENT, ACCEPTED, FIRST, FINISHED)
            )
            record = RequestRecord(id="x", time=1.0, duration_ms=2.0, status=200, model="m", timeline=timeline)
            before = time.process_time()
            timeline.trace = context = read_context({}, 1.0, linked=False)
            context.passed(0)
            reader.take(record)
            spent += time.process_time() - before
            if not number % 50:
                lines.append(line(record, timeline, context))
                before = time.process_time()
                await asyncio.sleep(0.01)  # the threads write
                spent += time.process_time() - before
        before = time.process_time()
        await reader.close()
        return (spent + time.process_time() - before) / count * 1e6

    ingress = asyncio.run(taken())
    batch = [msgspec.json.decode(one, type=Handed) for one in lines]
    sender, before = Sender(collector(settings)), time.process_time()
    for _ in range(10):
        sender.encoded(batch)
    spans = (time.process_time() - before) / len(batch) / 10 * 1e6
    return {"part_ingress_us": round(ingress, 1), "part_spans_us": round(spans, 1)}


def main() -> None:
    """Measure and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=1000, help="per turn (default: 1000)")
    parser.add_argument("--turns", type=int, default=10, help="of each frontend (default: 10)")
    parser.add_argument("--tokens", type=int, default=1, help="of each answer; streamed from 2 on (default: 1)")
    parser.add_argument("--at-once", type=int, default=16, help="requests that are open at a time (default: 16)")
    parser.add_argument("--audit", action="store_true", help="the audit log instead of traces")
    parser.add_argument("--parts", action="store_true", help="only what tracing adds, for a machine that is busy")
    given = parser.parse_args()
    if given.parts:
        print(json.dumps(parts()))
        return
    with tempfile.TemporaryDirectory() as name, Collector() as receiver:
        off = Served(Path(name), "off", {})
        on = Served(Path(name), "on", {"DYN_AUDIT_DIR": f"{name}/audit"} if given.audit else receiver.environment)
        try:
            for one in (off, on):
                one.ask(WARM, given.tokens, given.at_once)
            time.sleep(2)
            exporter = on.exporter()
            assert given.audit or exporter is not None, "no exporter process"
            before, costs = _cpu(exporter) if exporter else 0.0, {off: list[float](), on: list[float]()}
            for turn in range(given.turns):
                for one in (off, on) if turn % 2 else (on, off):
                    began = one.cpu()
                    one.ask(given.requests, given.tokens, given.at_once)
                    time.sleep(0.3)  # what is handed over later belongs to the turn
                    costs[one].append((one.cpu() - began) / given.requests * 1e6)
            without, with_ = statistics.median(costs[off]), statistics.median(costs[on])
            added = [two - one for one, two in zip(costs[off], costs[on], strict=True)]
            found = {
                "requests": given.requests * given.turns,
                "ingress_off_us": round(without, 1),
                "ingress_on_us": round(with_, 1),
                "ingress_added_us": round(statistics.median(added), 1),
                "added_by_turn_us": [round(one, 1) for one in sorted(added)],
                "ratio": round(with_ / without, 3),
            }
            if exporter:
                spent = (_cpu(exporter) - before) / (given.requests * given.turns) * 1e6
                found["exporter_us"] = round(spent, 1)
            print(json.dumps(found))
        finally:
            for one in (off, on):
                one.end()


if __name__ == "__main__":
    main()
