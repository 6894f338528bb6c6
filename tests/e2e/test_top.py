"""`dynamo top` in a real terminal over a graph under load; what scripts get; routers and frontends in the metrics."""

import fcntl
import json
import os
import re
import select
import signal
import struct
import termios
import threading
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

CODES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
END = "\x1b[?1049l"
"""The terminal shows again what it showed before."""
ROW = {
    *("process", "graph", "components", "session", "state", "answers", "pid", "instance", "restarts", "uptime", "cpu"),
    *("rss", "mailbox", "last_error", "ingress", "worker", "waits"),
}
INGRESS = {
    *("in_flight", "queued", "requests_per_second", "ttft_p50", "ttft_p99", "itl_p50", "itl_p99"),
    "errors_per_second",
}
WORKER = {
    *("running", "waiting", "active_blocks", "total_blocks", "hit_rate", "tokens_per_second", "pool", "sessions"),
    *("host", "disk", "steps"),
}


class Terminal:
    """A command in a pseudo-terminal of its own."""

    def __init__(self, machine: Any, *argv: str, rows: int = 40, columns: int = 170) -> None:
        self.text = ""
        self._fd, self._process = machine.terminal("dynamo", *argv, size=(rows, columns), TERM="xterm-256color")
        self.pid = self._process.pid
        self.code: int | None = None

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def press(self, keys: bytes) -> None:
        os.write(self._fd, keys)

    def reads(self, pattern: str, seconds: float = 20.0) -> "re.Match[str]":
        """Wait until what has come since the last call holds the pattern; the rest is kept for the next call."""
        end = time.monotonic() + seconds
        while True:
            shown = CODES.sub("", self.text) if "\x1b" not in pattern else self.text
            match = re.search(pattern, shown)
            if match is not None:
                self.text = ""
                return match
            assert time.monotonic() < end, f"{pattern} in {shown[-20_000:]}"
            if select.select([self._fd], [], [], 0.05)[0]:
                try:
                    self.text += os.read(self._fd, 1 << 16).decode(errors="replace")
                except OSError:  # the other side is closed
                    assert re.search(pattern, self.text), f"it ended without {pattern!r}: {self.text[-3000:]}"

    def wait(self, seconds: float = 5.0) -> int:
        """Its exit code."""
        end = time.monotonic() + seconds
        while self.code is None:
            self.code = self._process.poll()
            if self.code is not None:
                os.close(self._fd)
                return self.code
            assert time.monotonic() < end, "it does not end"
            if select.select([self._fd], [], [], 0.02)[0]:
                try:
                    self.text += os.read(self._fd, 1 << 16).decode(errors="replace")
                except OSError:
                    continue
        return self.code

    def close(self) -> None:
        if self.code is None:
            os.kill(self.pid, signal.SIGKILL)
            self.wait()


@pytest.fixture(scope="module")
def served(shared: Any) -> Iterator[Any]:
    """The shipped graph with four mocked workers, under load until the end."""
    command = shared.start(
        "dynamo", "serve", "graphs.agg_router:Frontend", "-f", "configs/agg_router.yaml", "--Frontend.port=0"
    )
    command.url = command.ready()
    over = threading.Event()

    def load(number: int) -> None:
        while not over.is_set():
            text = f"{number} " + "the quick brown fox " * 30
            body = {"model": "sample", "messages": [{"role": "user", "content": text}], "max_tokens": 40}
            body["stream"] = True
            data, head = json.dumps(body).encode(), {"Content-Type": "application/json"}
            with urllib.request.urlopen(
                urllib.request.Request(f"{command.url}/v1/chat/completions", data, head), timeout=30
            ) as answer:
                answer.read()

    threads = [threading.Thread(target=load, args=(number,), daemon=True) for number in range(3)]
    for thread in threads:
        thread.start()
    yield command
    over.set()
    for thread in threads:
        thread.join(30)
    done = command.end()
    assert " ERROR " not in done.out + done.err, "it ends in silence"


@pytest.fixture
def terminal(shared: Any, served: Any) -> Iterator[Any]:
    opened: list[Terminal] = []

    def start(*argv: str) -> Terminal:
        opened.append(Terminal(shared, *argv))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


def test_live(terminal: Any) -> None:
    top = terminal("top", "--interval", "0.3")
    line = top.reads(r"agg_router/ingress\.0 +Ready +(\d+) +([0-9a-f]+) .* (\d+\.?\d*) +[\d.]+/[\d.]+ +[\d.]+/[\d.]+")
    os.kill(int(line[1]), 0)
    assert float(line[3]) > 1, "requests per second"
    top.reads(r"agg_router/Worker\.\d +Ready +\d+ +[0-9a-f]+ .* \d+/4096 +\d+% +\d\d+")

    top.resize(12, 60)
    narrow = top.reads(r"PROCESS +STATE +(?:CPU% +)?FLIGHTS[^\n]*")[0]
    assert "INSTANCE" not in narrow
    top.resize(5, 60)
    top.reads(r"\d+ more lines")
    top.resize(40, 200)
    top.reads(r"INSTANCE")
    pressed = time.monotonic()
    top.press(b"q")
    top.reads(re.escape(END))
    assert top.wait() == 0
    assert time.monotonic() - pressed < 3


@pytest.mark.parametrize("how", [b"\x03", signal.SIGTERM])
def test_other_ends_leave_the_terminal_as_it_was(terminal: Any, how: Any) -> None:
    top = terminal("top", "--interval", "60")
    top.reads(r"q ends")
    if isinstance(how, bytes):
        top.press(how)
    else:
        os.kill(top.pid, how)
    top.reads(re.escape(END))
    assert top.wait() == 0


def test_once_for_scripts(shared: Any, served: Any) -> None:
    done = shared.run("dynamo", "top", "--once", "--output", "json")
    assert done.code == 0, done.err
    view = done.json
    assert view.keys() == {"version", "node", "pid", "uptime", "interval", "processes"}
    assert view["pid"] == shared.daemon().pid
    assert 0.9 < view["interval"] < 5
    rows = {row["process"]: row for row in view["processes"]}
    assert rows.keys() == {"agg_router/ingress.0", *(f"agg_router/Worker.{number}" for number in range(4))}
    for row in rows.values():
        assert row.keys() == ROW
        assert (row["state"], row["answers"], row["restarts"]) == ("Ready", True, 0)
        assert row["session"].endswith(f"pid {served.pid}")
        assert row["rss"] > 1 << 20
        assert row["cpu"] >= 0
        assert row["uptime"] > 0
        assert int(row["instance"], 16) > 0
    pids = {row["process"]: row["pid"] for row in shared.ps()}
    assert {name: row["pid"] for name, row in rows.items()} == pids
    front = rows["agg_router/ingress.0"]
    assert front["components"] == ["Processor", "Frontend"]
    assert front["ingress"].keys() == INGRESS
    assert front["worker"] is None
    assert front["ingress"]["requests_per_second"] > 1
    assert 0 < front["ingress"]["ttft_p50"] <= front["ingress"]["ttft_p99"] < 60
    assert 0 < front["ingress"]["itl_p50"] <= front["ingress"]["itl_p99"] < 60
    workers = [row["worker"] for row in rows.values() if row["worker"] is not None]
    assert [one.keys() for one in workers] == [WORKER] * 4
    assert {one["total_blocks"] for one in workers} == {4096}
    assert sum(one["tokens_per_second"] for one in workers) > 10
    assert sum(one["steps"]["per_second"] for one in workers) > 1
    assert max(one["hit_rate"] for one in workers) > 0.5
    instances = json.loads(shared.ask(served.url, "/health")[1])["instances"]
    assert {f"{one['instance_id']:x}" for one in instances} <= {row["instance"] for row in rows.values()}


def test_without_a_terminal_it_prints_one_table(shared: Any, served: Any) -> None:
    done = shared.run("dynamo", "top", "--interval", "0.2")
    assert done.code == 0, done.err
    assert "TOKENS/S" in done.out
    assert "TTFT" in done.out
    assert len(re.findall(r"^\W+agg_router/Worker\.\d+ \| Ready ", done.out, re.MULTILINE)) == 4
    assert "\x1b" not in done.out


def counted(machine: Any, url: str) -> dict[str, float]:
    """What the dashboards make rates and gauges of, summed over all labels."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(machine.ask(url, "/metrics")[1]):
        for sample in family.samples:
            if "quantile" not in sample.labels and not sample.name.endswith("_bucket"):
                found[sample.name] = found.get(sample.name, 0) + sample.value
    return found


def test_the_numbers_are_those_of_the_dashboards(shared: Any, served: Any) -> None:
    before = counted(shared, served.url)
    view = shared.run("dynamo", "top", "--once", "--output", "json", "--interval", "2").json
    after = counted(shared, served.url)
    (front,) = [row["ingress"] for row in view["processes"] if row["ingress"] is not None]
    seconds = view["interval"]
    grew = {name: value - before.get(name, 0) for name, value in after.items()}
    assert 0 < front["requests_per_second"] * seconds <= grew["dynamo_frontend_requests_total"]
    assert front["errors_per_second"] == 0
    mean = (
        grew["dynamo_frontend_time_to_first_token_seconds_sum"]
        / grew["dynamo_frontend_time_to_first_token_seconds_count"]
    )
    assert mean / 20 < front["ttft_p50"] < mean * 20
    tokens = sum(row["worker"]["tokens_per_second"] for row in view["processes"] if row["worker"] is not None)
    assert 0 < tokens * seconds <= grew["dynamo_frontend_output_tokens_total"] + 3 * 40, "three answers are open"


def test_what_waits_and_why(machine: Any) -> None:
    """One worker that computes one request at a time: two others wait, and all places say so."""
    machine.env["DYN_SYSTEM_PORT"] = "-1"
    arguments = machine.folder / "one.yaml"
    arguments.write_text("max_num_seqs: 1\nspeedup_ratio: 0.05\n")
    front = machine.start(
        *("dynamo-run", "in=http", "out=mocker", "sample", "--http-port=0", "--model-name=sample"),
        f"--extra-engine-args={arguments}",
    )
    url = front.ready()
    begun = [machine.begin(url, f"{number} slow", request=f"r{number}", max_tokens=2000) for number in range(3)]

    def waiting() -> dict[str, Any]:
        view = machine.run("dynamo", "top", "--once", "--output", "json", "--interval", "0.2").json
        rows = {"worker" if row["worker"] else "frontend": row for row in view["processes"]}
        return rows if rows["worker"]["worker"]["waiting"] == 2 else {}

    rows = machine.until(waiting)
    assert rows["worker"]["waits"] == ["2 requests in the engine: 1 request before"]
    assert rows["frontend"]["waits"] == []
    families = {one.name: one for one in text_string_to_metric_families(machine.ask(url, "/metrics")[1])}
    stages = {
        (one.labels["stage"], one.labels["phase"]): one.value
        for one in families["dynamo_frontend_stage_requests"].samples
    }
    assert stages[("dispatch", "aggregated")] in (2, 3), "the first one may have no token yet"
    assert (stages["preprocess", ""], stages["route", "aggregated"]) == (0, 0)
    assert sum(one.value for one in families["dynamo_frontend_active_requests"].samples) == 3
    text = machine.run("dynamo", "top", "--interval", "0.2").out
    assert re.search(r"^\S+: 2 requests in the engine: 1 request before$", text, re.MULTILINE), text
    for one in begun:
        one.leave()


def test_sessions_the_silent_and_the_end(machine: Any) -> None:
    """What all terminals run is shown; the silent hold nobody up; the view outlives the node."""
    machine.env["DYN_TOKEN_ECHO_DELAY_MS"] = "1"
    front = machine.start("dynamo-run", "in=http", "out=auto", "--http-port", 0)
    front.ready()
    session = machine.start("dynamo-run", "in=dyn://llama.backend.generate", "out=echo_core", "sample")
    session.ready()
    machine.until(lambda: len(machine.ps()) == 3)

    def look() -> dict[str, Any]:
        done = machine.run("dynamo", "top", "--once", "-o", "json", "--interval", "0.2")
        assert done.code == 0, done.err
        return {row["components"][0]: row for row in done.json["processes"]}

    rows = look()
    worker = rows["Worker"]
    assert worker["session"].endswith(f"pid {session.pid}")
    assert rows["Processor"]["session"].endswith(f"pid {front.pid}")
    assert int(worker["instance"], 16) > 0
    assert worker["cpu"] is not None
    assert (worker["worker"]["running"], worker["worker"]["total_blocks"]) == (0, None)
    first, again = worker["uptime"], look()["Worker"]["uptime"]
    assert again > first, "it is not what was reported once"
    assert machine.row("Worker")["uptime"] > first

    os.kill(worker["pid"], signal.SIGSTOP)
    try:
        quiet = look()["Worker"]
    finally:
        os.kill(worker["pid"], signal.SIGCONT)
    assert (quiet["answers"], quiet["worker"], quiet["pid"]) == (False, None, worker["pid"])

    top = Terminal(machine, "top", "--interval", "0.2")
    try:
        top.reads(r"llama|echo_core")
        session.end()
        front.end()
        top.reads("no daemon is running")
        top.press(b"q")
        assert top.wait() == 0
    finally:
        top.close()


def metrics(machine: Any, served: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """What the frontend shows, and what the control socket shows."""
    connection = machine.unix()
    connection.request("GET", "/v1/metrics")
    node = connection.getresponse().read().decode()
    connection.close()
    for where, text in (("door", machine.ask(served.url, "/metrics")[1]), ("node", node)):
        found = list(text_string_to_metric_families(text))
        assert len({family.name for family in found}) == len(found)
        assert [family.name for family in found if not family.documentation or family.type == "unknown"] == []
        yield where, {family.name: family for family in found}


def test_routers_are_in_the_metrics(shared: Any, served: Any) -> None:
    for where, found in metrics(shared, served):
        for name in ("decisions", "prompt_blocks", "overlap_blocks"):
            (sample,) = found[f"dynamod_router_{name}"].samples
            assert sample.labels == {"model": "sample", "process": "agg_router/ingress.0"}
            assert sample.value > 0, (where, name)
        for name in ("regret_blocks", "orphan_events", "shadow_differences", "active_requests", "indexed_blocks"):
            assert f"dynamod_router_{name}" in found
        for name in ("active_decode_blocks", "active_prefill_tokens"):
            samples = found[f"dynamo_frontend_worker_{name}"].samples
            assert {one.labels["worker"] for one in samples} == {f"agg_router/Worker.{n}" for n in range(4)}
        for name in ("block_hashing", "scheduling"):
            family = found[f"dynamo_router_overhead_{name}_ms"]
            assert family.type == "histogram"
            sums = {one.name.rpartition("_")[2]: one.value for one in family.samples}
            assert sums["count"] > 0
            assert 0 < sums["sum"] / sums["count"] < 100
        first = found["dynamo_frontend_time_to_first_token_seconds"].samples[0].labels
        assert ("process" in first) == (where == "node")
