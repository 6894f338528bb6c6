"""What is taken and what is refused, by mode, secret, clock and order."""

import logging

import pytest

from dynamod.features.trust.signer import MOST_NAMES, SAY_EVERY_S, TrustSigner, said_of, signer_of
from dynamod.transport.signing import REQUEST, VALUE, NotTrusted, Proof

from .conftest import NEXT, OURS, THEIRS, Clock, Make, trusting


def test_a_node_with_the_secret_is_known(make: Make) -> None:
    one, two = make("one"), make("two")
    first, second = one.sign(REQUEST, b"x"), one.sign(REQUEST, b"x")
    assert first != second
    found = two.check(REQUEST, first, b"x"), two.check(REQUEST, second, b"x")
    assert [proof.node for proof in found] == ["one", "one"]
    assert found[0].order < found[1].order
    assert two.statistics().proven == 2 == one.statistics().signed


@pytest.mark.parametrize("mode", ["accept", "require"])
def test_what_is_wrong_is_counted_by_node_and_reason(mode: str, make: Make, clock: Clock) -> None:
    here, friend, stranger = make("here", mode), make("friend"), make("stranger", "accept", THEIRS)
    good = friend.sign(REQUEST, b"x")
    assert here.check(REQUEST, good, b"x").node == "friend"
    wrong = {
        ("", "unsigned"): b"",
        ("", "damaged"): b"noise",
        ("stranger", "stranger"): stranger.sign(REQUEST, b"x"),
        ("friend", "forged"): friend.sign(REQUEST, b"y"),
        ("friend", "replayed"): good,
        ("late", "clock"): make("late", now=lambda: clock.seconds - 3600).sign(REQUEST, b"x"),
    }
    for signature in wrong.values():
        if mode == "accept":
            assert here.check(REQUEST, signature, b"x") == Proof()
        else:
            with pytest.raises(NotTrusted):
                here.check(REQUEST, signature, b"x")
    assert here.wrong == dict.fromkeys(wrong, 1)
    counts = here.statistics()
    assert (counts.proven, counts.doubted, counts.refused) == (1, *((6, 0) if mode == "accept" else (0, 6)))


def test_each_reason_is_one_line_that_says_what_to_do(make: Make, clock: Clock) -> None:
    here = make("here")
    far = make("far", now=lambda: clock.seconds + 3600).sign(REQUEST, b"x")
    with pytest.raises(NotTrusted) as caught:
        here.check(REQUEST, far, b"x")
    assert str(caught.value) == (
        "the clock of node far differs by +3,600 s from the clock here (60 s are allowed): set the clocks by NTP"
    )
    with pytest.raises(NotTrusted, match="give all nodes the same secret"):
        here.check(REQUEST, make("other", "accept", THEIRS).sign(REQUEST, b"x"), b"x")


def test_a_signature_for_one_thing_is_none_for_another(make: Make) -> None:
    one, two = make("one"), make("two")
    with pytest.raises(NotTrusted):
        two.check(VALUE, one.sign(REQUEST, b"x"), b"x")


def test_a_replay_is_refused_as_long_as_its_time_is_right(make: Make, clock: Clock) -> None:
    one, two = make("one"), make("two")
    signature = one.sign(REQUEST, b"x")
    two.check(REQUEST, signature, b"x")
    for seconds in (0, 59, 30, 3600):
        clock.seconds += seconds
        with pytest.raises(NotTrusted, match=r"a second time|clock"):
            two.check(REQUEST, signature, b"x")
    assert two.check(REQUEST, one.sign(REQUEST, b"x"), b"x").node == "one"


def test_a_value_of_the_registry_is_read_again_and_again(make: Make, clock: Clock) -> None:
    one, two = make("one"), make("two")
    signature = one.sign(VALUE, b"x")
    clock.seconds += 1e6
    assert two.check(VALUE, signature, b"x") == two.check(VALUE, signature, b"x") != Proof()


def test_off_signs_and_checks_nothing(make: Make) -> None:
    here = make("here", "off")
    assert here.sign(REQUEST, b"x") == b""
    assert here.check(REQUEST, b"noise", b"x") == Proof()
    assert here.statistics() == make("here").statistics()


def test_a_secret_is_replaced_without_a_refusal(make: Make) -> None:
    steps = [(OURS,), (OURS, NEXT), (NEXT, OURS), (NEXT,)]
    nodes = {name: make(name) for name in ("one", "two", "three")}
    for secrets in steps[1:]:
        for changed in nodes.values():
            changed.use(trusting("require", *secrets))
            for sender in nodes.values():
                for receiver in nodes.values():
                    if receiver is not sender:
                        receiver.check(REQUEST, sender.sign(REQUEST, b"x"), b"x")
    with pytest.raises(NotTrusted, match="another secret"):
        nodes["one"].check(REQUEST, make("late").sign(REQUEST, b"x"), b"x")


def test_the_order_grows_though_the_clock_is_set_back(make: Make, clock: Clock) -> None:
    one, two = make("one"), make("two")
    before = two.check(VALUE, one.sign(VALUE, b"x"), b"x")
    clock.seconds -= 100
    assert two.check(VALUE, one.sign(VALUE, b"x"), b"x").order > before.order


def test_a_flood_is_counted_said_once_and_bounded(make: Make, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    here = make("here", "accept")
    with caplog.at_level(logging.WARNING):
        for number in range(5000):
            here.check(VALUE, b"", b"%d" % number)
        assert [record.getMessage() for record in caplog.records] == [
            "a value of the registry is taken, though: it is not signed"
        ]
        clock.seconds += SAY_EVERY_S
        here.check(VALUE, b"", b"x")
        assert len(caplog.records) == 2
        for number in range(1000):
            here.check(REQUEST, make(f"n{number}", "accept", THEIRS).sign(REQUEST, b"x"), b"x")
    assert here.wrong["", "unsigned"] == 5001
    assert len(here.wrong) == MOST_NAMES >= len(caplog.records) - 1
    assert here.statistics().doubted == 6001


def test_a_process_signs_as_its_daemon_says() -> None:
    process = signer_of(said_of("one", trusting("accept", OURS, NEXT)), None)
    assert isinstance(process, TrustSigner)
    assert process.settings == trusting("accept", OURS, NEXT)
    there = signer_of(said_of("two", trusting("require")), None)
    signature = process.sign(REQUEST, b"x")
    assert there.check(REQUEST, signature, b"x").node == "one"
    again = signer_of(said_of("two", trusting("require", NEXT, OURS)), there)
    assert again is there
    with pytest.raises(NotTrusted, match="a second time"):
        again.check(REQUEST, signature, b"x")
