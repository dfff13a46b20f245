"""What needs no load generator: the disk, the log by itself, history of one topic, and the time to `ready`."""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

from rounds import Bench, Run, RunFailed
from servers import SMBBROKER, last_words, running, stop

from smbroker.log.disk import Disk
from smbroker.log.log import Log
from smbroker.log.seal import seal_segment
from smbroker.log.settings import LogSettings
from smbroker.model.message import Columns, Dialect, Kind, Origin

BATCH = 2_000  # messages per append: a busy turn's worth
PAYLOAD = 100  # bytes
NUMBER = 20  # of them: which message it is
TEXT = Random(1).randbytes(1 << 19).hex().encode()
TOPICS = 1_000
PUBLISHERS = 10
SYNCED = 4_096  # bytes of one append to the bare disk
SYNC_SECONDS = 1.0

HISTORY_TOPICS = 10_000
HISTORY = 1_000  # messages of the topic that is asked for
TITLE = b"bench/history"
FIELD = 64  # of padded
FRAME = 3 * FIELD + PAYLOAD
PATIENCE = 60.0


def syncs(bench: Bench) -> Run:
    """How often this disk can sync: what an acknowledgement waits for at least."""
    directory = bench.new_directory()
    handle = os.open(directory / "file", os.O_WRONLY | os.O_CREAT)
    data, count = bytes(SYNCED), 0
    began = time.perf_counter()
    while (seconds := time.perf_counter() - began) < SYNC_SECONDS:
        os.pwrite(handle, data, count * SYNCED)
        os.fdatasync(handle)
        count += 1
    os.close(handle)
    shutil.rmtree(directory)
    return {"syncs_per_s": count / seconds, "seconds": seconds}


class TimedDisk(Disk):
    def __init__(self) -> None:
        self.seconds = 0.0  # spent on syncs

    def sync_data(self, handle: int) -> None:
        began = time.perf_counter()
        super().sync_data(handle)
        self.seconds += time.perf_counter() - began


def payload(row: int) -> bytes:
    """A number, then text that packs about as well as real text does."""
    start = row * 7_919 % (len(TEXT) - PAYLOAD)
    return b"%0*d" % (NUMBER, row) + TEXT[start : start + PAYLOAD - NUMBER]


def origins() -> list[Origin]:
    return [Origin(Dialect.SEMICOLON, "127.0.0.1", 40_000 + number) for number in range(PUBLISHERS)]


def append(bench: Bench) -> Run:
    """As the broker's writer does it: append, and rotate when it is due."""
    count = bench.scale.appended
    turns = list(turns_of(count))
    directory, disk = bench.new_directory(), TimedDisk()
    log = Log.open(directory, disk=disk)
    disk.seconds = 0.0
    began = time.perf_counter()
    for turn in turns:
        log.append([turn])
        log.rotate_if_due(time.time())
    seconds = time.perf_counter() - began
    log.close()
    shutil.rmtree(directory)
    return {"messages_per_s": count / seconds, "sync_share": disk.seconds / seconds, "seconds": seconds}


def turns_of(count: int) -> Iterator[Columns]:
    topics = [b"bench/%04d" % number for number in range(TOPICS)]
    publishers = origins()
    for start in range(0, count, BATCH):
        rows = range(start, min(start + BATCH, count))
        yield Columns(
            time.time_ns() // 1000,
            [topics[row * 7_919 % TOPICS] for row in rows],
            [payload(row) for row in rows],
            [Kind.BYTES] * len(rows),
            [publishers[row % PUBLISHERS] for row in rows],
        )


# --- history ---


def history(bench: Bench) -> Run:
    """One topic's 1,000 messages, from a broker just started: its reading process starts with it."""
    data = bench.directory / "history"
    if not data.exists():
        make_history(bench, data / "log")
    with broker(bench.directory, data, "padded") as (ready_s, port, process):
        first, all_ = subscribed(port)
        again_first, again_all = subscribed(port)
        stop(process, signal.SIGKILL)
    with broker(bench.directory, data, "padded") as (ready_killed_s, _, _):
        pass
    return {
        "first_s": first,
        "all_s": all_,
        "again_first_s": again_first,
        "again_all_s": again_all,
        "ready_s": ready_s,
        "ready_killed_s": ready_killed_s,
    }


def make_history(bench: Bench, directory: Path) -> None:
    """Sealed as the broker would, but for the last half segment: what a start must check."""
    count = bench.scale.history
    most = min(LogSettings().seal_rows, count)
    bench.say(f"  writing a log of {count:,} messages over {HISTORY_TOPICS:,} topics")
    log, base, end = Log.open(directory), 0, most // 2
    for turn in history_turns(count):
        if log.next_offset >= end:
            log.rotate()
            seal_segment(directory, base)
            bench.say(f"  {log.next_offset:,} written and sealed")
            base, end = log.next_offset, log.next_offset + most
        log.append([turn])
    log.close()


def history_turns(count: int) -> Iterator[Columns]:
    """1,000 messages of the one topic, evenly among the others."""
    topics = [b"bench/%05d" % number for number in range(HISTORY_TOPICS - 1)]
    publishers, every = origins(), count // HISTORY
    for start in range(0, count, BATCH):
        rows = range(start, min(start + BATCH, count))
        yield Columns(
            time.time_ns() // 1000,
            [topics[row * 7_919 % len(topics)] if row % every else TITLE for row in rows],
            [payload(row) for row in rows],
            [Kind.BYTES] * len(rows),
            [publishers[row % PUBLISHERS] for row in rows],
        )


def subscribed(port: int) -> tuple[float, float]:
    """Seconds from SubAck to the first message and to the last of the history."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as sock:
        sock.sendall(b"Subscribe".ljust(FIELD) + TITLE.ljust(FIELD))
        got = bytearray()
        acked, first = 0.0, 0.0
        while len(got) < FIELD + HISTORY * FRAME:
            more = sock.recv(1 << 18)
            if not more:
                raise RunFailed("the broker closed the connection")
            got += more
            now = time.perf_counter()
            acked = acked or now
            if not first and len(got) >= FIELD + FRAME:
                first = now
        sock.sendall(b"Disconnect".ljust(FIELD))
    check(bytes(got))
    return first - acked, now - acked


def check(got: bytes) -> None:
    ack, messages = got[:FIELD], got[FIELD:]
    starts = range(FRAME - PAYLOAD, len(messages), FRAME)
    numbers = [int(messages[start : start + NUMBER]) for start in starts]
    if ack.rstrip() != b"SubAck" or len(numbers) != HISTORY or numbers != sorted(set(numbers)):
        raise RunFailed("the history is not what was written")


# --- ready ---


def ready(log: bool, bench: Bench) -> Run:
    directory = bench.new_directory()
    with broker(directory, directory / "data" if log else None, "udp", "padded", "typed") as (seconds, _, _):
        pass
    shutil.rmtree(directory)
    return {"ready_s": seconds}


@contextmanager
def broker(directory: Path, data: Path | None, *listeners: str) -> Iterator[tuple[float, int, subprocess.Popen]]:
    """Seconds until it said `ready`, the port of the last listener, and its process."""
    log = ["--data", str(data)] if data else ["--no-log"]
    listen = [word for kind in listeners for word in ("--listen", f"{kind}://127.0.0.1:0")]
    began = time.perf_counter()
    with running([str(SMBBROKER), *log, *listen], directory, subprocess.PIPE) as process:
        assert process.stdout
        port = 0
        for line in process.stdout:
            if line == b"ready\n":
                break
            if line.startswith(b"listening "):
                port = int(line.split()[-1])
        else:
            raise RunFailed(f"the broker does not start. {last_words(directory)}")
        yield time.perf_counter() - began, port, process
