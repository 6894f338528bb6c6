import contextlib
import io
import json
import logging
import os
import re
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.logging import LogCaptureHandler

from dynamod.message.errors import UserError
from dynamod.observe import levels
from dynamod.observe.lines import LONGEST, HumanLines, JsonLines, MarkedLines, clean
from dynamod.observe.logs import Console, bind, bound, configure

log = logging.getLogger("dynamod.demo")


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield
    levels.apply(levels.Filter())
    for name in levels.QUIET:
        logging.getLogger(name).setLevel(logging.NOTSET)
    root.setLevel(level)
    root.handlers[:] = handlers
    logging.captureWarnings(False)


def setup(level: str = "", **environ: str) -> io.StringIO:
    stream = io.StringIO()
    configure(stream=stream, level=level, environ=environ)
    return stream


def test_a_line_for_people_has_the_seeds_form() -> None:
    stream = setup()
    log.info("hello %s", "world", extra={"count": 3, "share": 0.5, "name_": "a b", "no": None})
    when, rest = stream.getvalue().split("  ", 1)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", when)
    assert rest == 'INFO dynamod.demo: hello world count=3 share=0.5 name_="a b" no=none\n'


def test_microseconds_and_local_time() -> None:
    record = logging.makeLogRecord({"created": 1742220194.122652, "name": "t", "msg": "m", "levelno": logging.WARNING})
    assert HumanLines().format(record) == "2025-03-17T14:03:14.122652Z  WARN t: m"
    assert re.fullmatch(r"2025-03-1\dT\S+[+-]\d\d:\d\d  WARN t: m", HumanLines(local=True).format(record))


@pytest.mark.parametrize(
    ("number", "name"), [(50, "ERROR"), (40, "ERROR"), (30, "WARN"), (20, "INFO"), (10, "DEBUG"), (5, "TRACE")]
)
def test_level_names(number: int, name: str) -> None:
    stream = setup(level="trace")
    log.log(number, "x")
    assert f"Z {name:>5} dynamod.demo: x\n" in stream.getvalue()


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_color() -> None:
    stream = _Terminal()
    configure(stream=stream, environ={})
    log.error("x", extra={"key": 1})
    assert "\x1b[31mERROR\x1b[0m" in stream.getvalue()
    assert "\x1b" not in clean(stream.getvalue())


@pytest.mark.parametrize(
    ("environ", "colored"),
    [
        ({}, True),
        ({"NO_COLOR": "1"}, False),
        ({"DYN_SDK_DISABLE_ANSI_LOGGING": "1"}, False),
        ({"TERM": "dumb"}, False),
        ({"DYN_LOGGING_JSONL": "1"}, False),
    ],
)
def test_color_on_a_terminal(environ: dict[str, str], colored: bool) -> None:
    stream = _Terminal()
    configure(stream=stream, environ=environ)
    log.info("x")
    assert ("\x1b" in stream.getvalue()) is colored


def test_json() -> None:
    stream = setup(DYN_LOGGING_JSONL="1")
    with bound(x_request_id="r-1"):
        log.info("hello\n%s", "wörld", extra={"n": 1, "level": "mine", "odd": {1: {2}}, "nan": float("nan")})
    (line,) = stream.getvalue().splitlines()
    facts = json.loads(line)
    assert facts["level"] == "INFO"
    assert facts["target"] == "dynamod.demo"
    assert facts["message"] == "hello\nwörld"
    assert facts["file"] == __file__
    assert isinstance(facts["line"], int)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", facts["time"])
    assert facts["x_request_id"] == "r-1"
    assert facts["level_"] == "mine"
    assert facts["nan"] == "nan"
    assert list(facts)[:6] == ["time", "level", "target", "message", "file", "line"]


def test_exceptions_are_one_record() -> None:
    for jsonl in ("", "1"):
        stream = setup(DYN_LOGGING_JSONL=jsonl)
        try:
            raise ValueError("bad\n2025-03-17T14:03:14.122652Z  INFO forged: line")
        except ValueError:
            log.exception("failed")
        text = stream.getvalue()
        if jsonl:
            assert json.loads(text)["exception"].startswith("Traceback (most recent call last)")
        else:
            first, *rest = text.splitlines()
            assert first.endswith("ERROR dynamod.demo: failed")
            assert rest
            assert all(line.startswith("  ") for line in rest)


def test_no_message_can_look_like_another(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = setup()
    root = logging.getLogger()  # what pytest's own handlers capture cannot go from process to process (pytest-xdist)
    monkeypatch.setattr(root, "handlers", [one for one in root.handlers if not isinstance(one, LogCaptureHandler)])
    log.info("a\x1b[2Jb\r\n2025-03-17T14:03:14.122652Z  INFO x: y\x00\ud800", extra={"k": 'v" z=1\n2025'})
    first, *rest = stream.getvalue().splitlines()
    assert first.endswith(r'dynamod.demo: ab k="v\" z=1\n2025"')
    assert [line[:2] for line in rest] == ["  "]


def test_what_cannot_be_formatted_is_shown_as_it_is() -> None:
    class Bad:
        def __str__(self) -> str:
            raise RuntimeError

    circle: list[object] = []
    circle.append(circle)
    record = logging.makeLogRecord({"name": "t", "levelno": 20, "msg": "%d", "args": ("x",)})
    record.__dict__.update(bad=Bad(), circle=circle, keys={(1, 2): 3})
    for lines in (HumanLines(), JsonLines(), MarkedLines()):
        text = lines.format(record)
        assert "%d ('x',)" in text
        assert "Bad: RuntimeError" in text


def test_bound_fields_nest_and_end() -> None:
    stream = setup()
    with bound(x_request_id="a"):
        with bound(model="m"):
            log.info("1")
        bind(extra="e")
        log.info("2", extra={"x_request_id": "mine"})
    log.info("3")
    tails = [line.split(": ")[1] for line in stream.getvalue().splitlines()]
    assert tails == ["1 x_request_id=a model=m", "2 x_request_id=mine extra=e", "3"]


def test_again_replaces_and_foreign_handlers_stay() -> None:
    root = logging.getLogger()
    mine = logging.NullHandler()
    root.addHandler(mine)
    root.addHandler(logging.StreamHandler(sys.stderr))
    first, second = setup(), setup(DYN_LOG="debug")
    log.debug("x")
    assert first.getvalue() == ""
    assert second.getvalue().count("\n") == 1
    assert [type(handler) for handler in root.handlers].count(Console) == 1
    assert mine in root.handlers
    assert not any(type(handler) is logging.StreamHandler for handler in root.handlers)


def test_without_a_stream_it_is_the_standard_error_of_the_moment(capsys: pytest.CaptureFixture[str]) -> None:
    configure(environ={})
    log.info("x")
    assert capsys.readouterr().err.endswith("INFO dynamod.demo: x\n")


def test_a_closed_stream_is_no_error() -> None:
    stream = setup()
    stream.close()
    log.info("x")


def test_component_is_a_field() -> None:
    stream = io.StringIO()
    configure(component="agg/Worker.0", stream=stream, environ={})
    log.info("x")
    assert stream.getvalue().endswith("x component=agg/Worker.0\n")


@pytest.mark.parametrize(
    ("text", "shown", "hidden"),
    [
        ("", [("a", 20)], [("a", 10)]),
        ("debug", [("a", 10)], [("a", 5)]),
        ("TRACE", [("a", 5)], []),
        ("off", [], [("a", 50)]),
        ("dynamod.actor=trace,warn", [("dynamod.actor.cell", 5), ("x", 30)], [("dynamod", 20)]),
        ("dynamo_llm::http=debug", [("dynamo_llm.http.x", 10), ("x", 20)], [("dynamo_llm", 10)]),
        ("warn, a.b , c=off,", [("a.b.c", 5), ("x", 30)], [("c", 50), ("x", 20)]),
        ("error,info", [("a", 20)], []),
        ("debug", [("asyncio", 30)], [("asyncio", 20)]),
        ("debug,asyncio=debug", [("asyncio", 10)], []),
        ("trace", [("asyncio", 10)], []),
        ("error", [], [("asyncio", 30)]),
        ("dynamod", [("dynamod.actor", 5)], [("x", 10)]),
        ("warn,asyncio", [("asyncio", 5)], [("x", 20)]),
        ("mine=,x=debug", [("mine", 5), ("x", 10)], []),
    ],
)
def test_filters(text: str, shown: list[tuple[str, int]], hidden: list[tuple[str, int]]) -> None:
    setup(DYN_LOG=text)
    assert [pair for pair in shown if not logging.getLogger(pair[0]).isEnabledFor(pair[1])] == []
    assert [pair for pair in hidden if logging.getLogger(pair[0]).isEnabledFor(pair[1])] == []


@pytest.mark.parametrize("text", ["dynamod=loud", "a b=info", "=info", "a[span]=info", "x..y", "loud", "warn,inof"])
def test_a_filter_that_cannot_be_read(text: str) -> None:
    with pytest.raises(UserError) as caught:
        setup(DYN_LOG=text)
    assert "DYN_LOG" in caught.value.line()
    assert "target=level" in caught.value.line()


def test_flags_go_before_the_variable_and_it_before_the_file(tmp_path: Path) -> None:
    file = tmp_path / "log.toml"
    file.write_text('log_level = "error"\n[log_filters]\n"a::b" = "trace"\nc = "debug"\n')
    setup(DYN_LOGGING_CONFIG_PATH=str(file))
    assert logging.getLogger().level == logging.ERROR
    assert logging.getLogger("a.b").level == levels.TRACE
    setup(DYN_LOGGING_CONFIG_PATH=str(file), DYN_LOG="warn,c=info")
    assert logging.getLogger().level == logging.WARNING
    assert logging.getLogger("c").level == logging.INFO
    setup(DYN_LOG="warn,c=info", level="debug")
    assert logging.getLogger().level == logging.DEBUG
    assert logging.getLogger("c").level == logging.INFO
    assert logging.getLogger("a.b").level == logging.NOTSET


@pytest.mark.parametrize("text", ["log_level = 3", "log_level = 'loud'", "[log_filters]\na='x'", "= bad", None])
def test_a_file_that_cannot_be_read(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "log.toml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(UserError, match="DYN_LOGGING_CONFIG_PATH"):
        setup(DYN_LOGGING_CONFIG_PATH=str(file))


def test_a_bad_level_changes_nothing() -> None:
    stream = setup()
    with pytest.raises(UserError, match="log level"):
        setup(level="loud")
    log.info("still")
    assert "still" in stream.getvalue()


def test_warnings_are_records() -> None:
    stream = setup()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(False)
        configure(stream=stream, environ={})
        warnings.warn("careful", stacklevel=1)
        logging.captureWarnings(False)
    assert "WARN py.warnings: " in stream.getvalue()


def test_lines_for_the_daemon(capsys: pytest.CaptureFixture[str]) -> None:
    configure(component="W", environ={"DYNAMOD_LOG_PIPE": "1"})
    log.info("x")
    line = capsys.readouterr().err
    assert line.startswith("\x1e{")
    assert json.loads(line[1:])["component"] == "W"


def test_lines_for_the_daemon_are_bounded() -> None:
    long = "\x01é" * 100_000
    record = logging.makeLogRecord(
        {"name": "t", "msg": long, "levelno": 20, "exc_text": long, "x_request_id": long, "field": long}
    )
    line = MarkedLines().format(record)
    assert len(line.encode()) <= LONGEST
    assert json.loads(line[1:])["exception"].startswith("(cut)")
    assert len(JsonLines().format(record)) > LONGEST


def test_structlog_of_a_component_goes_the_same_way() -> None:
    program = """
import structlog, sys
from dynamod.observe.logs import configure
configure(stream=sys.stdout, environ={})
structlog.contextvars.bind_contextvars(x_request_id="r")
structlog.get_logger("theirs").info("hello", n=1)
structlog.get_logger("theirs").debug("no")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert re.fullmatch(r"\S+Z  INFO theirs: hello x_request_id=r n=1\n", done.stdout)


def test_start_up_is_cheap() -> None:
    """Counts modules, not time: what made structlog expensive must not come back."""
    program = """
import sys, asyncio, logging
before = set(sys.modules)
from dynamod.observe.logs import configure
configure()
print(*sorted(name.split(".")[0] for name in set(sys.modules) - before))
"""
    environ = {**os.environ, "DYN_LOG": ""}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True, env=environ
    )
    assert not {"structlog", "rich", "pygments", "msgspec", "pydantic", "tomllib"} & set(done.stdout.split())
    assert len(done.stdout.split()) < 40


def test_a_reader_that_stops_stops_nobody_and_what_is_lost_is_counted() -> None:
    read, write = os.pipe()
    with open(write, "w") as stream:
        console = Console(HumanLines(component="c", local=False, color=False), stream)
        record = logging.LogRecord("dynamod.x", logging.INFO, __file__, 1, "x" * 1000, None, None)
        began = time.monotonic()
        for _ in range(5000):  # 5 MB into a pipe of 64 kB that nobody reads
            console.handle(record)
        assert time.monotonic() - began < 5.0
        got = b""
        while b"were dropped" not in got:
            got += os.read(read, 1 << 16)
        console.handle(logging.LogRecord("dynamod.x", logging.INFO, __file__, 1, "the last", None, None))
        while b"the last" not in got:
            got += os.read(read, 1 << 16)
        console.flush()
    os.close(read)
    lines = got.decode().splitlines()
    notes = [line for line in lines if "were dropped" in line]  # two where the thread begins late
    whole = sum("x" * 1000 in line for line in lines)
    lost = [int(word) for note in notes for word in note.split() if word.isdigit()]
    assert len(lost) == len(notes)
    assert whole + sum(lost) == 5000
    assert 1000 < whole < 1300


def test_long_lines_keep_their_order() -> None:
    read, write = os.pipe()
    with open(write, "w") as stream:
        console = Console(HumanLines(component="c", local=False, color=False), stream)
        for number in range(20):
            text = f"line {number} " + "y" * (30_000 if number % 3 == 0 else 10)
            console.handle(logging.LogRecord("dynamod.x", logging.INFO, __file__, 1, text, None, None))
        got = b""
        while b"line 19 " not in got:
            got += os.read(read, 1 << 16)
        console.flush()
    os.close(read)
    assert [int(word) for word in re.findall(r"line (\d+) ", got.decode())] == list(range(20))


def test_a_reader_that_is_gone_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    with contextlib.suppress(BrokenPipeError), open(write, "w") as stream:
        console = Console(HumanLines(component="c", local=False, color=False), stream)
        for _ in range(3):
            console.handle(logging.LogRecord("dynamod.x", logging.INFO, __file__, 1, "x", None, None))


def test_what_waits_is_written_at_the_end_of_the_process() -> None:
    """As `logging.shutdown` does it: with the handler's lock held."""
    read, write = os.pipe()
    with open(write, "w") as stream:
        console = Console(HumanLines(component="c", local=False, color=False), stream)
        for number in range(3):
            text = f"line {number} " + "y" * 10_000
            console.handle(logging.LogRecord("dynamod.x", logging.INFO, __file__, 1, text, None, None))
        began = time.monotonic()
        console.acquire()
        console.flush()
        console.release()
        assert time.monotonic() - began < 0.4
        assert re.findall(r"line (\d+) ", os.read(read, 1 << 16).decode()) == ["0", "1", "2"]
    os.close(read)


CRASH = """
import os, sys
os.environ["DYNAMOD_LOG_PIPE"] = "1"
from dynamod.observe.logs import configure, leave
import logging
configure()
logging.getLogger("dynamod.x").error("z" * 20_000)
leave(3)
"""


def test_a_long_traceback_is_not_lost_by_a_process_that_ends_at_once() -> None:
    done = subprocess.run([sys.executable, "-c", CRASH], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr.count("z")) == (3, 20_000)
