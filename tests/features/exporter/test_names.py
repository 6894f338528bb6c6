"""Metrics under names of NVIDIA Dynamo and vLLM: values, labels, and nothing where there is no source."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dynamod.features.exporter.names import aliases, name_of, with_aliases
from dynamod.features.exporter.settings import LOCAL, OFF, ExporterSettings, settings
from dynamod.message.errors import UserError
from dynamod.observe.metrics import exposition

WORKERS = """\
# TYPE dynamod_worker_info gauge
dynamod_worker_info{actor="/Worker",model="m",pool="",process="g/Worker.0"} 1
dynamod_worker_info{actor="/Prefill",model="m",pool="prefill",process="g/Prefill.0"} 1
# TYPE dynamod_worker_accepted_total counter
dynamod_worker_accepted_total{actor="/Worker",process="g/Worker.0"} 7
dynamod_worker_accepted_total{actor="/Prefill",process="g/Prefill.0"} 3
# TYPE dynamod_worker_engine_active_blocks gauge
dynamod_worker_engine_active_blocks{actor="/Worker",process="g/Worker.0"} 25
dynamod_worker_engine_active_blocks{actor="/Prefill",process="g/Prefill.0"} 1
# TYPE dynamod_worker_engine_total_blocks gauge
dynamod_worker_engine_total_blocks{actor="/Worker",process="g/Worker.0"} 100
dynamod_worker_engine_total_blocks{actor="/Prefill",process="g/Prefill.0"} 0
# TYPE dynamod_worker_request_duration_seconds histogram
dynamod_worker_request_duration_seconds_bucket{actor="/Worker",process="g/Worker.0",le="0.1"} 2
dynamod_worker_request_duration_seconds_bucket{actor="/Worker",process="g/Worker.0",le="+Inf"} 7
dynamod_worker_request_duration_seconds_count{actor="/Worker",process="g/Worker.0"} 7
dynamod_worker_request_duration_seconds_sum{actor="/Worker",process="g/Worker.0"} 1.5
"""
FRONTEND = """\
# TYPE dynamo_frontend_input_sequence_tokens histogram
dynamo_frontend_input_sequence_tokens_bucket{model="m",process="g/ingress.0",le="50.0"} 1
dynamo_frontend_input_sequence_tokens_bucket{model="m",process="g/ingress.0",le="+Inf"} 2
dynamo_frontend_input_sequence_tokens_count{model="m",process="g/ingress.0"} 2
dynamo_frontend_input_sequence_tokens_sum{model="m",process="g/ingress.0"} 90
# TYPE dynamo_frontend_requests_total counter
dynamo_frontend_requests_total{model="m",status="success",request_type="unary",process="g/ingress.0"} 4
dynamo_frontend_requests_total{model="m",status="success",request_type="stream",process="g/ingress.0"} 5
dynamo_frontend_requests_total{model="m",status="error",request_type="unary",process="g/ingress.0"} 9
"""
AT = 'dynamo_endpoint="generate",model="m"'


def named(text: str, frontend: str = "dynamo_frontend") -> list[str]:
    """The samples that are not in `text` itself."""
    out = exposition(with_aliases(text_string_to_metric_families(text), frontend))
    return [line for line in out.splitlines() if line.startswith(("dynamo_component", "vllm:"))]


def test_components_have_the_names_of_the_roles_of_their_workers() -> None:
    lines = named(WORKERS)
    assert f'dynamo_component_requests_total{{dynamo_component="backend",{AT},process="g/Worker.0"}} 7.0' in lines
    assert f'dynamo_component_requests_total{{dynamo_component="prefill",{AT},process="g/Prefill.0"}} 3.0' in lines
    duration = (
        f'dynamo_component_request_duration_seconds_%s{{dynamo_component="backend",{AT},process="g/Worker.0"}} %s'
    )
    assert {duration % ("count", "7.0"), duration % ("sum", "1.5")} <= {*lines}
    assert sum("duration_seconds_bucket" in line for line in lines) == 2


def test_the_share_of_blocks_is_a_quotient_and_0_without_blocks() -> None:
    lines = named(WORKERS)
    assert 'vllm:kv_cache_usage_perc{engine="0",model_name="m",process="g/Worker.0"} 0.25' in lines
    assert 'vllm:kv_cache_usage_perc{engine="0",model_name="m",process="g/Prefill.0"} 0.0' in lines


def test_a_sum_becomes_a_counter_and_requests_that_succeeded_are_added_up() -> None:
    lines = named(FRONTEND)
    at = '{engine="0",model_name="m",process="g/ingress.0"}'
    assert {f"vllm:prompt_tokens_total{at} 90.0", f"vllm:request_success_total{at} 9.0"} <= {*lines}
    assert sum(line.startswith("vllm:request_prompt_tokens_bucket") for line in lines) == 2
    assert named(FRONTEND, "other_prefix") == []


def test_there_is_nothing_without_a_source() -> None:
    assert named("# TYPE other gauge\nother 1\n") == []
    names = [name_of(one) for one in aliases("f")]
    assert len({*names}) == len(names)


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({}, ExporterSettings(LOCAL, OFF)),
        ({"DYN_SYSTEM_PORT": ""}, ExporterSettings(LOCAL, OFF)),
        ({"DYN_SYSTEM_PORT": "9400"}, ExporterSettings(LOCAL, 9400)),
        ({"DYN_SYSTEM_PORT": "0", "DYN_SYSTEM_HOST": "0.0.0.0"}, ExporterSettings("0.0.0.0", 0)),
    ],
)
def test_where_the_port_is(environ: dict[str, str], found: ExporterSettings) -> None:
    assert settings(environ) == found


@pytest.mark.parametrize("port", ["-2", "65536", "9400.5", "http"])
def test_what_is_no_port(port: str) -> None:
    with pytest.raises(UserError, match=f"DYN_SYSTEM_PORT={port} is no port") as caught:
        settings({"DYN_SYSTEM_PORT": port})
    assert "1 to 65535" in caught.value.hint
