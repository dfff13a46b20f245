"""A disk that fails at every single call of a story: nothing acknowledged is lost, nothing failed comes back."""

from pathlib import Path

import pytest
from logkit import LONG, FailingDisk, QuickDisk, rows_of, turn

from smbroker.log.disk import Disk
from smbroker.log.log import Log
from smbroker.log.reader import LogReader
from smbroker.log.seal import seal_segment
from smbroker.log.settings import LogSettings
from smbroker.model.errors import LogError

SETTINGS = LogSettings(retain_age=10.0)
LATE = 1_700_000_100.0


@pytest.fixture(autouse=True, params=["through the page cache", "past it"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of appends, for each test."""
    if request.param == "past it":
        monkeypatch.setattr("smbroker.log.log.LARGE", 0)


class Story:
    """Appends with rotation, sealing and retention between, and what was promised meanwhile."""

    def __init__(self, directory: Path, disk: Disk) -> None:
        self.directory, self.disk = directory, disk
        self.acknowledged: dict[int, str] = {}
        self.refused: set[str] = set()
        self.seen: dict[int, str] = {}  # by a reader in another process
        self.serial = 0
        self.log: Log | None = None

    def open(self) -> bool:
        try:
            self.log = Log.open(self.directory, SETTINGS, self.disk)
        except LogError:
            return False
        return True

    def append(self, rows: int) -> bool:
        assert self.log
        texts = [f"{self.serial}.{row}" for row in range(rows)]
        self.serial += 1
        try:
            base = self.log.append([turn(texts)])
        except LogError:
            self.refused |= set(texts)
            return False
        finally:
            self.look()
        self.acknowledged |= {base + row: text for row, text in enumerate(texts)}
        return True

    def maintain(self, what: str) -> None:
        assert self.log
        try:
            if what == "rotate":
                self.log.rotate()
            elif what == "seal":
                for base in self.log.pending_seals:
                    seal_segment(self.directory, base, disk=self.disk)
            elif what == "retain":
                self.log.retain(LATE)
        except LogError:
            pass
        self.look()

    def look(self) -> None:
        reader = LogReader(self.directory)
        offsets = []
        for row in rows_of(reader.read(reader.first_offset)):
            offset, text = int(row["offset"]), row["payload"].decode()  # type: ignore[call-overload, attr-defined]
            offsets.append(offset)
            assert self.seen.setdefault(offset, text) == text, "an offset that a reader saw means another message"
            assert text not in self.refused, "what failed came back"
        assert offsets == sorted(set(offsets))
        wanted = {offset for offset in self.acknowledged if offset >= reader.first_offset}
        assert wanted <= set(offsets), "an acknowledged message is lost"

    def run(self) -> None:
        if not self.open():
            return
        for rows in (2, 3):
            self.append(rows)
        self.maintain("rotate")
        self.append(1)
        self.append(2)
        self.maintain("seal")
        self.append(2)
        self.maintain("rotate")
        self.maintain("seal")
        self.maintain("retain")
        self.append(3)

    def restart(self) -> None:
        """As after kill -9: the files as they are, a disk that works again."""
        if self.log:
            self.log._lock.release()
        if isinstance(self.disk, FailingDisk) and self.disk.sticky:
            # Neither could it be cut nor could that be noted: it may come back, but only as itself.
            self.refused.clear()
        self.disk = QuickDisk()
        assert self.open()
        assert self.log
        self.look()
        assert self.append(2)
        self.maintain("rotate")
        self.maintain("seal")
        assert self.append(1)
        self.log.close()
        assert self.open()
        self.look()
        assert self.log.recovered == []
        self.log.close()


def calls_of_the_story(directory: Path) -> int:
    disk = FailingDisk()
    story = Story(directory, disk)
    story.run()
    assert len(story.acknowledged) == 13
    assert not story.refused
    calls = disk.calls
    assert story.log
    story.log.close()
    return calls


@pytest.mark.parametrize("sticky", [False, True])
@pytest.mark.parametrize("fault", ["short", "full", "broken"])
def test_a_fault_at_every_call(tmp_path: Path, fault: str, sticky: bool) -> None:
    calls = calls_of_the_story(tmp_path / "sound")
    assert calls > 40
    start = 1 if LONG else 1 + 2 * ("short", "full", "broken").index(fault) + sticky
    for at in range(start, calls + 1, 1 if LONG else 6):  # together they have every call
        disk = FailingDisk(at, fault, sticky)
        story = Story(tmp_path / f"{at}", disk)
        story.run()
        assert disk.failed, at
        story.restart()


@pytest.mark.parametrize("fault", ["short", "full", "broken"])
def test_the_log_recovers_by_itself_when_the_disk_does(tmp_path: Path, fault: str) -> None:
    calls = calls_of_the_story(tmp_path / "sound")
    for at in range(12, calls + 1, 3 if LONG else 11):
        disk = FailingDisk(at, fault, sticky=True)
        story = Story(tmp_path / f"{at}", disk)
        if not story.open():
            continue
        while not disk.failed:
            story.append(2)
        assert story.refused or disk.failed
        assert not story.append(1)
        disk.heal()
        assert story.append(2)
        assert story.append(2)
        story.restart()


def test_a_file_whose_sync_failed_is_never_appended_to_again(tmp_path: Path) -> None:
    disk = FailingDisk()
    log = Log.open(tmp_path, SETTINGS, disk)
    log.append([turn(["kept"])])
    disk.at, disk.fault = disk.calls + 2, "broken"  # the write goes through, the sync fails
    with pytest.raises(LogError) as caught:
        log.append([turn(["failed"])])
    assert caught.value.code == "disk"
    assert log.append([turn(["next"])]) == 1
    assert sorted(path.name for path in tmp_path.glob("*.arrow")) == [f"{base:020}.arrow" for base in (0, 1)]
    log.close()
    assert [row["payload"] for row in rows_of(LogReader(tmp_path).read(0))] == [b"kept", b"next"]


def test_a_failed_batch_that_could_not_be_cut_does_not_come_back(tmp_path: Path) -> None:
    """The sync fails, the truncation too; then the process dies before anything else is appended."""

    class NoTruncation(FailingDisk):
        def truncate(self, handle: int, length: int) -> None:  # noqa: ARG002
            raise OSError(5, "Input/output error")

    disk = NoTruncation()
    log = Log.open(tmp_path, SETTINGS, disk)
    log.append([turn(["kept"])])
    disk.at, disk.fault = disk.calls + 2, "broken"
    with pytest.raises(LogError):
        log.append([turn(["failed"])])
    log._lock.release()
    log = Log.open(tmp_path)
    assert log.append([turn(["next"])]) == 1
    assert [row["payload"] for row in rows_of(log.read(0))] == [b"kept", b"next"]
    log.close()


@pytest.mark.parametrize("fault", ["short", "full", "broken"])
def test_notes_of_a_tail_without_messages_outlive_it(tmp_path: Path, fault: str) -> None:
    """A failure has the tail replaced by another one at the same offset."""
    failed = 0
    for at in range(1, 9):
        disk = FailingDisk(fault=fault)
        log = Log.open(tmp_path / str(at), SETTINGS, disk)
        log.append([turn(["a"])])
        log.rotate()
        log.append([], [("n", b"1")])
        disk.calls, disk.at = 0, at
        try:
            log.append([turn(["b"])])
        except LogError:
            failed += 1
        disk.heal()
        log.append([turn(["c"])], [("n", b"2")])
        for _ in range(2):
            assert [value for _, notes in log.notes() for _, value in notes] == [b"1", b"2"], at
            log.close()
            log = Log.open(tmp_path / str(at), SETTINGS, QuickDisk())
        log.close()
    assert failed
