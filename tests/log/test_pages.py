"""Single payloads out of a sealed segment's pages, whatever lengths they have."""

from pathlib import Path

import pytest
from logkit import QuickDisk, turn

from smbroker.log.disk import Disk
from smbroker.log.index import read_body
from smbroker.log.log import Log
from smbroker.log.pages import Pages
from smbroker.log.seal import PAGE_BYTES, PAGE_ROWS, seal_segment
from smbroker.log.segments import INDEX, SEALED, file_of
from smbroker.log.settings import LogSettings

COUNT = 3 * PAGE_ROWS
LENGTHS = {
    "of one length": [100] * COUNT,
    "empty": [0] * COUNT,
    "of one length but for the last": [100] * (COUNT - 1) + [101],
    "of one length but for two that make up for each other": [100] * 5 + [90, 110] + [100] * (COUNT - 7),
    "of many lengths": [row * 7 % 301 for row in range(COUNT)],
    "larger than a page": [PAGE_BYTES + 1, 3, 2 * PAGE_BYTES] * (COUNT // 3),
}


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_payloads_are_found_by_row(tmp_path: Path, lengths: list[int]) -> None:
    sent = [(f"{row:03}" * length)[:length] for row, length in enumerate(lengths)]
    log = Log.open(tmp_path, LogSettings(), QuickDisk())
    log.append([turn(sent)])
    log.rotate()
    seal_segment(tmp_path, 0)
    path, disk = file_of(tmp_path, 0, SEALED), Disk()
    pages = Pages(read_body(disk, file_of(tmp_path, 0, INDEX)).pages)
    handle = disk.open(path)
    try:
        for rows in (range(COUNT), range(0, COUNT, 7), [4], [6], [COUNT - 1], [5, 6, 7, COUNT - 2]):
            assert pages.payloads(disk, handle, path, rows) == [sent[row].encode() for row in rows]
    finally:
        disk.close(handle)
    log.close()
