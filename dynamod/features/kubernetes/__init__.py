"""Kubernetes: `dynamo serve -f` reads a DynamoGraphDeployment, the resource that NVIDIA Dynamo's operator runs."""

from typing import TYPE_CHECKING

from dynamod.extension.feature import ConfigKey, Feature

if TYPE_CHECKING:
    from collections.abc import Callable

    from dynamod.graph.document import Document


def _expand() -> "Callable[[Document, object], tuple[Document, str | None]]":
    from .graph import expand

    return expand


_TEXT = {"type": "string", "description": "of a DynamoGraphDeployment"}
_OBJECT = {"type": "object", "description": "of a DynamoGraphDeployment"}

FEATURE = Feature(
    "kubernetes",
    "dynamo serve -f FILE for a DynamoGraphDeployment, the resource of NVIDIA Dynamo's operator",
    config_keys={
        "apiVersion": ConfigKey(_TEXT, _expand),
        "kind": ConfigKey(_TEXT, _expand),
        "metadata": ConfigKey(_OBJECT, _expand),
        "spec": ConfigKey(_OBJECT, _expand),
    },
)
