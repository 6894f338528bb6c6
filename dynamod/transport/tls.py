"""TLS between nodes for what goes neither over NATS nor over etcd: certificates that both ends show."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from dynamod.message.errors import UserError
from dynamod.message.tls import TlsFiles, load_authorities, load_own, server_context

from .credentials import readable_file

CA, CERT, KEY = "DYN_TCP_TLS_CA_CERT_PATH", "DYN_TCP_TLS_CERT_PATH", "DYN_TCP_TLS_KEY_PATH"
SERVER_NAME = "DYN_TCP_TLS_SERVER_NAME"
PEER_TLS = (CA, CERT, KEY, SERVER_NAME)


@dataclass(frozen=True, slots=True)
class PeerTls:
    """Files with which a node shows itself to others, and what it trusts.

    `name`: that certificates of other nodes must have; empty: the address that the node is reached at.
    """

    ca: Path
    cert: Path
    key: Path
    name: str = ""

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Self | None:
        """Read the variables of PEER_TLS; None when none of the files is set. Raises UserError that names the variable.

        NVIDIA Dynamo's variables. A certificate is shown by both ends, so all three files are needed.
        """
        files = {name: readable_file(environ, name) for name in (CA, CERT, KEY)}
        ca, cert, key = files.values()
        if ca is None or cert is None or key is None:
            missing = [name for name, file in files.items() if file is None]
            if len(missing) == len(files):
                return None
            hint = "nodes show certificates to each other: set all three, or none"
            raise UserError(f"{' and '.join(missing)} is not set", hint)
        found = cls(ca.absolute(), cert.absolute(), key.absolute(), environ.get(SERVER_NAME, ""))
        found.client()  # wrong files are an error now
        return found

    def server(self) -> ssl.SSLContext:
        """What connections of other nodes are accepted with. Raises UserError."""
        return server_context(TlsFiles(str(self.cert), str(self.key), str(self.ca)))

    def client(self) -> ssl.SSLContext:
        """What other nodes are connected to with. Raises UserError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        load_own(context, str(self.cert), str(self.key))
        load_authorities(context, str(self.ca))
        return context


def plain(error: Exception) -> str:
    """What is wrong with a certificate, and what to do, in one line; else the error."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate of the other node is not accepted: {error.verify_message}; check {CA} and its {CERT}"
    if isinstance(error, ssl.SSLError):
        return f"no TLS connection: {error.reason or error}; check {CA}, {CERT} and {KEY} of both nodes"
    return str(error)
