"""Which processes a GPU computed for lately, as NVML shows it.

Needs NVIDIA's driver and the package nvidia-ml-py (extra `nvml`). Without them no process is known to use a GPU. In a
container NVML may name the processes by ids of the host; then none of them is found either.
"""

import functools
import time
from typing import Any

US_PER_S = 1_000_000


@functools.cache
def _devices() -> tuple[Any, ...]:
    """NVML's handles of all GPUs; empty without a driver or the package."""
    try:
        import pynvml
    except ImportError:
        return ()
    try:
        pynvml.nvmlInit()
        return tuple(map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount())))
    except pynvml.NVMLError:
        return ()


def gpu_processes(seconds: float) -> set[int]:
    """Ids of the processes whose kernels ran, or moved memory, on a GPU within the last `seconds`.

    Source: nvmlDeviceGetProcessUtilization. A GPU that does not support it shows none.
    """
    found: set[int] = set()
    if not (devices := _devices()):
        return found
    import pynvml

    since = int((time.time() - seconds) * US_PER_S)
    for device in devices:
        try:
            samples = pynvml.nvmlDeviceGetProcessUtilization(device, since)
        except pynvml.NVMLError:  # also where there is no sample
            continue
        found.update(one.pid for one in samples if one.timeStamp >= since and (one.smUtil or one.memUtil))
    return found
