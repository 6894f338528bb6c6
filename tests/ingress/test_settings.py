"""The keys of the processor's section, and the variables that stand for some of them."""

from typing import Any

import pytest

from dynamod.graph.typed import given, validate
from dynamod.ingress.settings import ProcessorSettings, from_environment
from dynamod.message.errors import UserError
from dynamod.router.cost import ORIGINAL, Weights, weights_of
from dynamod.router.settings import RouterSettings


def read(config: dict[str, Any], **environ: str) -> ProcessorSettings:
    settings: ProcessorSettings = validate(ProcessorSettings, given(config, from_environment(environ)), "Processor")
    return settings


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"router_mode": "best"}, "unknown router mode 'best'"),
        ({"router_cost": {"speed": 1}}, "speed"),
        ({"router_cost": {"queued": -1}}, "queued is -1"),
        ({"router_cost": "fast"}, "router_cost"),
        ({"kv_overlap_score_weight": -1}, "kv_overlap_score_weight"),
        ({"kv_overlap_score_weight": float("inf")}, "kv_overlap_score_weight"),
        ({"router_temperature": "hot"}, "router_temperature"),
        ({"use_kv_events": "no"}, "use_kv_events"),
        ({"shadow_router_mode": "x"}, "unknown router mode 'x'"),
        ({"active_decode_blocks_threshold": 1.5}, "active_decode_blocks_threshold"),
        ({"migration_limit": 1024}, "migration_limit"),
        ({"queue_timeout": 0}, "queue_timeout"),
        ({"static_model": "sample"}, "static_model needs only_endpoint"),
    ],
)
def test_a_wrong_setting_is_named(config: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        read(config)


def test_how_to_choose_an_instance() -> None:
    found = read({"router_mode": "kv", "router_cost": {"queued": 1}, "use_kv_events": False}).routing()
    assert found == RouterSettings("kv", Weights(queued=1.0), kv_events=False)
    assert read({"router": "round_robin", "router-cost": "original"}).routing().weights == ORIGINAL
    assert read({}).routing() == RouterSettings()
    assert weights_of(None) == Weights()


def test_a_time_of_null_is_no_limit() -> None:
    limits = read({"queue_timeout": None, "request_timeout": 5, "router_mode": None}).limits()
    assert (limits.queue, limits.first, limits.gap, limits.total) == (None, 600.0, 120.0, 5.0)


def test_a_variable_stands_in_for_a_key_that_is_not_there() -> None:
    environ = {"DYN_MIGRATION_LIMIT": "7", "DYN_MIGRATION_MAX_SEQ_LEN": ""}
    assert read({}, **environ).migration_limit == 7
    assert read({"migration_limit": None}, **environ).migration_limit == 7
    assert read({"migration-limit": 0}, **environ).migration_limit == 0
    assert read({}, **environ).migration_max_seq_len is None


@pytest.mark.parametrize("text", ["many", "-1", "1024"])
def test_a_wrong_variable_is_named(text: str) -> None:
    with pytest.raises(UserError, match=f"DYN_MIGRATION_LIMIT is '{text}'"):
        read({}, DYN_MIGRATION_LIMIT=text)
