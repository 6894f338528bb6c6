"""Dashboards as the JSON that Grafana imports."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .boards import BOARDS
from .panels import Board, Panel

FOLDER = Path(__file__).resolve().parents[2] / "deploy/grafana"
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH, HEIGHT, COLUMNS = 12, 8, 24
VARIABLES = {"model": "dynamo_frontend_model_ready", "process": "dynamod_process_uptime"}
"""Variables of each dashboard, with the metric that has their values."""


def dashboard(board: Board) -> dict[str, Any]:
    """The JSON of a dashboard."""
    link = {"type": "dashboards", "tags": ["dynamod"], "title": "dynamod", "includeVars": True, "keepTime": True}
    return {
        "uid": f"dynamod-{board.file}",
        "title": board.title,
        "tags": ["dynamod"],
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "schemaVersion": 39,
        "time": {"from": "now-1h", "to": "now"},
        "links": [link],
        "templating": {"list": [*_variables()]},
        "panels": [*_panels(board)],
    }


def _variables() -> Iterator[dict[str, Any]]:
    yield {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"}
    for name, metric in VARIABLES.items():
        query = f"label_values({metric}, {name})"
        yield {
            "name": name,
            "type": "query",
            "datasource": DATASOURCE,
            "query": query,
            "refresh": 2,
            "includeAll": True,
            "multi": True,
            "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
        }


def _panels(board: Board) -> Iterator[dict[str, Any]]:
    number = y = 0
    for title, panels in board.rows.items():
        number += 1
        place = {"x": 0, "y": y, "w": COLUMNS, "h": 1}
        yield {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []}
        y += 1
        for index, panel in enumerate(panels):
            number += 1
            yield _graph(panel, number, x=index % 2 * WIDTH, y=y + index // 2 * HEIGHT)
        y += (len(panels) + 1) // 2 * HEIGHT


def _graph(panel: Panel, number: int, *, x: int, y: int) -> dict[str, Any]:
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        **({"description": panel.help} if panel.help else {}),
        "datasource": DATASOURCE,
        "gridPos": {"x": x, "y": y, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + at), "datasource": DATASOURCE, "expr": expression, "legendFormat": legend}
            for at, (legend, expression) in enumerate(panel.queries.items())
        ],
    }


def texts() -> dict[Path, str]:
    """The content of each file."""
    return {FOLDER / f"{one.file}.json": json.dumps(dashboard(one), indent=1) + "\n" for one in BOARDS}
