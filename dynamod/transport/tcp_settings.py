"""Where the processes of a node take requests over TCP, and what they show each other, from environment variables."""

import ipaddress
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from dynamod.message.errors import UserError

from .credentials import readable_file, tls_files
from .revoked import CODES, Revocations
from .tls import CA, CERT, KEY, MODE, REVOKED, mode_of

ADDRESS, LISTEN, PORTS = "DYNAMOD_TCP_ADDRESS", "DYNAMOD_TCP_LISTEN", "DYNAMOD_TCP_PORTS"
VARIABLES = (ADDRESS, LISTEN, PORTS, CA, CERT, KEY, MODE, REVOKED)


class Contexts(NamedTuple):
    """What TLS shows and trusts at both ends. `revocations`: certificates that are no longer taken."""

    server: ssl.SSLContext
    client: ssl.SSLContext
    revocations: Revocations | None = None

    def refresh(self) -> None:
        """Read the list of revoked certificates again where it has changed; before each connection."""
        if self.revocations is not None:
            self.revocations.refresh()


@dataclass(frozen=True, slots=True, kw_only=True)
class TcpSettings:
    """`address`: at which other nodes reach this one. `listen`: the address that is bound. `ports`: the first free one.

    `ca`, `cert`, `key`: PEM files, all or none. A certificate of `ca` proves a peer; its names do not count, since
    the addresses of pods change.
    """

    address: str
    listen: str
    ports: Sequence[int] = (0,)
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    accept: bool = False
    revoked: Path | None = None

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> "TcpSettings | None":
        """Read `VARIABLES`; None when DYNAMOD_TCP_ADDRESS is not set. Raises UserError that names the variable."""
        address = environ.get(ADDRESS, "").strip()
        if not address:
            return None
        listen = environ.get(LISTEN, "").strip() or address
        for name, text in ((ADDRESS, address), (LISTEN, listen)):
            try:
                here = ipaddress.ip_address(text)
            except ValueError:
                raise UserError(f"{name} is {text!r}, which is no IP address", "write 10.0.0.5 or fd00::5") from None
            if name == ADDRESS and here.is_unspecified:
                raise UserError(f"{ADDRESS} is {text}, which reaches nothing", f"all addresses belong into {LISTEN}")
        ca, cert, key = tls_files(environ, CA, CERT, KEY)
        if bool(ca) != bool(cert):
            missing = CERT if ca else CA
            raise UserError(f"{missing} is not set", "both ends show a certificate: set all three files or none")
        mode, revoked = mode_of(environ), readable_file(environ, REVOKED) if cert else None
        ports = _ports(environ.get(PORTS, ""))
        files = {"ca": ca, "cert": cert, "key": key, "accept": mode == "accept", "revoked": revoked}
        found = cls(address=address, listen=listen, ports=ports, **files)  # type: ignore[arg-type]
        found.contexts()
        return found if mode != "off" else cls(address=address, listen=listen, ports=ports)

    def contexts(self) -> Contexts | None:
        """What TLS connections use; None: there is no TLS. Raises UserError for files that no peer would take."""
        if self.ca is None or self.cert is None or self.key is None:
            return None
        server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        client.check_hostname = False
        for context in (server, client):
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.verify_mode = ssl.CERT_REQUIRED
            try:
                context.load_verify_locations(cafile=self.ca)
            except (OSError, ssl.SSLError) as error:
                raise UserError(f"{CA}: {self.ca} holds no certificate: {error}", "give a PEM file") from None
            try:
                context.load_cert_chain(self.cert, self.key, password=_no_password)
            except (OSError, ssl.SSLError, ValueError) as error:
                raise UserError(f"{CERT}, {KEY}: {self.cert} and {self.key}: {error}", "give a pair") from None
        revocations = Revocations(self.revoked, REVOKED) if self.revoked is not None else None
        if revocations is not None:
            revocations.apply(server, client)
        _greet(server, client, str(self.cert))
        return Contexts(server, client, revocations)


def _no_password() -> str:
    raise ValueError("the key has a password")


def _greet(server: ssl.SSLContext, client: ssl.SSLContext, cert: str) -> None:
    """Let both ends greet each other in memory: a certificate that has run out is an error of the start."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(back, there, server_side=False), server.wrap_bio(there, back, server_side=True)]
    for _ in range(3):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError as error:
                hint = f"give a certificate that is valid now and signed by {CA}"
                if error.verify_code in CODES:
                    hint = f"give a certificate that is not revoked, and in {REVOKED} a list of {CA} that is valid now"
                raise UserError(f"{CERT}: no other node takes {cert}: {error.verify_message}", hint) from None
            except ssl.SSLError as error:
                raise UserError(f"{CERT}: no other node takes {cert}: {error.reason}", "see the three files") from None


def _ports(text: str) -> Sequence[int]:
    """The ports of `FIRST-LAST` or of one port; any free one where nothing is given. Raises UserError."""
    if not text.strip():
        return (0,)
    first, _, last = text.strip().partition("-")
    if first.isdecimal() and (last or first).isdecimal() and 1 <= int(first) <= int(last or first) <= 65535:
        return range(int(first), int(last or first) + 1)
    raise UserError(f"{PORTS} is {text!r}", "write a range like 7000-7099, between 1 and 65535")
