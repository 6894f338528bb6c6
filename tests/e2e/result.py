"""What has become of a command."""

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Result:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    def mistake(self) -> str:
        """The one line on stderr that a user's mistake is answered with."""
        lines = self.err.strip().splitlines()
        assert self.code != 0
        assert "Traceback" not in self.err + self.out
        assert len(lines) == 1, self.err
        assert lines[0].startswith("error: "), self.err
        return lines[0]
