"""Certificates that are no longer taken, though they have not expired: the list of an authority (CRL) in a file."""

import contextlib
import logging
import ssl
from pathlib import Path

from dynamod.message.errors import UserError

log = logging.getLogger("dynamod.transport")

UNABLE, NOT_YET, EXPIRED, REVOKED = 3, 11, 12, 23
"""Codes of OpenSSL: no list of this authority; its list does not hold yet; has expired; has the certificate."""
CODES = (UNABLE, NOT_YET, EXPIRED, REVOKED)


class Revocations:
    """The list in `file`, for the contexts of `apply`. `variable` names it in errors.

    A list that replaces the file is read before the next connection. It counts from then on if it was made later.
    """

    def __init__(self, file: Path, variable: str) -> None:
        self._file, self._variable = file, variable
        self._contexts: list[ssl.SSLContext] = []
        self._read = self._mark()  # of the file that was read last

    def apply(self, *contexts: ssl.SSLContext) -> None:
        """Refuse certificates of the list at these contexts. Raises UserError."""
        for context in contexts:
            self._load(context)
            context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
            if context.protocol == ssl.PROTOCOL_TLS_SERVER:  # who resumes a session shows no certificate again
                context.options |= ssl.OP_NO_TICKET
                context.num_tickets = 0
            self._contexts.append(context)

    def refresh(self) -> None:
        """Read the file again where it has changed. A file of no use changes nothing, and the log says so."""
        mark = self._mark()
        if mark == self._read or mark is None:
            return
        self._read = mark
        try:
            for context in self._contexts:
                self._load(context)
        except UserError as error:
            log.error("the list before stays: %s", error.line())
        else:
            log.info("read the list of revoked certificates %s", self._file)

    def _mark(self) -> tuple[int, int, int] | None:
        with contextlib.suppress(OSError):
            status = self._file.stat()
            return status.st_mtime_ns, status.st_size, status.st_ino
        return None

    def _load(self, context: ssl.SSLContext) -> None:
        alone = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            alone.load_verify_locations(self._file)
            if alone.cert_store_stats()["x509"]:  # an authority in this file would be trusted
                raise UserError(f"{self._variable}: {self._file} holds certificates", "give a file with CRLs only")
            context.load_verify_locations(self._file)
        except (OSError, ssl.SSLError) as error:
            raise UserError(f"{self._variable}: {self._file} holds no list: {error}", "give a CRL in PEM") from None
