"""Where the prompt of a request is computed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamod.router.prefill import ConditionalDisagg, PrefillSettings, PrefillState, decide

few = st.integers(0, 4)
many = st.integers(0, 5000)


@pytest.mark.parametrize(
    ("settings", "state", "remote", "rule"),
    [
        (PrefillSettings(), PrefillState(1001, 0, 1, 0), True, "more than max_local_prefill_length 1000"),
        (PrefillSettings(), PrefillState(1000, 0, 1, 0), False, "not more than max_local_prefill_length 1000"),
        (PrefillSettings(), PrefillState(2000, 1500, 1, 0), False, "not more than max_local_prefill_length 1000"),
        (PrefillSettings(), PrefillState(2000, 0, 1, 3), False, "max_prefill_queue_size 2 prompts wait"),
        (PrefillSettings(), PrefillState(2000, 0, 1, 2), True, "more than max_local_prefill_length 1000"),
        (PrefillSettings(), PrefillState(2000, 0, 0, 0), False, "there is no prefill worker"),
        (PrefillSettings(remote=False), PrefillState(2000, 0, 1, 0), False, "remote_prefill is off"),
        (PrefillSettings(conditional=False), PrefillState(20, 0, 1, 9), True, "conditional_disagg is off"),
        (PrefillSettings(conditional=False), PrefillState(20, 19, 1, 9), False, "the answering worker has the prompt"),
    ],
)
def test_the_rules(settings: PrefillSettings, state: PrefillState, remote: bool, rule: str) -> None:
    decision = decide(settings, state)
    assert (decision.remote, decision.rule, decision.state) == (remote, rule, state)
    assert not set(decision.reason) & set("0123456789 "), "a label of metrics, the same for all settings"


@given(many, many, few, few, st.booleans(), st.booleans(), many, few)
def test_the_original_s_condition(
    tokens: int, cached: int, requests: int, workers: int, remote: bool, conditional: bool, local: int, queue: int
) -> None:
    """Remote if and only if: uncached tokens above the limit, and fewer prompts waiting than the other limit."""
    settings = PrefillSettings(remote, conditional, local, queue)
    decision = decide(settings, PrefillState(tokens, cached, workers, requests))
    waiting = max(0, requests - workers)
    pays = tokens - cached > max(1, local) and waiting < queue if conditional else tokens - cached > 1
    assert decision.remote == (remote and workers > 0 and pays)


@pytest.mark.parametrize(
    ("policy", "state", "remote"),
    [
        ({}, PrefillState(4000, 2000, 1, 0), False),
        ({}, PrefillState(2500, 500, 1, 0), True),  # 0.8 of the prompt
        ({}, PrefillState(9000, 5000, 1, 0), True),
        ({"decode_busy_threshold": 0.9}, PrefillState(4000, 2000, 1, 0, decode_use=0.9), True),
        ({"decode_busy_threshold": 0.9}, PrefillState(4000, 2000, 1, 0, decode_use=None), False),
        ({"policy": "prefill_load"}, PrefillState(4000, 2000, 1, 9, before=10**6), True),  # no bound
        ({"policy": "prefill_load", "prefill_busy_threshold": 500}, PrefillState(40, 0, 1, 1, before=499), True),
        ({"policy": "prefill_load", "prefill_busy_threshold": 500}, PrefillState(4000, 0, 1, 1, before=500), False),
        ({"policy": "isl_or_load", "prefill_busy_threshold": 500}, PrefillState(4000, 0, 1, 1, before=500), False),
        ({"policy": "isl_or_load", "prefill_busy_threshold": 500}, PrefillState(4000, 2000, 1, 1), False),
        ({"policy": "isl_or_load", "prefill_busy_threshold": 500}, PrefillState(4000, 0, 1, 1), True),
    ],
)
def test_the_later_policies(policy: dict[str, object], state: PrefillState, remote: bool) -> None:
    settings = PrefillSettings(policy=ConditionalDisagg(**policy))  # type: ignore[arg-type]
    decision = decide(settings, state)
    assert decision.remote == remote, decision.rule


def test_a_worker_that_computes_no_prompts_has_them_computed_whatever_is_set() -> None:
    for settings in (PrefillSettings(remote=False), PrefillSettings(), PrefillSettings(policy=ConditionalDisagg())):
        for state in (PrefillState(8, 8, 1, 9, required=True), PrefillState(8, 0, 0, 0, required=True)):
            decision = decide(settings, state)
            assert (decision.remote, decision.reason) == (True, "required")
