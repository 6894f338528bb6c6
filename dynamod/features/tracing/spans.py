"""The spans of one request, made of what its ingress has handed on. Runs in the exporter process."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from dynamod.observe import timeline as marks

from . import names
from .handed import About, Decision, Handed

Place = tuple[str, str]
"""Node and process: spans of one place have one resource."""
_SCALARS = {bool: "bool_value", int: "int_value", float: "double_value", str: "string_value"}


def attribute(name: str, value: Any) -> KeyValue:
    """An attribute; a list becomes one of texts or numbers."""
    if isinstance(value, list | tuple):
        return KeyValue(key=name, value=AnyValue(array_value=ArrayValue(values=[_value(one) for one in value])))
    return KeyValue(key=name, value=_value(value))


def _value(value: Any) -> AnyValue:
    kind = _SCALARS.get(type(value))
    if kind == "int_value" and not -(1 << 63) <= value < 1 << 63:
        kind = None  # a seed may be larger
    if kind is None or kind == "string_value":
        return AnyValue(string_value=str(value).encode("utf-8", "replace").decode())
    return AnyValue(**{kind: value})


class Tree:
    """The spans of a request, by the place where each was."""

    def __init__(self, handed: Handed) -> None:
        self._handed = handed
        self._trace = bytes.fromhex(handed.trace)
        self._here = (handed.node, handed.process)
        self.spans: dict[Place, list[Span]] = {}
        arrived, begun, read, _, _, lowering, lowered, _, ended = handed.times
        self._end = ended or max([arrived, *(at for _, _, at, _ in handed.marks)])
        self._root(arrived or begun, self._end)
        if lowering:
            self.add("preprocess", read or begun, lowered or self._end, handed.span)
        for choice in dict.fromkeys(index for _, index, _, _ in handed.marks):
            _Choice(self, choice).walk([one for one in handed.marks if one[1] == choice])

    def _root(self, begun: float, ended: float) -> None:
        handed = self._handed
        name = f"{handed.method} {handed.path}" if handed.endpoint or handed.status != 404 else handed.method
        root = self.add(name, begun, ended, handed.parent, span=handed.span)
        root.kind = Span.SPAN_KIND_SERVER
        root.trace_state = handed.state
        if handed.link is not None:
            trace, span = handed.link
            root.links.add(trace_id=bytes.fromhex(trace), span_id=bytes.fromhex(span))
        root.attributes.extend(attribute(*one) for one in root_attributes(handed))
        if handed.error or handed.status >= 500:
            root.status.code = Status.STATUS_CODE_ERROR
            root.status.message = handed.error

    def add(
        self,
        name: str,
        begun: float,
        ended: float,
        parent: str,
        *,
        span: str = "",
        at: About | None = None,
        attributes: Iterable[tuple[str, Any]] = (),
    ) -> Span:
        """A span. `at`: the worker where it was; None: here."""
        found = Span(
            trace_id=self._trace,
            span_id=bytes.fromhex(span) if span else os.urandom(8),
            parent_span_id=bytes.fromhex(parent),
            name=name,
            kind=Span.SPAN_KIND_INTERNAL,
            start_time_unix_nano=self.nanos(begun),
            end_time_unix_nano=self.nanos(max(begun, ended)),
        )
        found.attributes.extend(attribute(*one) for one in attributes)
        place = self._here if at is None else (at.node, at.process or f"{at.instance:x}")
        self.spans.setdefault(place, []).append(found)
        return found

    def nanos(self, at: float) -> int:
        """Unix time of a moment of the request's clock."""
        return int((self._handed.epoch + at) * 1e9)

    @property
    def root(self) -> str:
        """The span of the request."""
        return self._handed.span

    @property
    def end(self) -> float:
        """When the request ended."""
        return self._end

    def attempt(self, choice: int, number: int) -> str:
        """The span of a send, as the worker was told; empty: the request ended before."""
        known = self._handed.attempts.get(choice, ())
        return known[number] if number < len(known) else ""


def root_attributes(handed: Handed) -> Iterable[tuple[str, Any]]:
    """HTTP and GenAI attributes of a request."""
    yield names.METHOD, handed.method
    yield names.ROUTE if handed.endpoint else names.PATH, handed.path
    yield names.STATUS, handed.status
    yield names.REQUEST_ID, handed.id
    if handed.client:
        yield names.CLIENT, handed.client
    if handed.error:
        yield names.ERROR_TYPE, handed.error
    for name, ms in handed.phases().items():
        yield f"dynamo.phase.{name}_ms", ms
    if not handed.model:
        return
    yield names.OPERATION, names.OPERATIONS.get(handed.endpoint, "chat")
    yield names.PROVIDER, "dynamo"
    yield names.REQUEST_MODEL, handed.model
    yield names.RESPONSE_MODEL, handed.model
    yield names.RESPONSE_ID, handed.id
    yield names.STREAM, handed.stream
    known = {names.PARAMETERS[field]: value for field, value in handed.parameters.items() if field in names.PARAMETERS}
    yield from known.items()
    if handed.finish:
        yield names.FINISH_REASONS, handed.finish.split(",")
    if handed.first_ms is not None:
        yield names.FIRST_CHUNK, handed.first_ms / 1000
    yield names.INPUT_TOKENS, handed.prompt_tokens
    yield names.OUTPUT_TOKENS, handed.completion_tokens
    if handed.cached_tokens is not None:
        yield names.CACHE_READ, handed.cached_tokens


def _worker(at: About) -> Iterable[tuple[str, Any]]:
    return ((names.WORKER, f"{at.instance:x}"), (names.WORKER_PROCESS, at.process))


def route_attributes(at: About) -> Iterable[tuple[str, Any]]:
    """What a decision says: candidates, the chosen one, its overlap, and the terms of its cost."""
    decision = at.decision
    yield from _worker(at)
    if decision is None:
        return
    yield from _decided(decision)


def _decided(decision: Decision) -> Iterable[tuple[str, Any]]:
    yield "dynamo.route.mode", decision.mode
    yield "dynamo.route.rule", decision.rule
    if decision.pool:
        yield "dynamo.route.pool", decision.pool
    yield "dynamo.route.candidates", [f"{one.instance:x}" for one in decision.candidates]
    yield "dynamo.route.candidate_costs", [one.total for one in decision.candidates]
    yield "dynamo.route.excluded", len(decision.excluded) + decision.more_excluded
    yield "dynamo.route.left_out", decision.left_out
    yield "dynamo.route.block_size", decision.block_size
    for one in decision.candidates:
        if one.instance == decision.chosen:
            yield "dynamo.route.overlap_blocks", one.overlap
            yield "dynamo.route.cost", one.total
            for name, value in (one.terms or {}).items():
                yield f"dynamo.route.cost.{name}", value


class _Choice:
    """Makes the spans of one choice, from mark to mark."""

    def __init__(self, tree: Tree, choice: int) -> None:
        self._tree, self._about = tree, [("dynamo.choice", choice)] if choice else []
        self._choice = choice
        self._at = 0.0  # the last mark
        self._sends = 0
        self._number = -1  # of the attempt that has begun with its place
        self._sent: tuple[float, About] | None = None
        self._accepted = self._first = 0.0
        self._prefill: tuple[float, About] | None = None
        self._handed = 0.0
        self._why = ""  # the attempt before has broken

    def walk(self, found: Iterable[tuple[str, int, float, About | None]]) -> None:
        """Make the spans of these marks."""
        at = self._tree.end
        for what, _, at, about in found:
            about = about or About()
            if what == marks.PLACED:
                self._placed(at, about, "")
                self._number += 1
            elif what == marks.PREFILL_PLACED:
                self._placed(at, about, "prefill")
                self._prefill, self._handed = (at, about), 0.0
            elif what == marks.HANDED:
                self._handed = at
            elif what == marks.RELEASED:
                self._released(at)
            elif what == marks.SENT:
                self._sent, self._accepted, self._first = (at, about), 0.0, 0.0
            elif what == marks.ACCEPTED:
                self._accepted = self._accepted or at
            elif what == marks.FIRST:
                self._first = self._first or at
            elif what == marks.BROKE:
                self._ended(at, about.why or "broken")
                self._why = about.why or "broken"
            elif what == marks.FINISHED:
                self._ended(at, "")
            self._at = at
        self._ended(self._tree.end, "")
        if self._prefill is not None:
            self._released(self._tree.end)

    def _placed(self, at: float, about: About, prefix: str) -> None:
        tree, begun = self._tree, at - about.took
        name = f"{prefix} " if prefix else ""
        tree.add(f"{name}queue", min(self._at or begun, begun), begun, tree.root, attributes=self._about)
        tree.add(f"{name}route", begun, at, tree.root, attributes=[*self._about, *route_attributes(about)])

    def _released(self, at: float) -> None:
        if self._prefill is None:
            return
        tree, (begun, about), handed = self._tree, self._prefill, self._handed
        parent = tree.attempt(self._choice, self._number)
        shared = (*self._about, *_worker(about))
        hand = tree.add("handoff", begun, handed or at, parent or tree.root, at=about, attributes=shared)
        if handed:
            tree.add("transfer", handed, at, hand.span_id.hex(), at=about, attributes=shared)
        else:
            hand.status.code = Status.STATUS_CODE_ERROR
        self._prefill = None

    def _ended(self, at: float, why: str) -> None:
        """The attempt ends. `why`: it broke."""
        if self._sent is None:
            return
        tree, (begun, about) = self._tree, self._sent
        shared = (*self._about, *_worker(about))
        span = tree.attempt(self._choice, self._number)
        transport = tree.add("transport", begun, at, tree.root, span=span, attributes=shared)
        transport.kind = Span.SPAN_KIND_CLIENT
        parent = transport.span_id.hex()
        last = transport
        if self._accepted:
            self._event(transport, "accepted", self._accepted)
        if self._accepted or self._first:
            last = tree.add("prefill", self._accepted or begun, self._first or at, parent, at=about, attributes=shared)
        if self._first:
            last = tree.add("decode", self._first, at, parent, at=about, attributes=shared)
            self._event(last, "first_token" if not self._why else "resumed", self._first)
        if why:
            self._event(last, "migrated", at, {"dynamo.reason": why})
            for one in (transport, last):
                one.status.code = Status.STATUS_CODE_ERROR
                one.status.message = why
        self._sent = None

    def _event(self, span: Span, name: str, at: float, more: Mapping[str, Any] | None = None) -> None:
        event = span.events.add(time_unix_nano=self._tree.nanos(at), name=name)
        event.attributes.extend(attribute(*one) for one in (more or {}).items())
