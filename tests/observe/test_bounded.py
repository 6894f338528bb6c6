"""What bounded structures say of themselves, as long as they live."""

import gc
import re
from pathlib import Path

from dynamod.message.bounded import Bounded
from dynamod.observe.bounded import bounded, holdings

ROOT = Path(__file__).parents[2]


class Shelf:
    def __init__(self, name: str, bound: int, of: str = "") -> None:
        self.things: list[int] = []
        bounded(self, name, bound, lambda one: len(one.things), "things", of)


def told(name: str) -> list[Bounded]:
    return [one for one in holdings() if one.name == name]


def test_counts_are_read_when_they_are_asked_for() -> None:
    one, other = Shelf("shelf", 10, "b"), Shelf("shelf", 20, "a")
    assert told("shelf") == [Bounded("shelf", "a", 0, 20, "things"), Bounded("shelf", "b", 0, 10, "things")]
    one.things += [1, 2]
    other.things.append(3)
    assert [held.count for held in told("shelf")] == [1, 2]


def test_a_structure_that_is_gone_says_nothing() -> None:
    shelf = Shelf("gone", 10)
    assert told("gone")
    del shelf
    gc.collect()
    assert not told("gone")


def test_a_structure_that_changes_meanwhile_is_left_out() -> None:
    def changes(_shelf: Shelf) -> int:
        raise RuntimeError("dictionary changed size during iteration")

    shelf = Shelf("steady", 10)
    bounded(shelf, "restless", 10, changes)
    assert told("steady")
    assert not told("restless")


def test_the_manual_lists_every_structure() -> None:
    code = "\n".join(path.read_text() for path in (ROOT / "dynamod").rglob("*.py"))
    names = {*re.findall(r'\bbounded\(\s*(?:self|sys\.modules\[__name__\]), "([^"]+)"', code), "mailbox"}
    assert len(names) > 20
    page = (ROOT / "docs/operate/memory.md").read_text().partition("## The second table")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ((?:`[^`]+`(?:, )?)+) \|", page, re.MULTILINE)
    assert sorted(names) == sorted(name for row in rows for name in re.findall(r"`([^`]+)`", row))
