"""The requests that are open in an engine of another project."""

import contextlib
from collections.abc import Iterator

from dynamod.transport.base import Reply


class OpenRequests:
    """`count`: of all requests, prompts for other engines too. `answers`: tokens of the prompt of each answer."""

    def __init__(self) -> None:
        self.count = 0
        self.answers: dict[Reply, int] = {}

    @contextlib.contextmanager
    def one(self) -> Iterator[None]:
        """Count a request during the block."""
        self.count += 1
        try:
            yield
        finally:
            self.count -= 1

    def lengths(self) -> tuple[list[int], list[int]] | None:
        """Tokens of each prompt that has no token yet, oldest first, and KV tokens of each answer that has begun.

        None: the engine has requests alongside the ones that are answered here.
        """
        if self.count != len(self.answers):
            return None
        answers = self.answers.items()
        return [count for reply, count in answers if not reply.sent], [
            count + reply.sent for reply, count in answers if reply.sent
        ]
