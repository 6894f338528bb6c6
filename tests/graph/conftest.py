import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from dynamod.graph.service_config import ServiceConfig

Write = Callable[[str, str], Path]


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    """User modules, search path and the config singleton do not leak from one test to the next."""
    path, modules = list(sys.path), dict(sys.modules)
    yield
    sys.path[:] = path
    if sys.modules != modules:  # there are thousands, and after most tests they are the same
        for name, module in list(sys.modules.items()):
            if modules.get(name) is not module and not _installed(name, module):
                del sys.modules[name]
        for name, module in modules.items():
            sys.modules.setdefault(name, module)
    ServiceConfig._instance = None


def _installed(name: str, module: object) -> bool:
    file = getattr(module, "__file__", None) or ""
    return "site-packages" in file or "/lib/python" in file or name.startswith("dynamod")


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a file below tmp_path."""

    def one(name: str, text: str) -> Path:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(dedent(text))
        return file

    return one


COMPONENTS = """
    from pydantic import BaseModel
    from dynamod.graph.service import service, endpoint, depends

    @service(dynamo={"namespace": "dynamo"}, resources={"gpu": 1, "cpu": "10", "memory": "20Gi"})
    class PrefillWorker:
        @endpoint()
        async def prefill(self, request): yield request

    @service(dynamo={"namespace": "dynamo"}, resources={"gpu": 1})
    class Worker:
        prefill_worker = depends(PrefillWorker)

        class Config(BaseModel):
            model: str = "none"
            block_size: int = 16
            enable: bool = True

        @endpoint()
        async def generate(self, request: dict): yield request

    @service(dynamo={"namespace": "dynamo"})
    class Router:
        worker = depends(Worker)

        @endpoint()
        async def route(self, request: dict): yield request

    @service(dynamo={"namespace": "dynamo"})
    class Processor:
        worker = depends(Worker)
        router = depends(Router)

        @endpoint("chat/completions")
        async def chat(self, request: dict): yield request

    @service(dynamo={"namespace": "dynamo"})
    class Frontend:
        worker = depends(Worker)
        processor = depends(Processor)
"""


@pytest.fixture
def project(tmp_path: Path, write: Write) -> Path:
    """A folder with components, two graphs that share them, and a config."""
    write("components/all.py", COMPONENTS)
    imports = "from components.all import Frontend, Processor, Router, Worker, PrefillWorker\n"
    write("graphs/small.py", imports + "Frontend.link(Processor).link(Worker)\n")
    write("graphs/routed.py", imports + "Frontend.link(Processor).link(Router).link(Worker)\n")
    write(
        "configs/small.yaml",
        """\
        graph: graphs.small:Frontend
        Common:
          model: tiny
          block-size: 64
        Frontend:
          port: 8000
        Router: {}
        Worker:
          common-configs: [model, block-size]
          ServiceArgs:
            workers: 2
            envs: [{name: A, value: one}]
        """,
    )
    return tmp_path
