"""The two files of the service: the one that names graphs, and the list of those that were handed over."""

from pathlib import Path

import pytest

from dynamod.cli.kept import KeptGraphs
from dynamod.cli.service import _configured, read_settings
from dynamod.message.errors import UserError

BROKEN = ["{", "{}", '{"protocol": "x", "graphs": []}', "[1]", '[{"name": "a"}]', '[{"name": "a", "graph": 3}]']


@pytest.mark.parametrize("text", BROKEN)
def test_a_broken_list_of_graphs_is_put_aside(tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "graphs.json"
    file.write_text(text)
    kept = KeptGraphs(file)
    assert kept.read() == []
    assert (tmp_path / "graphs.broken").read_text() == text
    assert not file.exists()
    assert "graphs.broken" in caplog.text
    assert "graphs.broken" in kept.trouble


GRAPH = "target: 'graphs.agg:Frontend', config: configs/agg.yaml"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"\xff\xfe\x00", "utf-8"),
        (b"a: &x [*x]", "unknown a"),
        (b"3: 4", "unknown 3"),
        (b"socket: 3", "socket is 3"),
        (b"log_level: [a]", "log_level is ['a']"),
        (b"log_level: loud", "log_level: unknown log level 'loud'"),
        (b"graphs:\n  - {3: 4}", "graphs[0]: unknown 3"),
        *(
            (f"graphs:\n  - {{{GRAPH}, {key}: {value}}}".encode(), f"graphs[0].{key} is ")
            for key in ("name", "working_dir", "service_name", "overrides")
            for value in ("3", "true", "[1]", "{a: 1}")
        ),
        (b"graphs:\n  - {target: 3}", "graphs[0].target is 3"),
        (b"graphs:\n  - {config: [x]}", "graphs[0].config is ['x']"),
        *((f"graphs:\n  - {{{GRAPH}, name: '{name}'}}".encode(), name) for name in ("a/b", "../x", "a b", "x" * 65)),
        (f"graphs:\n  - {{{GRAPH}, working_dir: /nowhere/at/all}}".encode(), "/nowhere/at/all"),
    ],
)
def test_every_mistake_in_the_file_is_one_line(tmp_path: Path, text: bytes, says: str) -> None:
    file = tmp_path / "d.yaml"
    file.write_bytes(text)
    with pytest.raises(UserError) as error:
        _configured(read_settings(str(file)), str(file))
    assert says in error.value.line()
    assert str(file) in error.value.line()
    assert "\n" not in error.value.line()
