from hypothesis import example, given
from hypothesis import strategies as st

from dynamod.preprocess.output import StopMatcher

WORDS = st.text(st.sampled_from("ab\nc"), min_size=1, max_size=5)


def naive(text: str, stops: list[str], include: bool) -> tuple[str, bool]:
    """Character by character: the first place where any stop string ends; of those that end there, the longest."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end if include else end - max(map(len, ending))], True
    return text, False


@given(
    pieces=st.lists(st.text(st.sampled_from("ab\nc"), max_size=6)),
    stops=st.lists(WORDS, max_size=4),
    include=st.booleans(),
)
@example(pieces=["a", "b", "c"], stops=["abc", "b"], include=False)
@example(pieces=["aab"], stops=["ab", "aab"], include=False)
@example(pieces=["aa", "ab"], stops=["aab"], include=True)
def test_any_cutting_gives_the_naive_answer(pieces: list[str], stops: list[str], include: bool) -> None:
    matcher = StopMatcher(stops, include=include)
    shown, found = "", False
    for piece in pieces:
        text, found = matcher.push(piece)
        shown += text
        if found:
            break
    if not found:
        shown += matcher.flush()
    assert (shown, found) == naive("".join(pieces), stops, include)


@given(pieces=st.lists(st.text(st.sampled_from("abc"), max_size=4)), stops=st.lists(WORDS, min_size=1, max_size=3))
def test_holds_back_no_more_than_it_must(pieces: list[str], stops: list[str]) -> None:
    matcher, seen, shown = StopMatcher(stops), "", ""
    for piece in pieces:
        text, found = matcher.push(piece)
        seen, shown = seen + piece, shown + text
        if found:
            return
        longest = max(
            (size for stop in stops for size in range(1, len(stop)) if seen.endswith(stop[:size])),
            default=0,
        )
        assert shown == seen[: len(seen) - longest]


def test_no_stops_pass_text_through() -> None:
    matcher = StopMatcher([])
    assert matcher.push("anything") == ("anything", False)
    assert matcher.flush() == ""


def test_a_prefix_is_held_then_shown() -> None:
    matcher = StopMatcher(["\n\nUser:"])
    assert matcher.push("Hello\n") == ("Hello", False)
    assert matcher.push("\nUse") == ("", False)
    assert matcher.push("d car") == ("\n\nUsed car", False)
    assert matcher.push("\n\n") == ("", False)
    assert matcher.flush() == "\n\n"
    assert matcher.push("x\n\nUser: y") == ("x", True)
