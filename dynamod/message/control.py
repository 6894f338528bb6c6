"""What commands and the daemon agree on: how long commands that end processes may take, and codes of refusals."""

FINISH = 600.0
"""Seconds that open streams get to finish when their process is to end; then they move elsewhere, or are cut."""

LAST_WORKER = "last_worker"
"""Code of the refusal of a change that takes a model's last worker away; `force` does it nevertheless."""


def patience(finish: float | None) -> float:
    """Seconds after which such a command has failed: several processes may take their turns."""
    return 600.0 + 10 * (FINISH if finish is None else finish)


class Ping:
    """Asked of the daemon's actors by the watchdog: a blocked loop or actor does not answer."""
