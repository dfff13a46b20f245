"""The broker's side of the Spark sink: stages, and batches that are published once.

A task of Spark stages its rows: an Arrow body, spooled to DIR/stages. The driver's commit then names the stages that
count, and they are appended under one commit, with the ledger's note (`smbroker.log.ledger`). Stages outlive a
restart; those that nobody named expire. A commit that names a missing one is refused, and the batch is staged again.
"""

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Sequence
from functools import partial
from pathlib import Path
from secrets import compare_digest, token_hex, token_urlsafe

from smbroker.log.ledger import Ledger
from smbroker.model.errors import LogError, Refused
from smbroker.model.message import Rows
from smbroker.server import private
from smbroker.server.bodies import ArrowBodies

EXPIRES = 3_600.0  # seconds after which a stage that nobody named is removed
STAGE = re.compile(r"[0-9a-f]{32}")
SUFFIX, TEMPORARY = ".arrow", ".tmp"
TOKEN = "pipeline.token"


class Sink:
    def __init__(self, data: Path, ledger: Ledger, max_bytes: int, bodies: ArrowBodies) -> None:
        self._directory = data / "stages"
        self._token_file = data / TOKEN
        self._ledger = ledger
        self._max_bytes = max_bytes
        self._bodies = bodies
        self._token = ""

    def start(self) -> None:
        """Whoever may read the token may publish what only the broker and its pipelines may. Raises LogError."""
        try:
            self._token = self._token_file.read_text().strip() if self._token_file.exists() else ""
            if not self._token:
                token = token_urlsafe(32)
                private.write(self._token_file, token + "\n")
                self._token = token
        except OSError as error:
            raise LogError("token", f"{self._token_file}: {error.strerror}") from error

    def knows(self, token: str) -> bool:
        return bool(self._token) and compare_digest(token.encode(), self._token.encode())

    # --- stages ---

    async def stage(self, body: bytes) -> str:
        """Raises Refused: there is no room; LogError: the disk refuses."""
        return await asyncio.get_running_loop().run_in_executor(None, self._write, body)

    def _write(self, body: bytes) -> str:
        name = token_hex(16)
        path = self._path(name)
        try:
            self._directory.mkdir(exist_ok=True)
            if self._clean() + len(body) > self._max_bytes:
                text = f"{self._max_bytes} bytes are staged already (web.max_stage_bytes); they expire within an hour"
                raise Refused("too_many_stages", text)
            temporary = path.with_suffix(TEMPORARY)
            temporary.write_bytes(body)
            temporary.rename(path)
        except OSError as error:
            raise LogError("disk", f"the stage cannot be written: {error.strerror}") from error
        return name

    def _clean(self) -> int:
        """Removes what has expired; the bytes that are left."""
        now, left = time.time(), 0
        for path in self._directory.iterdir():
            try:
                found = path.stat()
                if now - found.st_mtime > EXPIRES:
                    path.unlink()
                else:
                    left += found.st_size
            except FileNotFoundError:  # its batch was committed meanwhile
                pass
        return left

    async def rows(self, stages: Sequence[str], most: int) -> AsyncGenerator[Rows, None]:
        """The rows of the stages, in order. Raises Refused: `stage_missing`."""
        read = asyncio.get_running_loop().run_in_executor
        for stage in stages:
            try:
                body = await read(None, self._path(stage).read_bytes)
            except FileNotFoundError as error:
                raise Refused("stage_missing", f"there is no stage {stage}: stage the batch again") from error
            async for rows in self._bodies.rows(body, most):
                yield rows

    async def drop(self, stages: Sequence[str]) -> None:
        for stage in stages:
            await asyncio.get_running_loop().run_in_executor(None, partial(self._path(stage).unlink, missing_ok=True))

    def _path(self, stage: str) -> Path:
        if not STAGE.fullmatch(stage):
            raise Refused("stage_missing", "that is not the name of a stage")
        return self._directory / (stage + SUFFIX)

    # --- batches ---

    async def last(self, query: str) -> int | None:
        await asyncio.get_running_loop().run_in_executor(None, self._ledger.load)
        return self._ledger.last(query)
