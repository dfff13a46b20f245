"""MQTT over TLS beside Mosquitto, in turns. Needs OpenSSL with its headers, and mosquitto.

A certificate is made on the spot; both servers get the same one, and agree with the generator on the same cipher.
"""

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean

from rounds import Bench, Run, RunFailed, middle, middle_half
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
PIECES = 5  # of each server in a round
LOAD_LIMIT = 120  # seconds for a piece, which takes less than one
SMALLER_PEER = 15  # of what a piece may append: Mosquitto's take as long


@dataclass(frozen=True)
class Way:
    key: str
    title: str
    subscribers: int
    record: int  # bytes that are written at a time; 0: a record for each message
    smaller: int = 1  # its pieces, of what is slow


WAYS = (
    Way("one", "1 → 1", 1, RECORD),
    Way("ten", "1 → 10", 10, RECORD),
    Way("single", "1 → 1, a record for each message", 1, 0, smaller=2),
)


def missing() -> str:
    if not MOSQUITTO.path:
        return "mosquitto is not installed"
    if not shutil.which("openssl") or not HEADER.exists():
        return "OpenSSL and its headers are not installed; on Debian: apt-get install openssl libssl-dev"
    return ""


def tls(bench: Bench) -> Run:
    """Of each way SMB's rate ÷ Mosquitto's, as the middle of many short pieces in turn."""
    directory = bench.new_directory()
    build()
    certify(directory)
    found: Run = {}
    for way in WAYS:
        deliveries = bench.scale.appended // (way.smaller * 3)
        pairs: list[tuple[float, float]] = []
        for _ in range(bench.rounds):
            with served(smb, directory, "SMB") as ours, served(mosquitto, directory, "Mosquitto") as theirs:
                pairs += [
                    (delivered(ours, way, deliveries), delivered(theirs, way, bench.scale.appended // SMALLER_PEER))
                    for _ in range(PIECES)
                ]
        found[way.key] = geometric_mean(middle_half([one / other for one, other in pairs]))
        found[f"{way.key}_per_s"] = middle([one for one, _ in pairs])
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


@contextmanager
def served(server: Callable[[int, Path], list[str]], directory: Path, name: str) -> Iterator[int]:
    """The port on which it answers."""
    port, own = free_port(), directory / name
    own.mkdir(exist_ok=True)
    with running(server(port, directory), own) as process:
        deadline = time.monotonic() + START_LIMIT
        while not answers_connections(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RunFailed(f"the server does not answer. {last_words(own)}")
            time.sleep(0.05)
        yield port


def delivered(port: int, way: Way, deliveries: int) -> float:
    """A second."""
    settings = (port, deliveries // way.subscribers, SIZE, way.subscribers, way.record, WINDOW)
    done = subprocess.run([LOAD, *map(str, settings)], capture_output=True, timeout=LOAD_LIMIT)
    if done.returncode:
        raise RunFailed(done.stderr.decode(errors="replace").strip())
    return float(json.loads(done.stdout)["deliveries_per_second"])
