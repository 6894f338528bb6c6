"""SGLang's scheduler process on a CPU, where KV blocks shall go from one engine to another."""

import importlib
from typing import Any


def run_scheduler_process(*arguments: Any, **named: Any) -> Any:
    """SGLang's own function, behind a NIXL that takes main memory for the GPU's.

    SGLang registers its KV cache as "VRAM", whatever it computes on. NIXL's UCX refuses main memory under that name.
    """
    from sglang.srt.managers.scheduler import run_scheduler_process as run

    agent = importlib.import_module("nixl._api").nixl_agent
    begin = agent.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs)
        self.nixl_mems["VRAM"] = self.nixl_mems["DRAM"]

    agent.__init__ = init
    return run(*arguments, **named)
