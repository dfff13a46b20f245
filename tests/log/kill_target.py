"""A broker's log side in a process that the test kills: appends as fast as it can, tells what is on disk.

python kill_target.py DIRECTORY ROUND       prints `first_offset count round.serial` after each commit
"""

import sys
import time
from pathlib import Path

from logkit import turn

from smbroker.log.log import Log
from smbroker.log.seal import seal_segment
from smbroker.log.settings import LogSettings


def main() -> None:
    directory, number = Path(sys.argv[1]), sys.argv[2]
    log = Log.open(directory, LogSettings(seal_rows=300))
    print("open", *log.recovered, sep="|", flush=True)
    for serial in range(1_000_000):
        count = serial * 7 % 40 + 1
        name = f"{number}.{serial}"
        base = log.append([turn(f"{name}.{row}" for row in range(count))])
        print(base, count, name, flush=True)
        if log.rotate_if_due(time.time()) and len(log.pending_seals) > 1:
            seal_segment(directory, log.pending_seals[0])


if __name__ == "__main__":
    main()
