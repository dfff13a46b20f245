"""The broker's end of the reading process (`smbroker.log.history`): questions out, pieces of history in.

The process is started with the broker and again should it die; what was asked is then asked anew.
"""

import asyncio
import pickle
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

from smbroker.log.questions import LENGTH, Answer, Question, packet
from smbroker.server.console import Console

Answered: TypeAlias = Callable[[Any], None]  # takes the answers to that question

PAUSE = 0.5  # seconds before a process that died is started again


class History:
    def __init__(self, directory: Path, console: Console) -> None:
        self._directory = directory
        self._console = console
        self._asked: dict[int, tuple[Question, Answered]] = {}
        self._readings = count()
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        if self._task:
            self._task.cancel()
        if self._process and self._process.returncode is None:
            self._process.kill()  # it only reads
            await self._process.wait()

    def new_reading(self) -> int:
        return next(self._readings)

    def ask(self, question: Question, answered: Answered) -> None:
        """One question per reading at a time."""
        self._asked[question.reading] = question, answered
        self._send(question)

    def forget(self, reading: int) -> None:
        self._asked.pop(reading, None)

    def _send(self, question: Question) -> None:
        if self._process and self._process.stdin and not self._process.stdin.is_closing():
            self._process.stdin.write(packet(question))

    async def _run(self) -> None:
        while True:
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "smbroker.log.lean", "smbroker.log.history", str(self._directory)),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    start_new_session=True,  # Ctrl-C is for the broker; this ends when its input does
                )
            except OSError as error:  # say, for want of memory or descriptors
                self._console.warn("history", f"the process that reads history cannot be started: {error}; again soon")
                self._console.write()
                await asyncio.sleep(PAUSE)
                continue
            for question, _ in self._asked.values():
                self._send(question)
            assert self._process.stdout
            try:
                await self._listen(self._process.stdout)
            except Exception as error:  # a bug of ours: say so, and go on with a new process
                context = {"message": "while reading history", "exception": error}
                asyncio.get_running_loop().call_exception_handler(context)
                self._process.kill()
            code = await self._process.wait()
            self._console.error(f"the process that reads history ended ({code}); it is started again")
            self._console.write()
            await asyncio.sleep(PAUSE)

    async def _listen(self, answers: asyncio.StreamReader) -> None:
        while True:
            try:
                head = await answers.readexactly(LENGTH)
                answer: Answer = pickle.loads(await answers.readexactly(int.from_bytes(head, "big")))
            except asyncio.IncompleteReadError:
                return
            _, answered = self._asked.pop(answer.reading, (None, None))
            if answered:
                answered(answer)
