"""A request's body, bounded: one alone, all that are on their way together, and in time.

A length that is promised is judged before anything is read.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.requests import ClientDisconnect, Request

from smbroker.model.errors import Refused

TOGETHER = 4  # bodies of the largest size that may be on their way at once
PAUSE = 30.0  # seconds in which something more must come
LEAST_PACE = 1_000  # bytes per second, after the first pause


class Bodies:
    def __init__(self) -> None:
        self._held = 0

    @asynccontextmanager
    async def read(self, request: Request, most: int, room: int) -> AsyncIterator[bytes]:
        """The whole body, at most `most` bytes, counted against `room` until it is done with. Raises Refused."""
        promised = request.headers.get("content-length", "0")
        if not promised.isdecimal() or int(promised) > most:
            raise _too_long(most)
        pieces: list[bytes] = []
        size = 0
        try:
            async for piece in _pieces(request):
                pieces.append(piece)
                size += len(piece)
                self._held += len(piece)
                if size > most:
                    raise _too_long(most)
                if self._held > TOGETHER * room:
                    raise Refused("too_many_bodies", "too much is on its way in other requests; try again")
            yield b"".join(pieces)
        finally:
            self._held -= size


async def _pieces(request: Request) -> AsyncIterator[bytes]:
    loop = asyncio.get_running_loop()
    stream, started, size = request.stream(), loop.time(), 0
    while True:
        try:
            piece = await asyncio.wait_for(anext(stream, None), PAUSE)
        except TimeoutError as error:
            raise Refused("body_timeout", f"nothing came for {PAUSE:g} seconds") from error
        except ClientDisconnect as error:
            raise Refused("disconnected", "the client has gone") from error
        if piece is None:
            return
        size += len(piece)
        if size < (loop.time() - started - PAUSE) * LEAST_PACE:
            raise Refused("body_timeout", f"fewer than {LEAST_PACE} bytes per second came")
        yield piece


def _too_long(most: int) -> Refused:
    return Refused("body_too_long", f"at most {most} bytes are taken")
