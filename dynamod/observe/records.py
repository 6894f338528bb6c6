"""What a process knows at the end of a request: one record for all readers.

Log lines and metrics have fields of their own, which cost less. Records are made only where a feature reads them
(`extension.feature.Feature.records`). Times are Unix seconds, durations milliseconds.
"""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from .timeline import Timeline


class WorkerPlace(msgspec.Struct, frozen=True, omit_defaults=True):
    """A worker that took a choice of a request. `prefill`: the worker computed only the prompt.

    `at_ms`: from the arrival of the request. `instance`: the instance id, as /health lists it. `process`, `node`: as
    the worker published them. `choice`: of several choices, the number.
    """

    instance: int
    process: str = ""
    node: str = ""
    at_ms: float = 0.0
    choice: int = 0
    prefill: bool = False


class PromptTokens(msgspec.Struct, frozen=True):
    """One prompt. `ids`: packed (`message.tokens`). `blocks`: sequence hashes of its full blocks; may be empty.

    `block_size`, `salt`: of the model, for further hashes.
    """

    ids: bytes
    blocks: Sequence[int]
    block_size: int
    salt: str


class ToolCall(msgspec.Struct, frozen=True):
    """One call of a tool. `index`: its number within the choice."""

    index: int
    id: str
    name: str


class ChoiceEnd(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a choice ended. `finish`: empty where it was cut off. `ids`: of its answer, as far as it came."""

    index: int
    finish: str
    tokens: int
    calls: tuple[ToolCall, ...] = ()
    ids: Sequence[int] = ()


class Facts:
    """What is noted of a request while it is served, where a reader wants tokens.

    `prompts`: one per prompt. `answers`: by choice, a list that gets the ids of the answer. Both are empty for engines
    that take text. `samples`: choices per prompt.
    """

    __slots__ = ("_calls", "answers", "prompts", "samples")

    def __init__(self) -> None:
        self.prompts: Sequence[PromptTokens] = ()
        self.answers: Sequence[Sequence[int]] = ()
        self.samples = 1
        self._calls: dict[int, dict[int, list[str]]] = {}  # id and name, by choice and by number of the call

    def said(self, choice: int, parts: Sequence[Mapping[str, Any]]) -> None:
        """Parts of an OpenAI chunk; calls of tools are noted, without arguments."""
        with contextlib.suppress(TypeError, ValueError, AttributeError):  # the engine's nonsense ends no answer here
            self._note(choice, parts)

    def _note(self, choice: int, parts: Sequence[Mapping[str, Any]]) -> None:
        for part in parts:
            for call in (part.get("delta") or {}).get("tool_calls") or ():
                calls = self._calls.setdefault(choice, {})
                number = call.get("index")
                known = calls.setdefault(len(calls) if number is None else int(number), ["", ""])
                function = call.get("function") or {}
                known[0], known[1] = call.get("id") or known[0], function.get("name") or known[1]

    def calls(self, choice: int) -> tuple[ToolCall, ...]:
        """The calls of a choice."""
        return tuple([ToolCall(index, *known) for index, known in self._calls.get(choice, {}).items()])


class RequestRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One HTTP request, or one line of a batch, which has no `client`.

    `time`: of the arrival. `queue_ms`: from then until the first worker took it. `first_ms`: until the first token.
    `duration_ms`: until the end of the answer; all three None or 0 where it never came that far. `client`: address of
    the client. `key`: name of the client's key, never the key itself; empty: the request had none. `endpoint`: its
    label in the metrics; empty: the route asks no engine. `error`: code of the error; empty: no error. `finish`: why
    the answer ended, `gone` where the client left. `cached_tokens`: None: no engine has said it. `workers`: in the
    order of time. `migrations`: how often a choice continued at another worker. `notes`: what features say of the
    request. `node`, `process`: which served it. `request_body`, `response_body`: what the client sent and got, where a
    reader wants bodies; None: there is none, or it was larger than every reader takes. `headers`: those of the request
    that readers want, by their names in small letters. `prompts`, `choices`: where a reader wants tokens; `samples`:
    choices per prompt. `timeline`: when it came where.
    """

    id: str
    time: float
    duration_ms: float
    queue_ms: float | None = None
    first_ms: float | None = None
    client: str = ""
    key: str = ""
    method: str = ""
    path: str = ""
    endpoint: str = ""
    model: str = ""
    stream: bool = False
    status: int
    error: str = ""
    finish: str = ""
    prompt_tokens: int = 0
    cached_tokens: int | None = None
    completion_tokens: int = 0
    workers: tuple[WorkerPlace, ...] = ()
    migrations: int = 0
    notes: Mapping[str, str] = {}
    node: str = ""
    process: str = ""
    request_body: bytes | None = None
    response_body: bytes | None = None
    headers: Mapping[str, str] = {}
    prompts: Sequence[PromptTokens] = ()
    choices: Sequence[ChoiceEnd] = ()
    samples: int = 1
    timeline: Timeline | None = None
