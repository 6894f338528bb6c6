"""Requests with tags: noted, counted, and sent to workers with the labels that they name."""

from collections import Counter
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from dynamod.ingress.api.unserved import body_without
from dynamod.ingress.base import Backend, Job, ResponseSink, Run
from dynamod.ingress.large import apart
from dynamod.ingress.parts import Begin, ProcessorContext, ProcessorPart
from dynamod.message.discovery import ModelCard
from dynamod.message.errors import BadRequest, Overloaded, RequestError
from dynamod.observe.bounded import bounded
from dynamod.observe.metrics import Definition

from .messages import ROUTES, TagSection

if TYPE_CHECKING:
    from prometheus_client.core import Metric

DISTINCT = 64
"""Tags that have a count of their own; the others count as OTHER, so that clients cannot fill the metrics."""
OTHER = "other"
REMEMBERED = 1024
"""Labels to which requests have gone, which an ingress process remembers."""


def labels_of(card: ModelCard) -> Sequence[str]:
    """The labels that the card of a worker says."""
    return card.section("tags", TagSection).labels


@dataclass(frozen=True, slots=True)
class NeedsLabel:
    """A `router.eligible.Need`: the worker has this label. `seen`: a worker of the model has had the label."""

    label: str
    seen: bool

    def lacks(self, card: ModelCard) -> str:
        """That the worker lacks the label."""
        return "" if self.label in labels_of(card) else f"lacks the label {self.label}"

    def unmet(self, cards: Sequence[ModelCard]) -> RequestError:
        """Overloaded where the worker may come back, else BadRequest."""
        there = ", ".join(sorted({label for card in cards for label in labels_of(card)})) or "none"
        text = f"`nvext.tags` has {ROUTES}{self.label}, but no worker of the model has the label; labels: {there}"
        if self.seen:
            return Overloaded(text, param="nvext.tags", retry_after=1.0)
        return BadRequest(text, param="nvext.tags")


class TaggedRequests(ProcessorPart):
    """Counts requests by tag, and has those with `tag=x` placed at workers with the label x."""

    def __init__(self, context: ProcessorContext) -> None:
        super().__init__(context)
        self.counts: Counter[str] = Counter()
        self._seen: dict[tuple[str, str], None] = {}  # model and label
        bounded(self, "labels of requests", REMEMBERED, lambda one: len(one._seen), "labels")

    def start(self, job: Job, sink: ResponseSink, begin: Begin) -> Awaitable[Run]:
        """Begin a request. Raises BadRequest or Overloaded when no worker has a label that it names."""
        tags = getattr(job.request.nvext, "tags", None)
        return self._tagged(job, sink, begin, [*dict.fromkeys(tags)]) if tags else begin(job, sink)

    async def _tagged(self, job: Job, sink: ResponseSink, begin: Begin, tags: Sequence[str]) -> Run:
        job.notes["tags"] = ",".join(tags)
        for tag in tags:
            self.counts[tag if tag in self.counts or len(self.counts) < DISTINCT else OTHER] += 1
        model, labels = job.request.model, [tag.removeprefix(ROUTES) for tag in tags if tag.startswith(ROUTES)]
        needs = [NeedsLabel(label, (model, label) in self._seen) for label in labels]
        body, card = job.body, self.context.cards().get(model)
        if card is not None and card.kind == "text":  # its engine may be a server with labels of its own
            body = await apart(body_without, body, ["nvext.tags"])
        run = await begin(msgspec.structs.replace(job, body=body, needs=(*job.needs, *needs)), sink)
        for label in labels if len(self._seen) < REMEMBERED else ():
            self._seen[model, label] = None
        return run


METRIC = Definition("counter", "tagged_requests", "Requests by tag in `nvext.tags`.", ("tag",))


async def families(backend: Backend, prefix: str) -> "Iterable[Metric]":
    """The metric of the HTTP server, whose name begins with `prefix`; none before the first request with a tag."""
    part: TaggedRequests | None = backend.parts.get("tags")  # None until the processor has started
    if part is None or not part.counts:
        return []
    family = METRIC.family(prefix)
    for tag, count in part.counts.items():
        family.add_metric([tag], count)
    return [family]
