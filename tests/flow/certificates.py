"""Certificates for tests, made on the spot with the `openssl` program: an authority, and what it signs."""

import ssl
import subprocess
from pathlib import Path

CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
NAMES = "subjectAltName=DNS:localhost,IP:127.0.0.1"


def openssl(*words: str | Path) -> None:
    done = subprocess.run(["openssl", *map(str, words)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


class Authority:
    """`made("server")` has server.pem and server.key signed by it."""

    def __init__(self, directory: Path, name: str = "ca") -> None:
        self.directory = directory
        self.certificate = directory / f"{name}.pem"
        self._key = directory / f"{name}.key"
        files = ("-keyout", self._key, "-out", self.certificate)
        openssl("req", "-x509", *CURVE, *files, "-days", "2", "-subj", f"/CN=test {name}")

    def made(self, name: str, subject: str = "localhost") -> tuple[Path, Path]:
        certificate, key = self.directory / f"{name}.pem", self.directory / f"{name}.key"
        request, extra = self.directory / f"{name}.csr", self.directory / f"{name}.ext"
        openssl("req", "-new", *CURVE, "-keyout", key, "-out", request, "-subj", f"/CN={subject}")
        extra.write_text(NAMES + "\n")
        signer = ("-CA", self.certificate, "-CAkey", self._key, "-CAcreateserial", "-days", "2", "-extfile", extra)
        openssl("x509", "-req", "-in", request, "-out", certificate, *signer)
        key.chmod(0o600)
        return certificate, key

    def trusting(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.certificate)
