"""A Spark session on this machine, with the settings that matter here, and what must be there for it.

Java is looked for first: what to install is said before Spark would fail with a stack trace.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

from smbroker.model.errors import UsageError

LEAST_JAVA = 17
_INSTALL = f"Spark needs Java {LEAST_JAVA} or newer; on Debian: apt-get install default-jre-headless"
_FILE_MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
# Arrow need not check the bounds of every value: it reads batches that this package made.
_ARROW = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
SETTINGS = {
    "spark.driver.extraJavaOptions": _ARROW,
    "spark.executor.extraJavaOptions": _ARROW,
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",  # frozen in a checkpoint at its first start; 10 × on stateful queries
    "spark.sql.streaming.checkpointFileManagerClass": _FILE_MANAGER,  # local disks: 70 ms less per batch
}
_SOCKET_NAME = len("/.00000000-0000-0000-0000-000000000000.sock")
_SOCKET_PATH = 103  # bytes that every system allows for the path of a socket


def session(master: str = "local[*]", scratch: Path | None = None, **settings: str) -> SparkSession:
    """The one session of this process; what Spark writes aside goes to `scratch`. Raises UsageError without Java."""
    if missing := missing_java():
        raise UsageError("no_java", missing)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else workers run the first python3 of the PATH
    builder = SparkSession.builder.master(master).appName("smb")
    for name, value in (SETTINGS | _here(master, scratch) | settings).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _here(master: str, scratch: Path | None) -> dict[str, str]:
    """What depends on the machine."""
    found = {}
    directory = str(scratch or tempfile.gettempdir())
    if master.startswith("local") and len(os.fsencode(directory)) + _SOCKET_NAME <= _SOCKET_PATH:
        found["spark.python.unix.domain.socket.enabled"] = "true"  # a tenth less time to read the log
    if scratch:
        found["spark.local.dir"] = directory
        found["spark.driver.extraJavaOptions"] = f'{_ARROW} "-Djava.io.tmpdir={directory}"'
    return found


def missing_java() -> str | None:
    """What to install, in one line; None if nothing is missing."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None:
        return f"there is no Java: {_INSTALL}"
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60).stderr
    except OSError as error:
        return f"{java} does not run ({error.strerror}): {_INSTALL}"
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    if not found or int(found[1]) < LEAST_JAVA:
        return f"{java} is version {found[1] if found else 'unknown'}: {_INSTALL}"
    return None
