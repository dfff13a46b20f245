"""What a turn frees is kept for the next one, on glibc."""

import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource
from smbroker.server.heap import keep_freed
{}
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
bytearray(8 << 20)
before = faults()
for _ in range(50):
    bytearray(b"x") * (8 << 20), bytearray(b"x") * (1 << 20)
print(faults() - before)
"""


def faults(call: str) -> int:
    program = [sys.executable, "-c", FAULTS.format(call)]
    return int(subprocess.run(program, capture_output=True, text=True, check=True, timeout=60).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is glibc that would give memory back each time")
def test_memory_that_is_used_again_need_not_come_from_the_system_again() -> None:
    assert faults("keep_freed()") < faults("") / 5
