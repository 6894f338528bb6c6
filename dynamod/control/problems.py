"""What `dynamo status` and `dynamo doctor` report: everything that does not serve as it should, and what to do."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from dynamod.discovery.records import decoded
from dynamod.message.discovery import Instance
from dynamod.message.protocol import PROTOCOL, works_with
from dynamod.message.rows import Row
from dynamod.observe.logstore import LogStore

from .answers import Problem

_STATES = {
    "Fatal": ("has failed for good", "correct the cause, then dynamo restart {component}"),
    "Restarting": ("has ended and is started again", "see dynamo logs {component}"),
    "Silent": ("is unresponsive", "it is killed and restarted on its own (kill_timeout); dynamo inspect shows where"),
}


def of_rows(rows: Iterable[Row]) -> Iterator[Problem]:
    """Processes that do not serve; `rows` are those of `ps`. Graphs that could not start have the state Fatal too."""
    for row in rows:
        if row.state in _STATES:
            what, mend = _STATES[row.state]
            why = f": {row.last_error}" if row.last_error else ""
            yield Problem(f"{row.process} {what}{why}", mend.format(component=row.component))


def of_models(answers: Mapping[str, object]) -> Iterator[Problem]:
    """Models that ingress processes cannot load. `answers`: runtime.statistics.ProcessStatistics, or why there are
    none, by process.
    """
    for process, answer in answers.items():
        if not isinstance(answer, Mapping):
            yield Problem(f"{process} does not answer the daemon", f"see dynamo logs {process}")
            continue
        for model, why in answer["unloaded"].items():
            yield Problem(f"{process} cannot serve model {model}: {why}", "correct its files; it is tried again")


def loads(answer: object) -> bool:
    """Whether an ingress process loads a model now, or cannot load it; `answer` as for `of_models`."""
    return isinstance(answer, Mapping) and bool(answer.get("loading") or answer["unloaded"])


def of_graphs(names: Iterable[str]) -> Iterator[Problem]:
    """Graphs whose processes are all Ready, while no model can be asked at their ingress."""
    for name in names:
        found = f"graph {name} serves no model: no worker that could answer is there"
        yield Problem(found, "start a worker, or switch one to another role: dynamo ps shows workers and roles")


def of_logs(store: LogStore) -> Iterator[Problem]:
    """Log files that cannot be written."""
    if store.failure:
        yield Problem(f"log files in {store.folder} cannot be written: {store.failure}", "make room, or correct rights")


def of_kept(trouble: str) -> Iterator[Problem]:
    """A file of handed-over graphs that cannot be used."""
    if trouble:
        yield Problem(trouble, "move the file away or install the release that wrote it, then restart the daemon")


def of_nodes(items: Iterable[tuple[str, bytes]]) -> Iterator[Problem]:
    """Workers of other releases that this node cannot ask; `items`: keys and values of the registry's instances."""
    for key, value in items:
        one = decoded(key, value, Instance, any_release=True)
        if one is not None and not works_with(one.protocol, one.since):
            subject = f"{one.process or one.path} on {one.node or 'an unknown node'}"
            text = f"{subject} speaks protocol {one.protocol} and works with protocols from {one.since} on"
            mend = "upgrade this node" if one.since > PROTOCOL else f"upgrade {one.node or 'that node'}"
            yield Problem(f"{text}; this node speaks {PROTOCOL} and asks that worker nothing", mend)


def of_cluster(facts: Mapping[str, Any] | None) -> Iterator[Problem]:
    """A cluster that the node has lost, by Node.cluster_facts()."""
    if facts is None:
        return
    store = f"etcd at {facts['etcd']}" if facts["etcd"] else facts.get("store", "")
    if store and not facts["connected"]:
        yield Problem(f"{store} cannot be reached: {facts['error']}", "start it; this node joins again")
    if facts["namesakes"]:
        yield Problem("another daemon has the name of this node", "set DYNAMOD_NODE on one of them")
