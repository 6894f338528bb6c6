"""Kubernetes: pods find each other by the API server; graphs as manifests; DynamoGraphDeployments as graphs."""

from typing import TYPE_CHECKING

from dynamod.extension.feature import ConfigKey, Feature

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from dynamod.graph.document import Document


def _expand() -> "Callable[[Document, object], tuple[Document, str | None]]":
    from .graph import expand

    return expand


def _store() -> "Callable[[Mapping[str, str]], object]":
    from .store import KubernetesStore

    return KubernetesStore


def _daemon() -> object:
    from .daemon import KubernetesPart

    return KubernetesPart


def _command() -> object:
    from .cli import app

    return app


_TEXT = {"type": "string", "description": "of a DynamoGraphDeployment"}
_OBJECT = {"type": "object", "description": "of a DynamoGraphDeployment"}

FEATURE = Feature(
    "kubernetes",
    "pods that find each other by the API server, without etcd; dynamo manifest; DynamoGraphDeployments as graphs",
    discovery={"kubernetes": _store},
    daemon=_daemon,
    commands={"manifest": _command},
    config_keys={
        "apiVersion": ConfigKey(_TEXT, _expand),
        "kind": ConfigKey(_TEXT, _expand),
        "metadata": ConfigKey(_OBJECT, _expand),
        "spec": ConfigKey(_OBJECT, _expand),
    },
)
