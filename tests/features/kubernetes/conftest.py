"""Pods as bridges in one process, at a fake API server over real HTTP; what `dynamo manifest` prints."""

import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from dynamod.actor import System
from dynamod.cli.app import run
from dynamod.discovery.memory import MemoryRegistry
from dynamod.features.kubernetes import bridge as module
from dynamod.features.kubernetes.bridge import KubernetesBridge
from dynamod.features.kubernetes.settings import KubernetesSettings

from .fake_api import FakeApi

ROOT = Path(__file__).parents[3]


class Pod:
    def __init__(self, settings: KubernetesSettings) -> None:
        self.settings, self.system = settings, System()
        self.registry = MemoryRegistry(random.Random(settings.pod))
        self.lease = self.registry.grant()
        self.bridge: KubernetesBridge
        self.ended = False

    async def start(self) -> None:
        def make() -> KubernetesBridge:
            self.bridge = KubernetesBridge(self.registry, self.settings, self.settings.pod)
            return self.bridge

        await self.system.__aenter__()
        await self.system.ready(self.system.start("bridge", make), timeout=5)

    async def end(self) -> None:
        if not self.ended:
            self.ended = True
            await self.system.__aexit__(None, None, None)

    def put(self, key: str, value: bytes = b"{}") -> None:
        self.registry.put(key, value, self.lease)

    @property
    def keys(self) -> list[str]:
        return [key for key, _ in self.registry.items()]


def pod_of(url: str, account: Path, name: str) -> Pod:
    """A pod of the graph `g`."""
    environ = {
        "DYNAMOD_KUBERNETES_URL": url,
        "DYNAMOD_KUBERNETES_ACCOUNT": str(account),
        "POD_NAME": name,
        "POD_NAMESPACE": "ns",
        "POD_UID": f"uid-{name}",
        "DYNAMOD_KUBERNETES_GRAPH": "g",
    }
    return Pod(KubernetesSettings.from_environment(environ))


@pytest.fixture
async def fake() -> AsyncIterator[FakeApi]:
    fake = FakeApi()
    await fake.start()
    yield fake
    await fake.stop()


@pytest.fixture
async def pods(fake: FakeApi, tmp_path: Path) -> AsyncIterator[Callable[[str], Pod]]:
    made = list[Pod]()
    (tmp_path / "token").write_text("secret\n")

    def make(name: str) -> Pod:
        made.append(pod_of(fake.url, tmp_path, name))
        return made[-1]

    yield make
    for pod in made:
        await pod.end()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RETRY": 0.05, "RETRY_AT_MOST": 0.2, "REFUSED": 0.2, "RELIST": 0.1}.items():
        monkeypatch.setattr(module, name, value)


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)

    def command(*words: str, data: Any = None) -> tuple[dict[tuple[str, str], Any], list[str]]:
        if data is not None:
            (tmp_path / "dgd.yaml").write_text(yaml.safe_dump(data, sort_keys=False))
            words = ("-f", "dgd.yaml", *words)
        capsys.readouterr()
        assert run(["manifest", *words]) == 0
        out, err = capsys.readouterr()
        found = list(yaml.safe_load_all(out))
        lines = [line.replace(f"{ROOT}/", "") for line in err.splitlines()]
        return {(one["kind"], one["metadata"]["name"]): one for one in found}, lines

    return command
