"""The broker's end of the process that reads tables (`smbroker.spark.preview`): there only while somebody looks.

One question at a time. Delta's library is large and reads for long: neither is for the broker's loop.
"""

import asyncio
import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from smbroker.model.errors import Refused

TABLES = "tables"  # within the data directory
TIMEOUT = 30.0  # seconds for an answer
IDLE = 60.0  # seconds after which the process is ended
LONGEST = 64 << 20  # bytes of an answer


class Tables:
    def __init__(self, data: Path) -> None:
        self._data = data
        self._turn = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def all(self) -> dict[str, Any]:
        if not await asyncio.get_running_loop().run_in_executor(None, _any_in, self._data / TABLES):
            return {"tables": []}
        return await self._asked({"tables": True})

    async def rows(self, name: str, most: int, topic: str | None) -> dict[str, Any]:
        """The last rows; with `topic` of that topic. Raises Refused."""
        if not await asyncio.get_running_loop().run_in_executor(None, _any_in, self._data / TABLES):
            raise Refused("no_table", "there are no tables")
        return await self._asked({"name": name, "limit": most, "topic": topic})

    def stop(self) -> None:
        process, self._process = self._process, None
        if process and process.returncode is None:
            process.kill()

    async def _asked(self, question: dict[str, Any]) -> dict[str, Any]:
        if find_spec("deltalake") is None:
            raise Refused("no_reader", "tables need the package deltalake: pip install '.[spark]' in a checkout of SMB")
        async with self._turn:
            if self._timer:
                self._timer.cancel()
            try:
                found = await asyncio.wait_for(self._told(question), TIMEOUT)
            except (TimeoutError, ValueError, ConnectionError) as error:  # ValueError: cut short, or too long
                self.stop()
                raise Refused("bad_table", "the table could not be read; try again") from error
            self._timer = asyncio.get_running_loop().call_later(IDLE, self.stop)
        if "code" in found:
            raise Refused(found["code"], found["text"])
        return found

    async def _told(self, question: dict[str, Any]) -> dict[str, Any]:
        process = self._process
        if process is None or process.returncode is not None:
            process = self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "smbroker.spark.preview", str(self._data)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                start_new_session=True,
                limit=LONGEST,
            )
        assert process.stdin
        assert process.stdout
        process.stdin.write(json.dumps(question).encode() + b"\n")
        found: dict[str, Any] = json.loads(await process.stdout.readline())
        return found


def _any_in(directory: Path) -> bool:
    try:
        return any(not one.name.startswith(".") for one in directory.iterdir())
    except OSError:
        return False
