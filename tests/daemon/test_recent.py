"""The records of the daemon's process, by component."""

import logging
from pathlib import Path

from dynamod.daemon.logs import Recent
from dynamod.observe.logstore import LogStore


def test_records_are_sorted_by_component_and_numbered(tmp_path: Path) -> None:
    log_store = LogStore(tmp_path)
    recent = Recent(log_store)
    recent.handle(logging.makeLogRecord({"name": "t", "msg": "mine", "levelno": 20}))
    recent.handle(logging.makeLogRecord({"name": "t", "msg": "theirs", "levelno": 20, "component": "agg/W.0"}))
    assert log_store.tail(["dynamod"], 1)[0].endswith("  INFO t: mine")
    assert log_store.tail(["agg/W.0"], 1)[0].endswith("  INFO t: theirs component=agg/W.0")
    log_store.close()
    assert recent.number == 2
    assert len(recent.after(0, None)) == 2
    assert [line.rpartition(": ")[2] for line in recent.after(0, {"dynamod"})] == ["mine"]
    assert recent.after(1, {"dynamod"}) == []
