"""MQTT over TLS beside Mosquitto, in turns. Needs OpenSSL with its headers, and mosquitto.

A certificate is made on the spot; both servers get the same one, and agree with the generator on the same cipher.
"""

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from rounds import Bench, Run, RunFailed
from servers import BUILD, MOSQUITTO, SMBBROKER, START_LIMIT, answers_connections, free_port, last_words, running

SOURCE = Path(__file__).resolve().parent / "tls_load.c"
LOAD = BUILD / "tls_load"
HEADER = Path("/usr/include/openssl/ssl.h")
MOSQUITTO_SETTINGS = """\
listener {port} 127.0.0.1
certfile {directory}/cert.pem
keyfile {directory}/key.pem
allow_anonymous true
max_queued_messages 0
log_type none
user root
"""
WINDOW = 20_000  # messages
SIZE = 64
RECORD = 65_536  # bytes


@dataclass(frozen=True)
class Way:
    key: str
    title: str
    subscribers: int
    record: int  # bytes that are written at a time; 0: a record for each message


WAYS = (
    Way("one", "1 → 1", 1, RECORD),
    Way("ten", "1 → 10", 10, RECORD),
    Way("single", "1 → 1, a record for each message", 1, 0),
)


def missing() -> str:
    if not MOSQUITTO.path:
        return "mosquitto is not installed"
    if not shutil.which("openssl") or not HEADER.exists():
        return "OpenSSL and its headers are not installed; on Debian: apt-get install openssl libssl-dev"
    return ""


def tls(bench: Bench) -> Run:
    """Of each way SMB's rate ÷ Mosquitto's, by the medians of the rounds."""
    directory = bench.new_directory()
    build()
    certify(directory)
    deliveries = bench.scale.appended * 6 // 10
    found: Run = {}
    for way in WAYS:
        ours, theirs = [], []
        for _ in range(bench.rounds):
            ours.append(rate(smb, way, deliveries, directory))
            theirs.append(rate(mosquitto, way, deliveries // 3, directory))
        found[way.key] = median(ours) / median(theirs)
        found[f"{way.key}_per_s"] = median(ours)
    shutil.rmtree(directory)
    return found


def build() -> None:
    libraries = ("-lssl", "-lcrypto", "-lpthread")
    try:
        subprocess.run(["gcc", "-O2", "-Wall", "-o", LOAD, SOURCE, *libraries], check=True, capture_output=True)
    except subprocess.CalledProcessError as error:
        raise RunFailed(f"{SOURCE.name} cannot be built: {error.stderr.decode(errors='replace').rstrip()}") from error


def certify(directory: Path) -> None:
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")
    files = ("-keyout", directory / "key.pem", "-out", directory / "cert.pem")
    command = ("openssl", "req", "-x509", *curve, "-nodes", *files, "-days", "2", "-subj", "/CN=localhost")
    subprocess.run(command, check=True, capture_output=True)


def smb(port: int, directory: Path) -> list[str]:
    files = f"?certificate={directory}/cert.pem&key={directory}/key.pem"
    return [str(SMBBROKER), "--quiet", "--no-log", "--listen", f"mqtt+tls://127.0.0.1:{port}{files}"]


def mosquitto(port: int, directory: Path) -> list[str]:
    file = directory / "mosquitto.conf"
    file.write_text(MOSQUITTO_SETTINGS.format(port=port, directory=directory))
    return [str(MOSQUITTO.path), "-c", str(file)]


def rate(server: Callable[[int, Path], list[str]], way: Way, deliveries: int, directory: Path) -> float:
    port = free_port()
    with running(server(port, directory), directory) as process:
        deadline = time.monotonic() + START_LIMIT
        while not answers_connections(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RunFailed(f"the server does not answer. {last_words(directory)}")
            time.sleep(0.05)
        return delivered((port, deliveries // way.subscribers, SIZE, way.subscribers, way.record, WINDOW))


def delivered(settings: Sequence[int]) -> float:
    """A second."""
    done = subprocess.run([LOAD, *map(str, settings)], capture_output=True)
    if done.returncode:
        raise RunFailed(done.stderr.decode(errors="replace").strip())
    return float(json.loads(done.stdout)["deliveries_per_second"])
