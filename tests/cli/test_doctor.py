"""`smb doctor` tells what is well, and of what is not how to mend it."""

import os
import socket
import subprocess
from pathlib import Path

from flow.house import BIN
from smbroker.log.log import Log

FREE = ("--listen", "udp://127.0.0.1:0")


def doctor(*words: str, **environment: str) -> tuple[int, str]:
    done = subprocess.run(
        [BIN / "smb", "doctor", *words],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PATH": "/usr/bin", "PYTHONPATH": os.environ.get("PYTHONPATH", "")} | environment,
    )
    assert not done.stderr
    return done.returncode, done.stdout


def test_all_is_well(tmp_path: Path) -> None:
    code, said = doctor("--data", str(tmp_path / "data"), *FREE)
    assert code == 0
    assert "BAD" not in said
    for word in ("pyarrow", "udp://127.0.0.1:0 is free", "GiB free", "java"):
        assert word in said
    assert not (tmp_path / "data").exists()


def test_a_taken_port_is_named_with_what_to_do(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, said = doctor("--data", str(tmp_path), "--listen", f"mqtt://127.0.0.1:{port}", *FREE)
    assert code == 1
    (line,) = (line for line in said.splitlines() if line.startswith("BAD"))
    assert line.endswith(f"cannot listen on mqtt 127.0.0.1 port {port}: Address already in use")
    assert "→ stop who uses it, or listen elsewhere: --listen mqtt://127.0.0.1:PORT" in said


def test_a_broker_that_runs_there_already_is_named(tmp_path: Path) -> None:
    log = Log.open(tmp_path / "log")
    code, said = doctor("--data", str(tmp_path), *FREE)
    log.close()
    assert code == 1
    assert f"BAD  data         {tmp_path}/log is in use by process {os.getpid()}\n" in said
    assert "→ a broker runs there already: stop it, " in said
    code, said = doctor("--data", str(tmp_path), *FREE)
    assert (code, "BAD" in said) == (0, False)


def test_a_directory_that_cannot_be_written_is_named() -> None:
    code, said = doctor("--data", "/proc/smb-data", *FREE)
    assert code == 1
    assert "BAD  disk" in said
    assert "--data" in said


def test_rules_that_cannot_be_read_are_named_with_their_line(tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text("[[allow]]\nuser = 'ann'\n")
    code, said = doctor("--data", str(tmp_path), "--rules", str(rules), *FREE)
    assert code == 1
    assert f"BAD  rights       {rules}:1: " in said
    rules.write_text("[[allow]]\nuser = 'ann'\ntopics = '#'\n")
    code, said = doctor("--data", str(tmp_path), "--rules", str(rules), *FREE)
    assert code == 0
    assert "users: 0" in said


def test_without_java_the_broker_is_well_but_not_the_pipelines(tmp_path: Path) -> None:
    code, said = doctor("--data", str(tmp_path), *FREE, PATH="", JAVA_HOME="")
    assert code == 0
    assert "--   java" in said
    assert "apt-get install" in said


def test_whoever_has_read_enough_may_go() -> None:
    process = subprocess.Popen([BIN / "smb", "doctor"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout
    process.stdout.close()
    assert process.stderr
    with process:
        assert process.stderr.read() == b""
    assert process.returncode == 0
