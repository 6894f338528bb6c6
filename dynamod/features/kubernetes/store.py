"""The API server as the store of all nodes: DYNAMOD_DISCOVERY=kubernetes."""

from collections.abc import Mapping

from dynamod.actor import Actor
from dynamod.discovery.backend import Bridge
from dynamod.discovery.memory import MemoryRegistry

from .bridge import KubernetesBridge
from .settings import KubernetesSettings


class KubernetesStore:
    """See `discovery.backend.Backend`."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        """Raises UserError that names a variable."""
        self.settings = KubernetesSettings.from_environment(environ)
        self.settings.trust()

    def __str__(self) -> str:
        return f"Kubernetes at {self.settings.url}"

    def bridge(self, registry: MemoryRegistry, node: str) -> tuple[Actor, Bridge]:
        """The actor; see `discovery.backend.Backend`."""
        made = KubernetesBridge(registry, self.settings, node)
        return made, made
