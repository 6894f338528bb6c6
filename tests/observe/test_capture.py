import asyncio
import json
import logging
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamod.observe.capture import LineReader
from dynamod.observe.lines import MarkedLines


def read(*lines: tuple[str, bytes]) -> list[logging.LogRecord]:
    found: list[logging.LogRecord] = []
    reader = LineReader("agg/W.0", found.append)
    for stream, line in lines:
        reader.feed(stream, line)
    return found


def brief(*lines: bytes, stream: str = "err") -> list[tuple[str, str]]:
    return [(record.levelname, record.getMessage()) for record in read(*((stream, line) for line in lines))]


def test_a_marked_line_becomes_the_record_it_was() -> None:
    before = logging.makeLogRecord(
        {"name": "dynamod.engine", "msg": "%s tokens", "args": (5,), "levelno": 30, "created": 1742220194.122652}
    )
    before.__dict__.update(x_request_id="r-1", exc_text="Traceback ...", pathname="/a/b.py", lineno=7)
    (after,) = read(("err", MarkedLines().format(before).encode() + b"\n"))
    assert after.getMessage() == "5 tokens"
    assert (after.name, after.levelno, after.levelname) == ("dynamod.engine", 30, "WARNING")
    assert after.created == pytest.approx(1742220194.122652, abs=1e-6)
    assert (after.pathname, after.lineno, after.exc_text) == ("/a/b.py", 7, "Traceback ...")
    facts = vars(after)
    assert (facts["x_request_id"], facts["component"]) == ("r-1", "agg/W.0")
    assert MarkedLines().facts(after) == {**MarkedLines().facts(before), "component": "agg/W.0"}


def test_the_childs_own_component_name_is_kept() -> None:
    line = MarkedLines(component="agg/Frontend").format(logging.makeLogRecord({"msg": "m", "levelno": 20}))
    (after,) = read(("err", line.encode()))
    assert vars(after)["component"] == "agg/Frontend"


def test_a_print_without_newline_before_a_record() -> None:
    line = MarkedLines().format(logging.makeLogRecord({"msg": "m", "levelno": 10}))
    assert brief(b"loading ..." + line.encode()) == [("INFO", "loading ..."), ("DEBUG", "m")]


@pytest.mark.parametrize(
    "line",
    [
        b"\x1e{}",
        b"\x1e{",
        b'\x1e{"time": 1}',
        b"\x1e{[[[",
        b'\x1e{"time":"2025-03-17T14:03:14Z","level":[],"target":"t","message":"m","file":"f","line":1}',
        b'\x1e{"time":"2025-03-17T14:03:14Z","level":"INFO","target":"t","message":"m","file":"f","line":"x"}',
    ],
)
def test_what_only_looks_like_a_record_is_a_print(line: bytes) -> None:
    (record,) = read(("err", line))
    assert record.name == "agg/W.0"


def test_a_record_cannot_overwrite_what_python_put_there() -> None:
    facts = {"time": "2025-03-17T14:03:14Z", "level": "INFO", "target": "t", "message": "%d {}", "file": "f", "line": 1}
    facts |= {"args": [1], "exc_info": True, "msg": "other"}
    (record,) = read(("err", b"\x1e" + json.dumps(facts).encode()))
    assert record.getMessage() == "%d {}"
    assert record.exc_info is None


def test_prints() -> None:
    assert brief(b"an ERROR on stdout\n", stream="out") == [("INFO", "an ERROR on stdout")]
    assert brief(
        b"hello\r\n",
        b"\n",
        b"WARN low memory",
        b"WARNING 03-17 [x.py:1] low",
        b"x.py:3: UserWarning: careful",
        b"ERROR: no model",
        b"thread 'main' panicked at src/lib.rs:1",
        b"INFO: 0 ERRORs, no WARN",
        b"DEBUG x",
        b"TERROR",
    ) == [
        ("INFO", "hello"),
        ("WARNING", "WARN low memory"),
        ("WARNING", "WARNING 03-17 [x.py:1] low"),
        ("WARNING", "x.py:3: UserWarning: careful"),
        ("ERROR", "ERROR: no model"),
        ("ERROR", "thread 'main' panicked at src/lib.rs:1"),
        ("INFO", "INFO: 0 ERRORs, no WARN"),
        ("DEBUG", "DEBUG x"),
        ("INFO", "TERROR"),
    ]


def test_a_traceback_is_an_error_to_its_end() -> None:
    lines = b"Traceback (most recent call last):\n  File x\n    y\nValueError: bad\nafter".split(b"\n")
    assert [level for level, _ in brief(*lines)] == ["ERROR"] * 4 + ["INFO"]


def test_bytes_are_made_harmless() -> None:
    assert brief(b"\x1b[31mred\x1b[0m \xff\x00\x07 \x1b]0;title\x07end\t.") == [("INFO", "red \ufffd end\t.")]
    assert brief(b" 10%|#\r 90%|####\r100%|#####\n") == [("INFO", "100%|#####")]
    ((_, text),) = brief(b"x" * 100_000)
    assert len(text) == 16_384 + len(" (cut)")


lines_of_bytes = st.binary().map(lambda line: line.replace(b"\n", b""))


@given(st.lists(st.tuples(st.sampled_from(["out", "err"]), lines_of_bytes | lines_of_bytes.map(b"\x1e{".__add__))))
def test_any_bytes_are_taken(lines: list[tuple[str, bytes]]) -> None:
    for record in read(*lines):
        assert "\n" not in record.getMessage()


async def test_through_a_real_process() -> None:
    program = """
import logging, os, sys
from dynamod.observe.logs import configure
configure(component="W")
logging.getLogger("dynamod.x").warning("one", extra={"n": 1})
os.write(2, b"native\\n")
"""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stderr=asyncio.subprocess.PIPE, env={"DYNAMOD_LOG_PIPE": "1"}
    )
    _, err = await child.communicate()
    first, second = read(*(("err", line) for line in err.splitlines(keepends=True)))
    assert (first.name, first.getMessage(), vars(first)["n"]) == ("dynamod.x", "one", 1)
    assert (second.name, second.getMessage()) == ("agg/W.0", "native")
