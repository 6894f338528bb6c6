"""A private authority: makes certificates for servers and nodes, by the package `cryptography` of the extra `infra`."""

import ipaddress
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple, Self

from dynamod.message.errors import UserError
from dynamod.message.install import extra_hint

try:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        load_pem_private_key,
    )
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError:
    hint = extra_hint("infra")
    raise UserError("certificates are made by the package cryptography, which is not installed", hint) from None

AUTHORITY_DAYS = 3650
DAYS = 825
"""Days for which the certificates of servers and nodes hold."""
RENEW_DAYS = 30
"""Certificates that end sooner are made anew by the next `up`."""
ORGANIZATION = "dynamod"
_SKEW = timedelta(minutes=10)
"""Certificates hold so long before they were made: clocks of nodes differ."""


class Pair(NamedTuple):
    """A certificate and its key, as PEM."""

    cert: bytes
    key: bytes


@dataclass(frozen=True)
class Authority:
    """The certificate of an authority and the key that it signs with."""

    cert: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def make(cls, name: str) -> Self:
        """A new authority."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _subject(name)
        usage = _usage(signs=True)
        builder = (
            _begun(subject, subject, key.public_key(), datetime.now(UTC) - _SKEW, AUTHORITY_DAYS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        )
        return cls(builder.sign(key, SHA256()), key)

    @classmethod
    def load(cls, cert: Path, key: Path) -> Self:
        """The authority of two files. Raises UserError that names the file."""
        found = read_certificate(cert)
        try:
            secret = load_pem_private_key(key.read_bytes(), None)
        except OSError as error:
            raise UserError(f"{key}: {error.strerror}", "put the key of the authority back") from None
        except (ValueError, TypeError) as error:
            raise UserError(f"{key} holds no private key without a password: {error}", "put it back") from None
        if not isinstance(secret, ec.EllipticCurvePrivateKey) or secret.public_key() != found.public_key():
            raise UserError(f"{key} is not the key of {cert}", "put the two files back that belong together")
        if found.not_valid_after_utc <= datetime.now(UTC):
            raise UserError(f"the authority {cert} has expired", "remove its folder and run up --secure again")
        return cls(found, secret)

    @property
    def pair(self) -> Pair:
        """Both as PEM."""
        return Pair(_pem(self.cert), _key_pem(self.key))

    def issue(
        self, name: str, hosts: Iterable[str], *, days: float = DAYS, start: datetime | None = None, client: bool = True
    ) -> Pair:
        """A certificate for a server at `hosts` (names and addresses), and for a client called `name`.

        `start`: when it begins to hold; None: now. `client`: False for a server alone.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        names = [_general(host) for host in dict.fromkeys(hosts)]
        begins = start or datetime.now(UTC) - _SKEW
        builder = (
            _begun(_subject(name), self.cert.subject, key.public_key(), begins, days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(uses if client else uses[:1]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False)
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return Pair(_pem(builder.sign(self.key, SHA256())), _key_pem(key))

    def revoke(self, certs: Iterable[x509.Certificate], before: bytes = b"", *, now: datetime | None = None) -> bytes:
        """The list of certificates that are no longer taken, as PEM. `before`: the list that the new one replaces.

        Raises UserError for a certificate of another authority, and for a list that cannot be read.
        """
        now = now or datetime.now(UTC)
        builder = x509.CertificateRevocationListBuilder().issuer_name(self.cert.subject)
        # a list that was made in the same second does not replace another one
        builder = builder.last_update(now - _SKEW).next_update(now + timedelta(days=AUTHORITY_DAYS))
        entries = {entry.serial_number: entry for entry in self._listed(before)}
        for cert in certs:
            try:
                cert.verify_directly_issued_by(self.cert)
            except (ValueError, TypeError, InvalidSignature):
                name = cert.subject.rfc4514_string()
                raise UserError(f"the certificate {name} is of another authority", "revoke it there") from None
            entry = x509.RevokedCertificateBuilder().serial_number(cert.serial_number).revocation_date(now)
            entries.setdefault(cert.serial_number, entry.build())
        for one in entries.values():
            builder = builder.add_revoked_certificate(one)
        identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        builder = builder.add_extension(identifier, critical=False)
        return builder.sign(self.key, SHA256()).public_bytes(Encoding.PEM)

    def _listed(self, before: bytes) -> Iterable[x509.RevokedCertificate]:
        if not before:
            return ()
        try:
            found = x509.load_pem_x509_crl(before)
        except ValueError as error:
            raise UserError(f"this is no list of revoked certificates: {error}", "put it back") from None
        if not found.is_signature_valid(self.key.public_key()):
            raise UserError("the list of revoked certificates is of another authority", "put the right one back")
        return found

    def made(self, file: Path, hosts: Sequence[str] = ()) -> bool:
        """Whether a file has a certificate of this authority for `hosts` that holds for some time."""
        try:
            found = read_certificate(file)
            found.verify_directly_issued_by(self.cert)
        except (UserError, ValueError, TypeError, InvalidSignature):
            return False
        lasts = found.not_valid_after_utc - datetime.now(UTC) > timedelta(days=RENEW_DAYS)
        return lasts and {_general(host) for host in hosts} <= set(_names(found))


def read_certificate(file: Path) -> x509.Certificate:
    """The certificate in a PEM file. Raises UserError."""
    try:
        return x509.load_pem_x509_certificate(file.read_bytes())
    except OSError as error:
        raise UserError(f"{file}: {error.strerror}", "put the certificate back") from None
    except ValueError as error:
        raise UserError(f"{file} holds no certificate: {error}", "put it back") from None


def write(file: Path, content: bytes, *, mode: int = 0o600, new: bool = False) -> None:
    """Write a file with this mode, whole or not at all. `new`: it may not be there. Raises UserError."""
    beside = file.with_name(f".{file.name}.new")
    try:
        beside.unlink(missing_ok=True)
        with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as out:
            out.write(content)
        if new:
            os.link(beside, file)
            beside.unlink()
        else:
            beside.replace(file)
    except FileExistsError:
        raise UserError(f"{file} is there already", "move it away, or choose another folder") from None
    except OSError as error:
        raise UserError(f"{file}: {error.strerror}", "choose a folder that you may write") from None


def _subject(name: str) -> x509.Name:
    attributes = (NameOID.ORGANIZATION_NAME, ORGANIZATION), (NameOID.COMMON_NAME, name)
    return x509.Name([x509.NameAttribute(kind, text) for kind, text in attributes if text])


def _begun(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, begins: datetime, days: float
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(begins + timedelta(days=days))
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _names(cert: x509.Certificate) -> Iterable[x509.GeneralName]:
    try:
        return cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()


def _pem(cert: x509.Certificate) -> bytes:
    return cert.public_bytes(Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
