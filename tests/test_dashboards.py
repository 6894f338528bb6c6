"""Grafana dashboards and alert rules: the files are those of the table, and each expression finds something.

The second part starts a graph with prefill, decode and a planner, and Debian's Prometheus, and is for `-m slow`.
"""

import asyncio
import json
import re
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import dashboards_of_others as others
from tests.e2e.conftest import machine, played
from tools.dashboards.boards import BOARDS
from tools.dashboards.grafana import FOLDER, texts
from tools.manual import metrics

__all__ = ["machine", "played"]

RULES = FOLDER.parent / "prometheus/alerts.yml"
CONFIG = FOLDER.parent / "prometheus/prometheus.yml"
SCRAPES = 30
"""Prometheus reads the metrics once a second, so that 30 s are what five minutes are at the usual interval."""
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*(?=[{\[]|$|[ )+*/<>=-])")
_WORDS = {
    "sum",
    "max",
    "rate",
    "by",
    "on",
    "and",
    "le",
    "delta",
    "increase",
    "histogram_quantile",
    "group_left",
    "or",
    "offset",
}

SILENT = {
    "dynamo_frontend_model_rejection_total": "no request is refused here",
    "dynamo_frontend_model_cancellation_total": "no client leaves here",
    "dynamo_frontend_model_migration_total": "no worker ends here",
    'status="error"': "no request fails here",
    "dynamo_frontend_audit_lines_total": "the audit log is off here",
    "dynamo_frontend_request_trace_rows_total": "the request trace is off here",
    "dynamo_frontend_traces_total": "tracing is off here",
}
"""Parts of expressions without a series in this test, and why."""


def expressions() -> dict[str, str]:
    """Each expression of the dashboards, and where it stands."""
    return {
        expression: f"{board.file}: {panel.title}"
        for board in BOARDS
        for panels in board.rows.values()
        for panel in panels
        for expression in panel.queries.values()
    }


def rules() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]
    ]
    return found


def names(expression: str) -> set[str]:
    """The metrics of an expression."""
    bare = re.sub(r"\{[^}]*\}", "{}", re.sub(r'"[^"]*"', '""', expression))
    bare = re.sub(r"\b(?:by|on|ignoring|group_left) \([^)]*\)", "", bare)
    return {name for name in _NAME.findall(bare) if name not in _WORDS and "_" in name}


def test_the_files_are_those_of_the_table() -> None:
    assert {path.name: path.read_text() for path in sorted(FOLDER.glob("*.json"))} == {
        path.name: text for path, text in sorted(texts().items())
    }, "python -m tools.dashboards"
    for text in texts().values():
        board = json.loads(text)
        ids = [panel["id"] for panel in board["panels"]]
        assert len({*ids}) == len(ids)


def test_each_metric_is_in_the_manual() -> None:
    known = {one.name for _, _, rows in metrics.SECTIONS for one in metrics.shown(rows)}
    known |= {name for name, _ in metrics.aliases()}
    asked = {name: where for expression, where in expressions().items() for name in names(expression)}
    asked |= {name: rule["alert"] for rule in rules() for name in names(rule["expr"])}
    assert len(asked) > 60
    of_histograms = {f"{name}_{part}" for name in known for part in ("bucket", "sum", "count")}
    assert {name: where for name, where in asked.items() if name not in known | of_histograms} == {}


def test_dashboards_of_others_ask_for_names_that_are_here_or_have_a_reason() -> None:
    known = {one.name for _, _, rows in metrics.SECTIONS for one in metrics.shown(rows)}
    known |= {name for name, _ in metrics.aliases()}
    known |= {f"{name}_{part}" for name in known for part in ("bucket", "sum", "count")}
    asked = {name for one in others.expressions() for name in names(one)}
    assert len(asked) > 40
    assert {name for name in asked - known if not others.excepted(name)} == set()
    assert {name for name in asked & known if others.excepted(name)} == set(), "these are here: no reason is needed"
    unused = {one for one in others.EXCEPTIONS if not any(name.startswith(one) for name in asked)}
    assert unused == set(), "no dashboard asks for these"
    assert all(others.EXCEPTIONS.values())


def test_each_rule_says_what_to_do() -> None:
    found = rules()
    assert len({rule["alert"] for rule in found}) == len(found)
    for rule in found:
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert {*rule["annotations"]} == {"summary", "action"}, rule["alert"]


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[tuple[str, int]]:
    """A Prometheus that reads a port of this machine once a second: its URL, and that port."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("needs the program prometheus (Debian: apt-get install prometheus)")
    ports = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    own, scraped = (one.getsockname()[1] for one in ports)
    config = yaml.safe_load(CONFIG.read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(RULES)]
    config["scrape_configs"][0]["static_configs"][0] = {
        "targets": [f"127.0.0.1:{scraped}"],
        "labels": {"namespace": "dynamo"},
    }
    file = tmp_path / "prometheus.yml"
    file.write_text(yaml.safe_dump(config))
    for one in ports:
        one.close()
    process = subprocess.Popen(
        [
            *(program, f"--config.file={file}", f"--storage.tsdb.path={tmp_path / 'data'}"),
            *(f"--web.listen-address=127.0.0.1:{own}", "--log.level=error"),
        ],
    )
    try:
        yield f"http://127.0.0.1:{own}", scraped
    finally:
        process.terminate()
        process.wait(10)


def query(url: str, expression: str) -> list[dict[str, Any]]:
    """The series that an expression gives now; those without a number do not count."""
    words = urllib.parse.urlencode({"query": expression})
    with urllib.request.urlopen(f"{url}/api/v1/query?{words}", timeout=10) as answer:
        found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
    return [one for one in found if one["value"][1] != "NaN"]


def concrete(expression: str) -> str:
    """An expression of a dashboard, as Grafana sends it with all models and processes chosen."""
    found = expression.replace("$__rate_interval", f"{SCRAPES}s").replace("$model", ".*").replace("$process", ".*")
    return re.sub(r"\[\d+[sm]\]", f"[{SCRAPES}s]", found).replace("$namespace", "dynamo")


@pytest.mark.slow
def test_each_expression_has_a_series(machine: Any, prometheus: tuple[str, int]) -> None:
    url, port = prometheus
    served = machine.start(
        "dynamo",
        *("serve", "graphs.disagg_planner:Frontend", "-f", "configs/disagg_planner.yaml", "--Frontend.port=0"),
        *("--Processor.router_mode=kv", "--Processor.max-local-prefill-length=32"),
        DYN_SYSTEM_PORT=str(port),
    ).ready()
    until, number = time.monotonic() + SCRAPES + 15, 0
    while time.monotonic() < until:  # sessions of which each turn has the turns before, so that the cache is hit
        number += 1
        text = " ".join(f"session {number % 4} turn {turn}" for turn in range(number // 4 % 16 + 8))
        asyncio.run(asyncio.to_thread(machine.begin(served, text, request=f"r{number}", max_tokens=8).answer))
    found = {expression: query(url, concrete(expression)) for expression in expressions()}
    silent = {expression for expression, series in found.items() if not series}
    excused = {expression for expression in found if any(part in expression for part in SILENT)}
    assert {expression: expressions()[expression] for expression in silent - excused} == {}
    unused = [part for part in SILENT if not any(part in one for one in [*silent, *(rule["expr"] for rule in rules())])]
    assert unused == [], "these have series: no reason is needed"
    wanted = [one for one in others.expressions() if not any(map(others.excepted, names(one)))]
    assert [one for one in wanted if not query(url, concrete(one))] == [], "dashboards of others"
    with urllib.request.urlopen(f"{url}/api/v1/rules", timeout=10) as answer:
        loaded = [rule for group in json.load(answer)["data"]["groups"] for rule in group["rules"]]
    assert {rule["name"]: rule["health"] for rule in loaded} == {rule["alert"]: "ok" for rule in rules()}
    firing = [rule["name"] for rule in loaded if rule["state"] == "firing"]
    assert firing == [], "all is well"
    for rule in rules():
        for metric in names(rule["expr"]):
            assert query(url, metric) or any(part in metric for part in SILENT), (rule["alert"], metric)
