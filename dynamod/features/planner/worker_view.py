"""What a worker has published about its requests, its cache and its steps, as a planner needs it."""

from collections.abc import Sequence

from dynamod.message.kv_events import ForwardPass, Load, RequestStarted, WorkerEvent

from .observation import StepSample, WorkerLoad


class WorkerView:
    """`block_size`: tokens in a KV block, 0 where the worker has none. `node`: where it runs, as far as is known. Ranks
    of a worker count together.
    """

    def __init__(self, block_size: int, node: str = "") -> None:
        self._block_size, self.node = block_size, node
        self._arrived: list[int] = []
        self._steps: list[StepSample] = []
        self._last: dict[int, ForwardPass] = {}  # step, by rank
        self._load = Load(0, 0, 0, 0, 0.0)
        self.tells = False
        """Whether it has told anything: what stands in the registry and cannot be reached does no work."""

    def take(self, events: Sequence[WorkerEvent], snapshot: bool) -> None:
        """Events of a subscription to steps, in their order; `snapshot`: requests in them came before we looked."""
        self.tells = True
        for event in events:
            match event:
                case RequestStarted(_, _, prefill) if not snapshot:
                    self._arrived.append(max(1, prefill))
                case ForwardPass():
                    self._last[event.dp_rank] = event
                    self._stepped(event)
                case Load():
                    self._load = event
                case _:
                    pass

    def _stepped(self, step: ForwardPass) -> None:
        found = step.scheduled_requests
        prefill, context = found.sum_prefill_tokens, found.sum_decode_kv_tokens
        if step.wall_time and prefill is not None and context is not None:
            self._steps.append(StepSample(prefill, context, step.wall_time))

    def load(self) -> WorkerLoad:
        """Now, with the steps since the last time."""
        steps, self._steps = tuple(self._steps), []
        last = self._last.values()
        return WorkerLoad(
            requests=self._load.running + self._load.waiting,
            queued_prompts=sum(step.queued_requests.num_prefill_requests or 0 for step in last),
            queued_prefill=sum(step.queued_requests.sum_prefill_tokens or 0 for step in last),
            running_prefill=sum(step.running_prefill_tokens or 0 for step in last),
            context=self._load.active_blocks * self._block_size,
            capacity=self._load.total_blocks * self._block_size,
            steps=steps,
        )

    def arrived(self) -> list[int]:
        """Prompt tokens that had to be computed, of each request since the last time."""
        found, self._arrived = self._arrived, []
        return found
