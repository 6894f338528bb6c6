"""Tables of text."""

from hypothesis import given
from hypothesis import strategies as st

from dynamod.cli.tables import duration, table


def test_the_form() -> None:
    assert table(("A", "LONG"), [("wide cell", "1"), ("", "22")]) == (
        "+-----------+------+\n"
        "| A         | LONG |\n"
        "+-----------+------+\n"
        "| wide cell | 1    |\n"
        "|           | 22   |\n"
        "+-----------+------+"
    )
    assert table(("A",), []) == "+---+\n| A |\n+---+\n+---+"


cells = st.text(st.characters(blacklist_categories=("C", "Z")), max_size=12)


@given(st.lists(st.tuples(cells, cells, cells), max_size=5))
def test_every_line_is_equally_long(rows: list[tuple[str, str, str]]) -> None:
    lines = table(("ONE", "TWO", "THREE"), rows).split("\n")
    assert len({len(line) for line in lines}) == 1
    assert len(lines) == 4 + len(rows)
    for row, line in zip(rows, lines[3:], strict=False):
        assert all(f" {cell} " in line or not cell for cell in row)


@given(st.floats(0, 1e8))
def test_durations_are_short(seconds: float) -> None:
    number, unit = duration(seconds).split()
    assert unit in ("s", "min", "h", "d")
    assert int(number) < 7200
