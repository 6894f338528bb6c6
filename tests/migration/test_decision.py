"""Whether a broken stream is sent again: all of the table, as properties."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from dynamod.message.errors import REQUEST_ERRORS
from dynamod.migration.decision import Broken, decide

broken = st.builds(
    Broken,
    why=st.sampled_from(["connection lost", "it paused"]),
    retry=st.booleans(),
    received=st.integers(0, 5),
    exact=st.booleans(),
    sends=st.integers(1, 6),
    limit=st.integers(0, 5),
    others=st.booleans(),
    long=st.booleans(),
)


@given(broken)
def test_again_exactly_where_nobody_can_tell(case: Broken) -> None:
    invisible = (case.exact and not case.long) or not case.received
    assert decide(case).again == (case.others and invisible and case.sends <= case.limit)


@given(broken)
def test_what_ends_says_why(case: Broken) -> None:
    verdict = decide(case)
    if verdict.again:
        assert (verdict.error, verdict.message) == ("", "")
    else:
        assert verdict.error in REQUEST_ERRORS
        assert verdict.message.startswith(case.why)
        assert len(verdict.message) > len(case.why)


@given(broken)
def test_it_is_pure(case: Broken) -> None:
    before = msgspec.to_builtins(case)
    assert decide(case) == decide(case)
    assert msgspec.to_builtins(case) == before


@given(broken)
def test_a_retry_that_found_nobody_is_an_overload(case: Broken) -> None:
    """503 tells the client to come again; 502 that something broke while it was worked on."""
    verdict = decide(case)
    if not verdict.again and case.retry and not case.received:
        assert verdict.error == "Overloaded"
    if not verdict.again and case.received and (case.long or not case.exact):
        assert verdict.error == "EngineFailed" or case.retry


@given(broken, st.integers(0, 5))
def test_more_moves_are_never_worse(case: Broken, more: int) -> None:
    if decide(case).again:
        wider = Broken(case.why, case.retry, case.received, True, case.sends, case.limit + more, True)
        assert decide(wider).again


def test_the_limit_is_named() -> None:
    off = decide(Broken("lost", False, 0, True, 1, 0, True))
    assert (off.error, off.message) == ("EngineFailed", "lost, and migration is off (limit 0)")
    spent = decide(Broken("full", True, 0, True, 4, 3, True))
    assert (spent.error, spent.message) == ("Overloaded", "full, after 4 tries")
