"""MQTT over TLS beside Mosquitto, in turns: `python bench/tls.py [--rounds N] [--messages N]`.

Needs gcc, OpenSSL's headers (libssl-dev), openssl and mosquitto. A certificate is made on the spot; both servers get
the same one, and agree with the generator on the same cipher, which is printed. Ratios are of medians of one run.
"""

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
LOAD = HERE / "build" / "tls_load"
SMBBROKER = Path(sys.executable).parent / "smbbroker"
MOSQUITTO = shutil.which("mosquitto") or "/usr/sbin/mosquitto"
MOSQUITTO_SETTINGS = """\
listener {port} 127.0.0.1
certfile {directory}/cert.pem
keyfile {directory}/key.pem
allow_anonymous true
max_queued_messages 0
log_type none
user {user}
"""
CASES = (  # name, subscribers, bytes of a record (0: one for each message)
    ("1 to 1", 1, 65_536),
    ("1 to 10", 10, 65_536),
    ("1 to 1, a record for each message", 1, 0),
)
WINDOW = 20_000  # messages
START_LIMIT = 30.0  # seconds


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


def smb(port: int, directory: Path) -> list[str]:
    files = f"?certificate={directory}/cert.pem&key={directory}/key.pem"
    return [str(SMBBROKER), "--quiet", "--no-log", "--listen", f"mqtt+tls://127.0.0.1:{port}{files}"]


def mosquitto(port: int, directory: Path) -> list[str]:
    file = directory / "mosquitto.conf"
    user = os.environ.get("USER", "root")
    file.write_text(MOSQUITTO_SETTINGS.format(port=port, directory=directory, user=user))
    return [MOSQUITTO, "-c", str(file)]


@contextmanager
def running(command: list[str], port: int) -> Iterator[None]:
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + START_LIMIT
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    sys.exit(f"{command[0]} does not answer")
                time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.wait()


def rate(server: str, case: tuple[str, int, int], messages: int, directory: Path) -> tuple[float, str]:
    _, subscribers, record = case
    port = free_port()
    command = smb(port, directory) if server == "SMB" else mosquitto(port, directory)
    with running(command, port):
        words = [LOAD, *map(str, (port, messages // subscribers, 64, subscribers, record, WINDOW))]
        found = json.loads(subprocess.run(words, check=True, capture_output=True).stdout)
    return found["deliveries_per_second"], found["cipher"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--messages", type=int, default=600_000, help="deliveries of a run; Mosquitto gets a third")
    options = parser.parse_args()
    LOAD.parent.mkdir(exist_ok=True)
    libraries = ("-lssl", "-lcrypto", "-lpthread")
    subprocess.run(["gcc", "-O2", "-Wall", "-o", LOAD, HERE / "tls_load.c", *libraries], check=True)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
        files = ["-keyout", f"{name}/key.pem", "-out", f"{name}/cert.pem"]
        subprocess.run(
            ["openssl", "req", "-x509", *curve, "-nodes", *files, "-days", "2", "-subj", "/CN=localhost"],
            check=True,
            capture_output=True,
        )
        for case in CASES:
            rates: dict[str, list[float]] = {"SMB": [], "Mosquitto": []}
            ciphers = set()
            for _ in range(options.rounds):
                for server, found in rates.items():
                    count = options.messages if server == "SMB" else options.messages // 3
                    speed, cipher = rate(server, case, count, directory)
                    found.append(speed)
                    ciphers.add(cipher)
            ours, theirs = (statistics.median(found) for found in rates.values())
            shown = " ".join(sorted(ciphers))
            print(
                f"{case[0]:36} SMB {ours:12,.0f}  Mosquitto {theirs:10,.0f}  {ours / theirs:5.1f} x  {shown}",
                flush=True,
            )


if __name__ == "__main__":
    main()
