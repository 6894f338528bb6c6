"""What dashboards of others ask Prometheus for, and which of the metrics have no meaning here, with the reason.

The expressions are those of the panels, without the join with `kube_pod_status_phase`, which keeps series of running
pods: it comes from kube-state-metrics.
"""

from collections.abc import Mapping, Sequence

_SPACE = 'namespace="$namespace"'


def _mean(metric: str, labels: str = _SPACE) -> str:
    return f"rate({metric}_sum{{{labels}}}[5m]) / rate({metric}_count{{{labels}}}[5m])"


DYNAMO: Mapping[str, Sequence[str]] = {
    "Frontend Requests / Sec": (f"rate(dynamo_frontend_requests_total{{{_SPACE}}}[30s])",),
    "Frontend Avg Time to First Token": (_mean("dynamo_frontend_time_to_first_token_seconds"),),
    "Frontend Avg Request Duration": (_mean("dynamo_frontend_request_duration_seconds"),),
    "Frontend Avg Inter-Token Latency": (_mean("dynamo_frontend_inter_token_latency_seconds"),),
    "Frontend Avg Input/Output Sequence Length": (
        _mean("dynamo_frontend_input_sequence_tokens"),
        _mean("dynamo_frontend_output_sequence_tokens"),
    ),
    "Frontend Queued Requests": ("dynamo_frontend_queued_requests",),
    "Prefill Queue": (
        "dynamo_component_nats_service_processing_ms_avg",
        "dynamo_component_nats_service_processing_ms_p99",
        "rate(dynamo_component_nats_service_requests_total[5m])",
    ),
    "Component Latency - Prefill vs Decode": tuple(
        _mean(
            "dynamo_component_request_duration_seconds",
            f'{_SPACE}, dynamo_component="{component}", dynamo_endpoint="generate"',
        )
        for component in ("prefill", "backend")
    ),
    "Decode Worker": (
        f'rate(dynamo_component_requests_total{{{_SPACE}, dynamo_component="backend"}}[5m])',
        _mean("dynamo_component_request_duration_seconds", f'{_SPACE}, dynamo_component="backend"'),
    ),
    "KV Cache": (
        f"dynamo_component_kvstats_gpu_cache_usage_percent{{{_SPACE}}}",
        f"dynamo_component_kvstats_active_blocks{{{_SPACE}}}",
        f"dynamo_component_kvstats_total_blocks{{{_SPACE}}}",
        f"dynamo_component_gpu_cache_usage_percent{{{_SPACE}}}",
        f"dynamo_component_total_blocks{{{_SPACE}}}",
    ),
    "Worker Data Transfer": (
        "rate(dynamo_component_request_bytes_total[5m])",
        "rate(dynamo_component_response_bytes_total[5m])",
    ),
    "NATS": (
        "rate(dynamo_component_nats_client_in_messages[5m])",
        "rate(dynamo_component_nats_client_out_messages[5m])",
        "rate(dynamo_component_nats_client_in_total_bytes[5m])",
        "rate(dynamo_component_nats_client_out_overhead_bytes[5m])",
    ),
    "GPU": (
        "DCGM_FI_DEV_GPU_UTIL",
        "DCGM_FI_DEV_MEM_COPY_UTIL",
        "DCGM_FI_DEV_FB_USED / 1024",
        "rate(DCGM_FI_PROF_NVLINK_TX_BYTES[1m]) + rate(DCGM_FI_PROF_NVLINK_RX_BYTES[1m])",
    ),
    "CPU": ("rate(container_cpu_usage_seconds_total[5m])", "rate(node_cpu_seconds_total[5m])"),
}
"""NVIDIA Dynamo's `disagg-dashboard.json`, by the title of the panel; both releases of the names of the KV cache."""

VLLM: Mapping[str, Sequence[str]] = {
    "Requests": ('vllm:request_success_total{model_name="sample"}', 'vllm:num_requests_running{engine="0"}'),
    "Waiting": ("vllm:num_requests_waiting", "vllm:num_preemptions_total"),
    "Tokens": ("vllm:prompt_tokens_total", "vllm:generation_tokens_total"),
    "Latency": (
        "vllm:time_to_first_token_seconds_bucket",
        "vllm:inter_token_latency_seconds_bucket",
        "vllm:e2e_request_latency_seconds_bucket",
    ),
    "Lengths": ("vllm:request_prompt_tokens_bucket", "vllm:request_generation_tokens_bucket"),
    "Cache": ("vllm:kv_cache_usage_perc", "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"),
    "HTTP": ("http_requests_total", "http_request_duration_seconds_bucket"),
}
"""vLLM's `vllm_overview.json`."""

EXCEPTIONS: Mapping[str, str] = {
    "dynamo_component_nats_service_": "statistics of NATS services; workers here are no NATS services",
    "dynamo_component_nats_client_": "counts of the NATS client; dynamod_nats_* and dynamod_link_* count here",
    "dynamo_component_request_bytes": "workers count requests and tokens, and no bytes of requests",
    "dynamo_component_response_bytes": "workers count requests and tokens, and no bytes of answers",
    "DCGM_": "of NVIDIA's DCGM exporter",
    "container_cpu_usage_seconds": "of cAdvisor",
    "node_cpu_seconds": "of the node exporter",
    "http_request": "of the HTTP middleware of vLLM; dynamo_frontend_requests_total counts here",
}
"""How names of metrics begin that have no meaning here, and the reason."""


def expressions() -> Sequence[str]:
    """All expressions of these dashboards."""
    return [one for board in (DYNAMO, VLLM) for panel in board.values() for one in panel]


def excepted(name: str) -> bool:
    """Whether a metric has no meaning here."""
    return name.startswith(tuple(EXCEPTIONS))
