"""TLS between nodes for what goes neither over NATS nor over etcd: certificates that both ends show."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self, get_args

from dynamod.message.errors import UserError
from dynamod.message.tls import TlsFiles, load_authorities, load_own, server_context

from .credentials import readable_file
from .revoked import CODES, Revocations

CA, CERT, KEY = "DYN_TCP_TLS_CA_CERT_PATH", "DYN_TCP_TLS_CERT_PATH", "DYN_TCP_TLS_KEY_PATH"
SERVER_NAME = "DYN_TCP_TLS_SERVER_NAME"
MODE, REVOKED = "DYNAMOD_TCP_TLS", "DYNAMOD_TCP_TLS_CRL"
PEER_TLS = (CA, CERT, KEY, SERVER_NAME, MODE, REVOKED)
Mode = Literal["off", "accept", "require"]


def mode_of(environ: Mapping[str, str]) -> Mode:
    """Whether nodes speak TLS to each other: `require` with certificates, else `off`, unless MODE says.

    `accept`: connections come with TLS or without, and go with TLS where the other node takes it. Raises UserError.
    """
    certificates = bool(environ.get(CERT))
    text = environ.get(MODE, "").strip() or ("require" if certificates else "off")
    for known in get_args(Mode):
        if text == known:
            if known != "off" and not certificates:
                raise UserError(f"{MODE}={known} needs certificates", f"set {CA}, {CERT} and {KEY}")
            return known  # type: ignore[no-any-return]
    raise UserError(f"{MODE} is {text!r}", f"one of: {', '.join(get_args(Mode))}")


@dataclass(frozen=True, slots=True)
class PeerTls:
    """Files with which a node shows itself to others, and what it trusts.

    `name`: that certificates of other nodes must have; empty: the address that the node is reached at. `accept`: what
    comes without TLS is taken. `revoked`: the list of certificates that are no longer taken.
    """

    ca: Path
    cert: Path
    key: Path
    name: str = ""
    accept: bool = False
    revoked: Path | None = None

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Self | None:
        """Read the variables of PEER_TLS; None without files, and in the mode `off`. Raises UserError with the name.

        NVIDIA Dynamo's variables. A certificate is shown by both ends, so all three files are needed.
        """
        files = {name: readable_file(environ, name) for name in (CA, CERT, KEY)}
        ca, cert, key = files.values()
        if ca is None or cert is None or key is None:
            missing = [name for name, file in files.items() if file is None]
            if len(missing) == len(files):
                mode_of(environ)
                return None
            hint = "nodes show certificates to each other: set all three, or none"
            raise UserError(f"{' and '.join(missing)} is not set", hint)
        mode, revoked = mode_of(environ), readable_file(environ, REVOKED)
        revoked = revoked.absolute() if revoked is not None else None
        name = environ.get(SERVER_NAME, "")
        found = cls(ca.absolute(), cert.absolute(), key.absolute(), name, mode == "accept", revoked)
        found.client()  # wrong files are an error now
        return found if mode != "off" else None

    def revocations(self) -> Revocations | None:
        """The list of revoked certificates, where there is one."""
        return Revocations(self.revoked, REVOKED) if self.revoked is not None else None

    def server(self, revocations: Revocations | None = None) -> ssl.SSLContext:
        """What connections of other nodes are accepted with. Raises UserError."""
        context = server_context(TlsFiles(str(self.cert), str(self.key), str(self.ca)))
        if revocations is not None:
            revocations.apply(context)
        return context

    def client(self) -> ssl.SSLContext:
        """What other nodes are connected to with. Raises UserError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        load_own(context, str(self.cert), str(self.key))
        load_authorities(context, str(self.ca))
        if (revocations := self.revocations()) is not None:
            revocations.apply(context)
        return context


def explained(error: Exception) -> str:
    """What is wrong with a certificate, and what to do, in one line; else the error."""
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in CODES:
            return f"the certificate of the other node is not accepted: {error.verify_message}; check {REVOKED}"
        return f"the certificate of the other node is not accepted: {error.verify_message}; check {CA} and its {CERT}"
    if isinstance(error, ssl.SSLError):
        return f"no TLS connection: {error.reason or error}; check {CA}, {CERT} and {KEY} of both nodes"
    return str(error)
