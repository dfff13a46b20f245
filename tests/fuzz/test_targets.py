"""The fuzzers' targets (`fuzz/targets.py`) with hypothesis: valid input, the same changed a little, and any bytes."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from corpus import valid
from targets import TARGETS

TRIES = 20_000 if os.environ.get("SMB_LONG") else 150
VALID = valid()
_thread = ThreadPoolExecutor(1)  # of its own: in this one the browser's event loop may be running
_changes = st.lists(
    st.tuples(
        st.sampled_from(("cut", "flip", "insert", "repeat", "glue")), st.integers(0, 1 << 16), st.binary(max_size=6)
    ),
    max_size=4,
)


def changed(data: bytes, others: list[bytes], changes: list[tuple[str, int, bytes]]) -> bytes:
    for kind, number, piece in changes:
        at = number % (len(data) + 1)
        if kind == "cut":
            data = data[:at]
        elif kind == "flip" and at < len(data):
            data = data[:at] + bytes((data[at] ^ (1 << number % 8),)) + data[at + 1 :]
        elif kind == "insert":
            data = data[:at] + piece + data[at:]
        elif kind == "repeat":
            data += data[at : at + 64]
        elif kind == "glue":
            data += others[number % len(others)]
    return data


def take(target: str, data: bytes) -> None:
    _thread.submit(TARGETS[target], data).result()


@pytest.mark.parametrize("target", TARGETS)
def test_valid_input_is_taken(target: str) -> None:
    for data in VALID[target]:
        take(target, data)


@pytest.mark.parametrize("target", TARGETS)
def test_changed_input_does_no_harm(target: str) -> None:
    @settings(max_examples=TRIES, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(st.sampled_from(VALID[target]), _changes)
    def check(data: bytes, changes: list[tuple[str, int, bytes]]) -> None:
        take(target, changed(data, VALID[target], changes))

    check()


@pytest.mark.parametrize("target", TARGETS)
def test_any_bytes_do_no_harm(target: str) -> None:
    @settings(max_examples=TRIES, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(st.binary(max_size=300))
    def check(data: bytes) -> None:
        take(target, data)

    check()
