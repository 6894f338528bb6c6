"""The guard against slow growth: which counts are compared, what is too much. Nothing is counted here."""

import json
import sys
from pathlib import Path

import pytest

from tools.bench import guard, inside
from tools.bench.guard import LEAST, MOST, STORED, UNITS, WHAT, Place, counted, judged, skipped

HERE = Place("CPython 3.11, x86_64, valgrind 3.19.0", "3.11.7 (main) [GCC 12]")
KNOWN = {HERE.name: {"build": HERE.build, "instructions": {"start": 1000}}}
DUMP = """# callgrind format
version: 1
desc: Trigger: Client Request: {work}

events: Ir
summary: 999
totals: {total}
"""


def test_counts_of_another_place_are_not_compared() -> None:
    assert not skipped(HERE, KNOWN)
    assert skipped(HERE, {}) == f"no counts are stored for {HERE.name}, only for nothing"
    other = Place("CPython 3.12, x86_64, valgrind 3.19.0", HERE.build)
    assert HERE.name in skipped(other, KNOWN)
    assert "another" in skipped(Place(HERE.name, "another build"), KNOWN)


@pytest.mark.parametrize(
    ("count", "wrong", "note"),
    [(1000, False, False), (1050, False, False), (1051, True, False), (970, False, False), (969, False, True)],
)
def test_growth_beyond_the_bound_is_wrong(count: int, wrong: bool, note: bool) -> None:
    lines, found = judged({"start": count}, {"start": 1000})
    assert (found != []) == wrong == (count / 1000 > MOST)
    assert any("store the counts again" in line for line in lines) == note == (count / 1000 < LEAST)
    assert f"{count:,}" in lines[1]
    assert f"{count / 1000:.3f}" in lines[1]


def test_each_work_counts_for_itself_and_new_work_has_to_be_stored() -> None:
    lines, found = judged({"start": 1000, "unary": 2000, "decide": 10}, {"start": 1000, "unary": 1000})
    assert len(lines) == 4
    assert found == [
        "unary: 2.000 times the stored instructions, at most 1.05 are allowed",
        "decide: no count is stored",
    ]


def test_counts_are_those_of_named_requests_per_unit(tmp_path: Path) -> None:
    (tmp_path / "work.1").write_text(DUMP.format(work="unary", total=UNITS["unary"] * 7))
    (tmp_path / "work.2").write_text(DUMP.format(work="start", total=12))
    (tmp_path / "work").write_text("desc: Trigger: Program termination\nsummary: 5\ntotals: 5\n")
    assert counted(tmp_path) == {"unary": 7, "start": 12}


def test_the_stored_counts_are_of_the_work_that_is_done() -> None:
    assert {**inside.COUNTS, "stream": inside.COUNTS["stream"] * inside.TOKENS, "start": 1}.items() >= UNITS.items()
    assert UNITS.keys() == WHAT.keys()
    stored = json.loads(STORED.read_text())
    assert stored
    for entry in stored.values():
        assert entry.keys() == {"build", "instructions"}
        assert entry["instructions"].keys() == UNITS.keys()


def test_without_valgrind_nothing_fails_unless_it_is_required(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(guard.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(guard.shutil, "which", lambda _name: None)
    for words, code in (([], 0), (["--require"], 1), (["--store"], 1)):
        monkeypatch.setattr(sys, "argv", ["guard.py", *words])
        assert guard.main() == code
        assert "nothing is compared: there is no valgrind" in capsys.readouterr().out


def test_counts_are_stored_and_compared(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    counts = dict.fromkeys(UNITS, 1000)
    other = {"a": {"build": "b", "instructions": {}}}
    (tmp_path / "guard.json").write_text(json.dumps(other))
    monkeypatch.setattr(guard, "STORED", tmp_path / "guard.json")
    monkeypatch.setattr(guard, "here", lambda: HERE)
    monkeypatch.setattr(guard, "count", lambda: counts)

    def run(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["guard.py", *words])
        return guard.main(), capsys.readouterr().out

    assert run() == (0, f"guard: nothing is compared: {skipped(HERE, other)}\n")
    assert run("--store")[0] == 0
    assert json.loads((tmp_path / "guard.json").read_text()) == {
        **other,
        HERE.name: {"build": HERE.build, "instructions": dict.fromkeys(UNITS, 1000)},
    }
    assert run()[0] == 0
    counts["decide"] = 1100
    code, out = run()
    assert code == 1
    assert "decide: 1.100 times the stored instructions" in out
    assert "guard.py --store" in out


def test_requests_to_valgrind_do_nothing_without_it() -> None:
    before = []
    with inside.Callgrind().counted("unary"):
        before.append(1)
    assert before
