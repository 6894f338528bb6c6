"""What a process knows at the end of a request: one record for all readers.

Log lines and metrics have fields of their own, which cost less. Records are made only where a feature reads them
(`extension.feature.Feature.records`). Times are Unix seconds, durations milliseconds.
"""

from collections.abc import Mapping

import msgspec


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


class RequestRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One HTTP request, or one line of a batch, which has no `client`.

    `time`: of the arrival. `queue_ms`: from then until the first worker took it. `first_ms`: until the first token.
    `duration_ms`: until the end of the answer; all three None or 0 where it never came that far. `client`: address of
    the client. `key`: name of the client's key, never the key itself; empty: the request had none. `endpoint`: its
    label in the metrics; empty: the route asks no engine. `error`: code of the error; empty: no error. `finish`: why
    the answer ended, `gone` where the client left. `cached_tokens`: None: no engine has said it. `workers`: in the
    order of time. `migrations`: how often a choice continued at another worker. `notes`: what features say of the
    request. `node`, `process`: which served it. `request_body`, `response_body`: what the client sent and got, where a
    reader wants bodies; None: there is none, or it was larger than every reader takes.
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
