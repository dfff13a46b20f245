import json
import subprocess
from pathlib import Path

import pytest

from flow.house import BIN
from smbroker.log.log import Log
from smbroker.log.seal import seal_segment
from smbroker.model.message import Columns, Dialect, Kind, Origin

COUNT = 30


def smb_log(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([BIN / "smb", "log", *words], capture_output=True, text=True, timeout=30)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A log with one sealed segment and a tail."""
    log = Log.open(tmp_path / "log")
    origin = Origin(Dialect.TYPED, "127.0.0.1", 5000, "C1")
    for start in range(0, COUNT, 10):
        topics = [b"home/%d" % (number % 3) for number in range(start, start + 10)]
        payloads = [b"%d" % number if number % 2 else b"\xff%d" % number for number in range(start, start + 10)]
        log.append([Columns(1_700_000_000_000_000 + start, topics, payloads, [Kind.INT] * 10, [origin] * 10)])
        if start == 0:
            log.rotate()
            assert seal_segment(tmp_path / "log", 0)
    log.close()
    return tmp_path


def test_ls_shows_every_segment(data: Path) -> None:
    result = smb_log("ls", "--data", data)
    assert result.returncode == 0
    words = [line.split() for line in result.stdout.splitlines()]
    assert words[1][:5] == ["00000000000000000000.parquet", "sealed", "0", "10", "10"]
    assert words[2][:5] == ["00000000000000000010.arrow", "tail", "10", "30", "20"]
    assert words[1][-1] == "2023-11-14T22:13:20Z"


def test_cat_prints_one_object_per_message(data: Path) -> None:
    result = smb_log("cat", "--data", data)
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [row["offset"] for row in rows] == list(range(COUNT))
    assert rows[1] == {
        "offset": 1,
        "ts": "2023-11-14T22:13:20.000000Z",
        "topic": "home/1",
        "kind": "int",
        "text": "1",
        "value": 1.0,
        "dialect": "typed",
        "source": "127.0.0.1:5000",
        "client": "C1",
    }
    assert rows[0]["payload_base64"] == "/zA="
    assert rows[0]["value"] is None


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--from", "25"], list(range(25, 30))),
        (["--topics", "home/1"], list(range(1, 30, 3))),
        (["--topics", "home/1,home/2", "--from", "9"], [n for n in range(9, 30) if n % 3]),
        (["--topics", "home/+", "--limit", "4"], [0, 1, 2, 3]),
        (["--topics", "#"], list(range(30))),
        (["--topics", "other/#"], []),
    ],
)
def test_cat_takes_filters_a_start_and_a_limit(data: Path, options: list[str], expected: list[int]) -> None:
    result = smb_log("cat", "--data", data, *options)
    assert [json.loads(line)["offset"] for line in result.stdout.splitlines()] == expected


def test_verify_says_sound_or_names_the_file(data: Path) -> None:
    result = smb_log("verify", "--data", data)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "the log is sound\n")
    file = data / "log" / "00000000000000000000.parquet"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    result = smb_log("verify", "--data", data)
    assert result.returncode == 1
    assert result.stdout.startswith("00000000000000000000.parquet: ")


def test_bad_arguments_are_named(data: Path) -> None:
    assert smb_log("cat", "--data", data, "--topics", "a/#/b").returncode == 2
    result = smb_log("cat", "--data", data, "--from", "x")
    assert (result.returncode, result.stderr.startswith("--from x")) == (2, True)
    result = smb_log("ls", "--data", data / "nowhere")
    assert result.returncode == 1
    assert "--data" in result.stderr
