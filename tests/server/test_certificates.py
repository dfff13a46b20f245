"""Files of certificates: what is wrong with them is said, before anybody connects."""

import subprocess
from pathlib import Path

import pytest

from flow.certificates import Authority
from smbroker.model.errors import UsageError
from smbroker.server.certificates import Certificates, Files
from smbroker.server.config import Config, TlsConfig
from smbroker.server.listeners import Endpoint, bind, endpoint, tls_files


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def files(authority: Authority) -> tuple[Path, Path]:
    return authority.made("server")


def test_files_that_are_wrong_are_named(authority: Authority, files: tuple[Path, Path], tmp_path: Path) -> None:
    certificate, key = map(str, files)
    other = str(authority.made("another")[1])
    locked = str(tmp_path / "locked.key")
    lock = ["openssl", "ec", "-aes256", "-passout", "pass:x", "-in", key, "-out", locked]
    subprocess.run(lock, check=True, capture_output=True)
    cases = [
        (Files(""), "tls.certificate: a listener with +tls needs a file"),
        (Files("/nowhere/x.pem"), "tls.certificate: /nowhere/x.pem: No such file or directory"),
        (Files(str(tmp_path)), f"tls.certificate: {tmp_path}: Is a directory"),
        (Files(key), f"tls.certificate: {key} holds no certificate"),
        (Files(certificate), f"tls.key: {certificate} holds no private key"),
        (Files(certificate, other), f"tls.key: {other} is not the key of {certificate}"),
        (Files(certificate, locked), "the key is encrypted"),
        (Files(certificate, key, key), f"tls.client_ca: {key} holds no certificate"),
        (Files(certificate, key, ciphers="NONE-SUCH"), "tls.ciphers: OpenSSL knows none of 'NONE-SUCH'"),
    ]
    for given, expected in cases:
        with pytest.raises(UsageError) as raised:
            Certificates(given)
        assert expected in raised.value.text


def test_one_file_may_hold_both(files: tuple[Path, Path], tmp_path: Path) -> None:
    both = tmp_path / "both.pem"
    both.write_text("".join(file.read_text() for file in files))
    both.chmod(0o644)
    assert Certificates(Files(str(both))).key_is_open
    both.chmod(0o640)
    assert not Certificates(Files(str(both))).key_is_open


def test_a_listener_may_have_files_of_its_own() -> None:
    settings = TlsConfig(certificate="all.pem", key="all.key", client_ca="ca.pem")
    plain = endpoint("mqtt+tls://127.0.0.1:0")
    assert tls_files(plain, settings) == Files("all.pem", "all.key", "ca.pem")
    text = "mqtt+tls://127.0.0.1:8883?certificate=/a%20b/own.pem&client_ca="
    own = endpoint(text)
    assert own == Endpoint("mqtt", "127.0.0.1", 8883, True, (("certificate", "/a b/own.pem"), ("client_ca", "")))
    assert tls_files(own, settings) == Files("/a b/own.pem", "", "")
    assert endpoint(str(own)) == own


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("udp+tls://127.0.0.1:0", "no TLS over UDP"),
        ("mqtt://127.0.0.1:0?key=x", "files are for listeners with +tls"),
        ("mqtt+tls://127.0.0.1:0?pem=x", "unknown pem; there are certificate, key, client_ca"),
    ],
)
def test_what_cannot_be_is_said(text: str, expected: str) -> None:
    with pytest.raises(UsageError) as raised:
        endpoint(text)
    assert expected in raised.value.text


def test_typed_over_tls_has_no_unprotected_udp(files: tuple[Path, Path]) -> None:
    certificate, key = files
    one = bind(endpoint(f"typed+tls://127.0.0.1:0?certificate={certificate}&key={key}"), Config())
    assert one.stream
    one.stream.close()
    assert one.datagram is None
