"""Passwords, tokens and keys that clients show: none of them appears anywhere, whatever becomes of the request."""

import socket
import subprocess
from base64 import b64encode
from contextlib import suppress
from pathlib import Path

from flow.house import BIN, Broker, Tcp
from flow.wires import config, ended
from smbroker.dialects.mqtt.packets import Connect
from web.calls import call, get

SECRET = "correct-horse-battery-staple"
BASIC = b64encode(f"ann:{SECRET}".encode()).decode()


def spoken(broker: Broker, kind: str, data: bytes) -> None:
    """All that comes of it has come when the broker closes."""
    client = Tcp(broker.ports[kind])
    with suppress(ConnectionError):
        client.send(data)
        client.sock.shutdown(socket.SHUT_WR)
    assert ended(client)
    client.sock.close()


def test_no_secret_is_written_anywhere(tmp_path: Path) -> None:
    with Broker(*config(tmp_path, ""), kinds=("mqtt", "tcp", "web", "udp"), data=tmp_path / "data") as broker:
        for version in (4, 5):
            good = Connect(version, f"c{version}", True, user="ann", password=SECRET.encode()).encode()
            for data in (good, good + b"\xff" * 5, good + good, good[:-3], good[:1] + b"\x7f" + good[2:]):
                spoken(broker, "mqtt", data)
                spoken(broker, "tcp", data)
        for headers in ({"Authorization": f"Basic {BASIC}"}, {"Authorization": f"Bearer {SECRET}"}):
            for method, path in (("GET", "/v1/stats"), ("GET", "/nowhere"), ("POST", "/v1/publish/$stats/x")):
                call(broker, method, path, b"x" if method == "POST" else b"", **headers)
        token = (broker.data / "pipeline.token").read_text().strip()
        shown = [get(broker, path).body for path in ("/v1/stats", "/v1/clients", "/metrics", "/v1/topics", "/health")]
        broker.stop()
        said = "\n".join(broker.out.all + broker.err.all).encode()
        kept = subprocess.run(
            [BIN / "smb", "log", "cat", "--data", broker.data], capture_output=True, check=True
        ).stdout
        for text in (said, kept, *shown):
            for secret in (SECRET, BASIC, token):
                assert secret.encode() not in text
        assert (broker.data / "pipeline.token").stat().st_mode & 0o077 == 0
