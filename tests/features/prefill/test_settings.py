"""Keys of the processor's section for prompts that prefill workers compute."""

from typing import Any

import msgspec
import pytest

from dynamod.features.prefill.settings import PrefillSettings
from dynamod.graph.typed import validate
from dynamod.ingress.settings import ProcessorSettings
from dynamod.message.errors import UserError


def read(config: dict[str, Any]) -> PrefillSettings:
    found = validate(ProcessorSettings, config, "Processor")
    return msgspec.convert(found, PrefillSettings, from_attributes=True)


def test_a_mistake_in_a_nested_setting() -> None:
    with pytest.raises(UserError) as caught:
        read({"router_conditional_disagg_config": {"policy": "x"}})
    expected = "Processor.router_conditional_disagg_config.policy: invalid enum value 'x'; one of isl_bounding, "
    assert caught.value.line().startswith(expected)
    with pytest.raises(UserError) as caught:
        read({"router-conditional-disagg-config": {"eff-isl": 1}})
    assert "unknown key" in caught.value.line()
    assert "known keys: decode_busy_threshold, eff_isl_ratio_threshold, eff_isl_threshold" in caught.value.line()
    settings = read({"router-conditional-disagg-config": {"eff-isl-threshold": 5}, "max-local-prefill-length": 7})
    policy = settings.router_conditional_disagg_config
    assert (policy and policy.eff_isl_threshold, settings.max_local_prefill_length) == (5, 7)
