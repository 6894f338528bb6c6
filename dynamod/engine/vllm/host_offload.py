"""In vLLM's own processes, on a CPU: blocks are copied between the KV cache and a second place in main memory.

vLLM imports this by its name (`spec_module_path`); its own worker for that copies from GPUs only.
"""

import time
from collections.abc import Sequence
from typing import Any

import torch
from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec


class HostOffloadSpec(CPUOffloadingSpec):  # type: ignore[misc]  # vLLM has no types
    """vLLM's own choice of blocks to keep and to drop, with copies by the processor."""

    _worker: Any = None

    def get_worker(self, kv_caches: Any) -> OffloadingWorker:
        """What copies. Raises ValueError for a cache that it cannot copy by block."""
        if self._worker is None:
            if not self.num_chunks:
                raise ValueError("kv_host_gb has no room for a single KV block")
            if len(kv_caches.group_data_refs) != 1 or self.blocks_per_chunk != 1:
                raise ValueError("kv_host_gb: on a CPU only models with one kind of KV cache have such a tier")
            self._worker = _Copies(kv_caches, self.num_chunks)
        return self._worker


class _Copies(OffloadingWorker):  # type: ignore[misc]
    """A copy is over when it has been submitted: nothing else computes meanwhile."""

    def __init__(self, kv_caches: Any, chunks: int) -> None:
        self._device = [one.tensor.view(torch.int8).view(-1, one.page_size_bytes) for one in kv_caches.tensors]
        # Pages that have not been written take no memory.
        self._host = [torch.zeros((chunks, one.shape[1]), dtype=torch.int8) for one in self._device]
        self._finished: list[TransferResult] = []

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        """Copy blocks of the KV cache."""
        return self._copy(job_id, self._device, src_spec.block_ids, self._host, dst_spec.block_ids)

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        """Copy blocks into the KV cache."""
        return self._copy(job_id, self._host, src_spec.block_ids, self._device, dst_spec.block_ids)

    def _copy(self, job_id: int, source: Sequence[Any], here: Any, target: Sequence[Any], there: Any) -> bool:
        began = time.monotonic()
        rows, places = torch.from_numpy(here).long(), torch.from_numpy(there).long()
        for one, other in zip(source, target, strict=True):
            other.index_copy_(0, places, one.index_select(0, rows))
        size = len(rows) * sum(one.shape[1] for one in source)
        self._finished.append(TransferResult(job_id, True, size, time.monotonic() - began))
        return True

    def get_finished(self) -> list[TransferResult]:
        """The copies since the last call."""
        found, self._finished = self._finished, []
        return found

    def wait(self, job_ids: set[int]) -> None:
        """They are over."""
