"""Where the prompt of a request is computed."""

from functools import partial
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamod.features.prefill.decision import PrefillState, decide, way_of
from dynamod.features.prefill.settings import ConditionalDisagg, LivePrefill, PrefillSettings
from dynamod.message.kv_events import Load

SEEDS = PrefillSettings(max_local_prefill_length=1000, max_prefill_queue_size=2)
few = st.integers(0, 4)
many = st.integers(0, 5000)


@pytest.mark.parametrize(
    ("settings", "state", "remote", "rule"),
    [
        (SEEDS, PrefillState(1001, 0, 1, 0), True, "more than max_local_prefill_length 1000"),
        (SEEDS, PrefillState(1000, 0, 1, 0), False, "not more than max_local_prefill_length 1000"),
        (SEEDS, PrefillState(2000, 1500, 1, 0), False, "not more than max_local_prefill_length 1000"),
        (SEEDS, PrefillState(2000, 0, 1, 3), False, "max_prefill_queue_size 2 prompts wait"),
        (SEEDS, PrefillState(2000, 0, 1, 2), True, "more than max_local_prefill_length 1000"),
        (SEEDS, PrefillState(2000, 0, 0, 0), False, "there is no prefill worker"),
        (
            PrefillSettings(max_prefill_queue_size=5),
            PrefillState(1000, 0, 1, 0),
            False,
            "not more than max_local_prefill_length 1000",
        ),
        (
            PrefillSettings(max_local_prefill_length=5),
            PrefillState(2000, 0, 1, 3),
            False,
            "max_prefill_queue_size 2 prompts wait",
        ),
        (PrefillSettings(remote_prefill=False), PrefillState(2000, 0, 1, 0), False, "remote_prefill is off"),
        (PrefillSettings(conditional_disagg=False), PrefillState(20, 0, 1, 9), True, "conditional_disagg is off"),
        (
            PrefillSettings(conditional_disagg=False),
            PrefillState(20, 19, 1, 9),
            False,
            "the answering worker has the prompt",
        ),
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
    settings = PrefillSettings(router_conditional_disagg_config=ConditionalDisagg(**policy))  # type: ignore[arg-type]
    decision = decide(settings, state)
    assert decision.remote == remote, decision.rule


def test_settings_that_are_there_for_those_of_the_file() -> None:
    file = PrefillSettings(max_local_prefill_length=100, router_conditional_disagg_config=ConditionalDisagg())
    changed = partial(msgspec.structs.replace, file)
    assert LivePrefill().over(file) == file
    assert LivePrefill(remote_prefill=False).over(file) == changed(remote_prefill=False)
    assert LivePrefill(conditional_disagg=False).over(file) == changed(conditional_disagg=False)
    assert LivePrefill(max_local_prefill_length=0).over(file) == msgspec.structs.replace(
        file, max_local_prefill_length=0, router_conditional_disagg_config=None
    )
    assert LivePrefill(max_prefill_queue_size=0).over(file) == msgspec.structs.replace(
        file, max_prefill_queue_size=0, router_conditional_disagg_config=None
    )


@pytest.mark.parametrize(
    ("state", "remote"),
    [
        (PrefillState(4000, 0, 1, 0), False),  # nobody is disturbed
        (PrefillState(4000, 0, 1, 0, answers_here=1), True),
        (PrefillState(4000, 3000, 1, 0, answers_here=1), False),  # for a quarter of 1,000 tokens
        (PrefillState(4000, 3000, 1, 0, answers_here=8), True),
        (PrefillState(4000, 0, 1, 1, before=400, answers_here=1), True),
        (PrefillState(4000, 0, 1, 1, before=600, answers_here=1), False),
        (PrefillState(100, 0, 1, 0, before_here=501), True),  # another prompt is before it
        (PrefillState(100, 0, 2, 3, before=1, before_here=501), False),
        (PrefillState(4000, 0, 1, 0, answers_here=1, way=749.0), True),  # the last blocks: 250 where nobody knows
        (PrefillState(4000, 0, 1, 0, answers_here=1, way=751.0), False),
        (PrefillState(4000, 3000, 1, 0, answers_here=2, way=0.0), True),
    ],
)
def test_without_limits_it_goes_where_it_costs_less(state: PrefillState, remote: bool) -> None:
    decision = decide(PrefillSettings(), state)
    assert (decision.remote, decision.reason) == (remote, "sooner" if remote else "later")
    assert f"{state.here:.0f} tokens here" in decision.rule
    assert f"{state.there:.0f} there" in decision.rule


def load(prefill_ms: float = 0.0, move_ms: float = 0.0) -> Load:
    return Load(0, 0, 0, 0, 0.0, prefill_ms=prefill_ms, move_ms=move_ms)


@pytest.mark.parametrize(
    ("here", "prefill", "way"),
    [
        (None, [], None),
        (load(4.0), [None, load(8.0)], None),  # none has measured it
        (None, [load(move_ms=8.0)], None),  # nor what a prompt takes
        (None, [load(8.0, 20.0)], 40.0),  # 0.5 ms for each token
        (load(1.0), [load(8.0, 20.0), load(8.0, 40.0), load(8.0), None], 60.0),
        (load(1.0, 10.0), [load(8.0, 20.0)], 40.0),
        (load(1.0, 2000.0), [load(8.0, 20.0)], 4000.0),  # it did not reach one of them
        (load(1.0, 2000.0), [load(8.0)], 4000.0),
    ],
)
def test_what_the_way_of_a_prompt_costs_as_measured(here: Load | None, prefill: list[Load | None], way: Any) -> None:
    assert way_of(here, prefill, 16) == way


@given(many, many, few, many, many, few)
def test_more_load_on_one_side_sends_no_prompt_there(
    tokens: int, cached: int, requests: int, before: int, before_here: int, answers: int
) -> None:
    state = PrefillState(tokens, min(tokens, cached), 1, requests, before, None, before_here, answers)
    if decide(PrefillSettings(), state).remote:
        for more in ({"before_here": before_here + 1}, {"answers_here": answers + 1}):
            assert decide(PrefillSettings(), msgspec.structs.replace(state, **more)).remote
    else:
        assert not decide(PrefillSettings(), msgspec.structs.replace(state, before=before + 1)).remote


def test_a_worker_that_computes_no_prompts_has_them_computed_whatever_is_set() -> None:
    for settings in (
        PrefillSettings(remote_prefill=False),
        PrefillSettings(),
        PrefillSettings(router_conditional_disagg_config=ConditionalDisagg()),
    ):
        for state in (PrefillState(8, 8, 1, 9, required=True), PrefillState(8, 0, 0, 0, required=True)):
            decision = decide(settings, state)
            assert (decision.remote, decision.reason) == (True, "required")
