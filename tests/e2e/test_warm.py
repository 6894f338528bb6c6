"""What `machine.run` forks is what a user would have started."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from .warm import kind, warm


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("dynamo", "--version"), 0),
        (("dynamo", "config", "check", "mine.yaml", "--graph", "graphs.agg:Frontend"), 2),
        (("dynamo", "ps", "--output", "json"), 3),
        (("dynamo.frontend", "--router-mode", "best"), 2),
    ],
)
def test_both_say_the_same(shared: Any, words: tuple[str, ...], code: int) -> None:
    (shared.folder / "mine.yaml").write_text("Frontend:\n  prot: 8000\n")
    env = shared.environ(DYNAMOD_SOCKET=str(shared.folder / "other.sock"))
    forks = warm(env)
    forks.kinds.forget(kind(words))
    plain = shared.run(*words, DYNAMOD_SOCKET=env["DYNAMOD_SOCKET"])
    assert plain.code == code
    assert not forks.kinds.first(kind(words))
    assert forks.run(words, env, shared.folder, 20) == (plain.code, plain.out, plain.err)


def test_one_that_takes_too_long_is_killed(shared: Any) -> None:
    daemon = shared.folder / "long.sock"
    with pytest.raises(subprocess.TimeoutExpired):
        warm(shared.environ()).run(("dynamod", "--socket", str(daemon)), shared.environ(), Path(shared.folder), 2)
    shared.until(lambda: shared.run("dynamo", "ps", "--socket", daemon).code == 3)
