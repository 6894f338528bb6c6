"""For clients that name the worker themselves."""

from typing import ClassVar

from .round_robin import RoundRobin


class Direct(RoundRobin):
    """Requests name their worker (`nvext.backend_instance_id`). The others take turns, with or without a session."""

    soft_sessions: ClassVar[bool] = False
