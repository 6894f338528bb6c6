"""What matters for a bug report: `dynamo env`."""

import importlib.metadata
import os
import platform
import sys
from typing import Any

from dynamod import __version__
from dynamod.daemon.gpus import models
from dynamod.engine.names import ENGINES
from dynamod.runtime.paths import socket_candidates


def facts() -> dict[str, Any]:
    """Versions, platform, GPUs (address on the bus to model), engines, sockets.

    An engine has the version of what it needs, None when that is not installed.
    """
    # the name of a distribution is not that of its module: llama_cpp is in llama_cpp_python
    packages = importlib.metadata.packages_distributions()
    needed = {name: packages.get(entry.needs, [""])[0] for name, entry in ENGINES.items() if entry.needs}
    return {
        "dynamod": __version__,
        "python": platform.python_version(),
        "executable": sys.executable,
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "gpus": models(),
        "engines": {name: importlib.metadata.version(one) if one else None for name, one in needed.items()},
        "sockets": [str(path) for path in socket_candidates()],
    }


def text(found: dict[str, Any]) -> str:
    """The facts, a line each."""
    engines = [
        f"engine {name}: {version or f'not installed ({ENGINES[name].hint()})'}"
        for name, version in found["engines"].items()
    ]
    return "\n".join(
        [
            f"dynamod {found['dynamod']}",
            f"python {found['python']} ({found['executable']})",
            f"platform {found['platform']}",
            f"cores {found['cores']}",
            *(f"gpu {model} ({address})" for address, model in found["gpus"].items()),
            *engines,
            f"sockets tried: {', '.join(found['sockets'])}",
        ]
    )
