"""The actor kernel. It knows nothing of LLMs, messages between processes, or anything else of dynamod."""

from .actor import Actor, control, handle
from .cell import Cell, Context, Drain, Stop, Terminated
from .errors import (
    ActorError,
    ActorUnreachable,
    AskCycle,
    Crashed,
    DeadlineExceeded,
    MailboxFull,
    Normal,
    Reason,
    RestartLimit,
    StreamGap,
    Unreachable,
    WrongMessage,
)
from .ref import Ref
from .restart import Backoff, Policy
from .statistics import ActorStatistics, ChildStatistics, Total
from .stream import Stream, unseen
from .supervisor import Spec, Supervisor
from .system import System

__all__ = [
    "Actor",
    "ActorError",
    "ActorStatistics",
    "ActorUnreachable",
    "AskCycle",
    "Backoff",
    "Cell",
    "ChildStatistics",
    "Context",
    "Crashed",
    "DeadlineExceeded",
    "Drain",
    "MailboxFull",
    "Normal",
    "Policy",
    "Reason",
    "Ref",
    "RestartLimit",
    "Spec",
    "Stop",
    "Stream",
    "StreamGap",
    "Supervisor",
    "System",
    "Terminated",
    "Total",
    "Unreachable",
    "WrongMessage",
    "control",
    "handle",
    "unseen",
]
