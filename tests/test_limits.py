"""What `limits.py` counts."""

from pathlib import Path

from . import limits


def test_what_the_limits_count(tmp_path: Path) -> None:
    package = tmp_path / "toy"
    (package / "one").mkdir(parents=True)
    (package / "one/a.py").write_text(
        "from typing import TYPE_CHECKING\n"
        "import msgspec\n"
        "if TYPE_CHECKING:\n    from .d import D\n"
        "class A:\n"
        "    field: int\n"
        "    def __init__(self, x, *, y, **z):\n        self.a, self.b = x, y\n"
        "    @property\n    def p(self):\n        from . import b\n        self.c: int = 1\n"
        "class R(msgspec.Struct):\n    field: int\n"
        "class S(R):\n    def f(self):\n        pass\n"
    )
    (package / "one/b.py").write_text("from .c import C\n")
    (package / "one/c.py").write_text("from toy.one.a import A\nC = 1\n")
    (package / "one/d.py").write_text("from toy.one.a import A\nD = 1\n")
    classes = limits.Classes(package)
    assert classes.methods() == {"one/a.py:A": 2}
    assert classes.attributes() == {"one/a.py:A": 4}
    assert classes.arguments() == {"one/a.py:A": 2}
    assert limits.lines(package)["one/b.py"] == 1
    assert limits.circles(package) == [["toy.one.a", "toy.one.b", "toy.one.c"]]
