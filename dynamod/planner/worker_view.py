"""What a worker has published about its requests, its cache and its steps, as a planner needs it."""

from collections.abc import Sequence

from dynamod.message.kv_events import Load, PrefillCompleted, RequestFinished, RequestStarted, WorkerEvent

from .observation import StepSample, WorkerLoad


class WorkerView:
    """`block_size`: tokens in a KV block, 0 where the worker has none."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._uncomputed: dict[int, int] = {}  # prompt tokens by request
        self._arrived: list[int] = []
        self._steps: list[StepSample] = []
        self._load = Load(0, 0, 0, 0, 0.0)
        self.open: set[int] = set()

    def take(self, events: Sequence[WorkerEvent], snapshot: bool) -> None:
        """Events in their order; `snapshot`: they state what is there, nothing else is."""
        if snapshot:
            self._uncomputed.clear()
            self.open.clear()
        for event in events:
            match event:
                case RequestStarted(request, _, prefill):
                    self._uncomputed[request] = prefill
                    self.open.add(request)
                    if not snapshot:
                        self._arrived.append(max(1, prefill))
                case PrefillCompleted(request):
                    self._uncomputed.pop(request, None)
                case RequestFinished(request):
                    self._uncomputed.pop(request, None)
                    self.open.discard(request)
                case Load():
                    self._load = event
                case _:
                    pass

    def load(self) -> WorkerLoad:
        """Now, with the steps since the last time."""
        steps, self._steps = tuple(self._steps), []
        return WorkerLoad(
            queued_prefill=sum(self._uncomputed.values()),
            context=self._load.active_blocks * self._block_size,
            capacity=self._load.total_blocks * self._block_size,
            steps=steps,
        )

    def arrived(self) -> list[int]:
        """Prompt tokens that had to be computed, of each request since the last time."""
        found, self._arrived = self._arrived, []
        return found
