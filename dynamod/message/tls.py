"""Certificates of servers: files, and the context that shows the own one and asks clients for theirs."""

import ssl
from typing import NamedTuple

from .errors import UserError


class TlsFiles(NamedTuple):
    """PEM files of a server. `client_ca`: authorities of the certificates that clients must show; empty: none asked."""

    cert: str
    key: str
    client_ca: str = ""


def server_context(files: TlsFiles) -> ssl.SSLContext:
    """What a server accepts connections with. Raises UserError for files of no use."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    load_own(context, files.cert, files.key)
    if files.client_ca:
        load_authorities(context, files.client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def load_own(context: ssl.SSLContext, cert: str, key: str) -> None:
    """Show a certificate in connections. Raises UserError."""
    try:
        context.load_cert_chain(cert, key)
    except ssl.SSLError as error:
        why = f"cannot use the TLS files {cert} and {key}: {error.reason or error}"
        raise UserError(
            why, "give PEM files: a certificate, and the key of this certificate without a password"
        ) from None
    except OSError as error:
        raise UserError(f"cannot use the TLS files {cert} and {key}: {error}", "give files that can be read") from None


def load_authorities(context: ssl.SSLContext, file: str) -> None:
    """Trust the authorities of a file, too. Raises UserError."""
    try:
        context.load_verify_locations(file)
    except ssl.SSLError:
        raise UserError(f"the TLS file {file} holds no certificate", "give a PEM file of authorities") from None
    except OSError as error:
        raise UserError(f"cannot use the TLS file {file}: {error.strerror}", "give a file that can be read") from None
