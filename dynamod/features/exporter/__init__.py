"""Metrics of all processes of a node at one port, for Prometheus; also under names of NVIDIA Dynamo and vLLM."""

from dynamod.extension.feature import Feature


def _daemon() -> type:
    from .daemon import ExporterPart

    return ExporterPart


FEATURE = Feature(
    "exporter",
    "`DYN_SYSTEM_PORT`: metrics of all processes of a node for Prometheus, with names of NVIDIA Dynamo and vLLM",
    daemon=_daemon,
)
