"""Certificates of a TLS listener: files to an SSLContext, and again when they have changed.

A connection keeps the context that it began with; those that come after a reload get the new one. TLS 1.2 is the
oldest version that is spoken, with ciphers that keep old traffic secret should the key be lost later.
"""

import ssl
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from smbroker.model.errors import UsageError

CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"  # of TLS 1.2; those of 1.3 are all good
TICKETS = 1  # each is bytes and work for every connection; one is enough to come back with
BEGIN_CERTIFICATE, BEGIN_KEY = b"-----BEGIN CERTIFICATE-----", b"PRIVATE KEY-----"


@dataclass(frozen=True, slots=True)
class Files:
    certificate: str  # PEM: the listener's own first, then those between it and the root
    key: str = ""  # PEM, not encrypted; empty: in the file of the certificate
    client_ca: str = ""  # PEM: who may sign clients' certificates; empty: clients are not asked for one
    require_client: bool = True  # with a client_ca: clients without a certificate are refused
    ciphers: str = ""  # of TLS 1.2, as OpenSSL writes them; empty: CIPHERS


class Certificates:
    def __init__(self, files: Files) -> None:
        self.files = files
        self.context = _context(files)

    def read_again(self) -> None:
        """Raises UsageError, and then goes on with what it has."""
        self.context = _context(self.files)

    @property
    def key_is_open(self) -> bool:
        """Whether anyone on this machine may read the key."""
        return bool(Path(self.files.key or self.files.certificate).stat().st_mode & (stat.S_IROTH | stat.S_IWOTH))


def _context(files: Files) -> ssl.SSLContext:
    key = files.key or files.certificate
    _check("tls.certificate", files.certificate, BEGIN_CERTIFICATE, "certificate")
    _check("tls.key", key, BEGIN_KEY, "private key")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE | ssl.OP_NO_COMPRESSION
    context.num_tickets = TICKETS
    try:
        context.set_ciphers(files.ciphers or CIPHERS)
    except ssl.SSLError as error:
        raise UsageError("tls", f"tls.ciphers: OpenSSL knows none of {files.ciphers!r}") from error
    try:
        context.load_cert_chain(files.certificate, key, _no_password)
    except (ssl.SSLError, OSError) as error:
        raise UsageError("tls", _what_is_wrong(files.certificate, key, error)) from error
    if files.client_ca:
        _check("tls.client_ca", files.client_ca, BEGIN_CERTIFICATE, "certificate")
        try:
            context.load_verify_locations(files.client_ca)
        except (ssl.SSLError, OSError) as error:
            raise UsageError("tls", f"tls.client_ca: {files.client_ca}: not a list of certificates in PEM") from error
        context.verify_mode = ssl.CERT_REQUIRED if files.require_client else ssl.CERT_OPTIONAL
    return context


def _check(setting: str, name: str, beginning: bytes, what: str) -> None:
    if not name:
        raise UsageError("tls", f"{setting}: a listener with +tls needs a file with a {what}")
    try:
        text = Path(name).read_bytes()
    except OSError as error:
        raise UsageError("tls", f"{setting}: {name}: {error.strerror}") from error
    if beginning not in text:
        raise UsageError("tls", f"{setting}: {name} holds no {what} in PEM (a line with {beginning.decode()})")


def _no_password() -> NoReturn:
    raise UsageError("tls", "the key is encrypted; the broker has nobody to ask for its password: give one that is not")


def _what_is_wrong(certificate: str, key: str, error: Exception) -> str:
    reason = getattr(error, "reason", "") or ""
    if reason == "KEY_VALUES_MISMATCH":
        return f"tls.key: {key} is not the key of {certificate}"
    detail = reason.replace("_", " ").lower() or "not valid PEM"
    return f"tls.certificate: cannot use {certificate} with the key {key}: {detail}"
