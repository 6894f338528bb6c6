"""Talk to systemd (sd_notify(3)) without its library. Without systemd nothing happens."""

import logging
import os
import socket
import time
from collections.abc import Mapping

log = logging.getLogger("dynamod.daemon")


class Notifier:
    """Tells the service manager about us. Never raises and never waits; a broken socket is logged once."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        path = environ.get("NOTIFY_SOCKET", "")
        self._address = f"\0{path[1:]}" if path.startswith("@") else path
        self._socket: socket.socket | None = None
        self._failed = False
        self.watchdog_interval = _watchdog(environ)
        """Seconds between two `watchdog()` calls: half of what systemd allows. None: there is no watchdog."""

    def ready(self, status: str = "") -> None:
        """Start-up or reload is complete. `status`: the one line that `systemctl status` shows."""
        self._send("READY=1", *([f"STATUS={' '.join(status.split())}"] if status else []))

    def reloading(self) -> None:
        """A reload begins; `ready` ends it."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def stopping(self) -> None:
        """Shutdown begins."""
        self._send("STOPPING=1")

    def watchdog(self) -> None:
        """We live. To be called from a path that stops when the daemon is stuck."""
        self._send("WATCHDOG=1")

    def close(self) -> None:
        """Close our end; a later call opens it again."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        try:
            if self._socket is None:
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
                self._socket.setblocking(False)
            self._socket.sendto("\n".join(lines).encode("utf-8", "replace"), self._address)
        except (OSError, ValueError) as error:  # ValueError: a NUL inside the path
            self.close()
            if not self._failed:
                self._failed = True
                log.warning("cannot reach the service manager at NOTIFY_SOCKET: %s", error)
        else:
            self._failed = False


def _watchdog(environ: Mapping[str, str]) -> float | None:
    """Half of WATCHDOG_USEC, in seconds, when it is meant for this process."""
    micros = _number(environ.get("WATCHDOG_USEC", ""))
    pid = environ.get("WATCHDOG_PID", "")
    if micros <= 0 or (pid and _number(pid) != os.getpid()):
        return None
    return micros / 2_000_000


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else -1
