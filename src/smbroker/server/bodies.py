"""The broker's end of the process that decodes Arrow bodies (`smbroker.log.bodies`). It is started when first needed.

One body at a time. Should the process die of one, that request is refused and the next starts another.
"""

import asyncio
import pickle
import sys
from collections.abc import AsyncGenerator

from smbroker.model.errors import LogError, Refused
from smbroker.model.message import Rows


class ArrowBodies:
    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None

    async def rows(self, body: bytes, most: int) -> AsyncGenerator[Rows, None]:
        """Some at a time. Raises Refused."""
        async with self._turn:
            process = self._process = self._process or await _started()
            done = False
            try:
                assert process.stdin
                process.stdin.write(most.to_bytes(8, "big") + len(body).to_bytes(8, "big"))
                process.stdin.write(body)
                async for part in _answers(process):
                    yield part
                done = True
            except Refused:  # which is an answer too
                done = True
                raise
            except (asyncio.IncompleteReadError, ConnectionError) as error:
                if self._process is not process:
                    raise LogError("stopping", "the broker is stopping") from error
                raise Refused("bad_body", "it is no Arrow stream that can be decoded") from error
            finally:
                if not done:  # dead, or in the middle of a body that nobody wants any more
                    self.stop()

    def stop(self) -> None:
        process, self._process = self._process, None
        if process and process.returncode is None:
            process.kill()


async def _started() -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "smbroker.log.lean", "smbroker.log.bodies"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )


async def _answers(process: asyncio.subprocess.Process) -> AsyncGenerator[Rows, None]:
    assert process.stdout
    while True:
        size = int.from_bytes(await process.stdout.readexactly(4), "big")
        answer = pickle.loads(await process.stdout.readexactly(size))
        if answer is None:
            return
        if not isinstance(answer, Rows):
            raise Refused(*answer)
        yield answer
