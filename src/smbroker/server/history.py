"""The broker's end of the reading process (`smbroker.log.history`): questions out, pieces of history in.

The process is started with the broker and again should it die; what was asked is then asked anew. Questions are
answered in order, so that it is known with which one it died: certain damage ends the library that reads Parquet,
and the process with it. A question that did so twice is given up, and fails as one that meets damage does.
"""

import asyncio
import pickle
import sys
from collections import deque
from collections.abc import Callable
from itertools import count
from pathlib import Path
from signal import SIGKILL, SIGTERM
from typing import Any, TypeAlias

from smbroker.log.questions import LENGTH, Answer, Count, Failed, GivenUp, Moment, Place, Question, Roll, packet
from smbroker.server.console import Console

Answered: TypeAlias = Callable[[Any], None]  # takes the answers to that question

PAUSE = 0.5  # seconds before a process that died is started again
CENSUS = -2  # stands for the readings of all who ask for a step of it
DEATHS = 2  # with the same question, after which it is given up
KILLED = (-SIGKILL, -SIGTERM)  # by others, say for want of memory: no question's fault


class History:
    def __init__(self, directory: Path, console: Console) -> None:
        self._directory = directory
        self._console = console
        self._asked: dict[int, tuple[Question, Answered]] = {}
        self._sent: deque[Question | None] = deque()  # without an answer, the first in work; None: that it runs
        self._deaths: dict[int, int] = {}  # of the process, by reading
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
        if isinstance(question, Count) and self._deaths.get(CENSUS, 0) >= DEATHS:
            answered(_no_census(question))
            return
        self._asked[question.reading] = question, answered
        self._send(question)

    def forget(self, reading: int) -> None:
        self._asked.pop(reading, None)
        self._deaths.pop(reading, None)

    def _send(self, question: Question) -> None:
        if self._process and self._process.stdin and not self._process.stdin.is_closing():
            self._process.stdin.write(packet(question))
            self._sent.append(question)

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
            self._sent = deque([None])
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
            self._blame(code)
            self._console.write()
            await asyncio.sleep(PAUSE)

    async def _listen(self, answers: asyncio.StreamReader) -> None:
        while True:
            try:
                head = await answers.readexactly(LENGTH)
                answer: Answer = pickle.loads(await answers.readexactly(int.from_bytes(head, "big")))
            except asyncio.IncompleteReadError:
                return
            self._sent.popleft()
            self._deaths.pop(answer.reading, None)
            question, answered = self._asked.pop(answer.reading, (None, None))
            if isinstance(question, Count) and isinstance(answer, Place) and answer.offset >= question.end:
                self._deaths.pop(CENSUS, None)  # it has come past the place where it died
            if answered:
                answered(answer)

    def _blame(self, code: int) -> None:
        """Gives up the question with which the process has died, if that was not the first time."""
        question = self._sent[0] if self._sent else None
        asked, answered = self._asked.get(question.reading, (None, None)) if question else (None, None)
        if question is None or asked is not question or answered is None or code in KILLED:
            return
        # A new process counts from the log's beginning: it answers other steps before it comes to the same place.
        key = CENSUS if isinstance(question, Count) else question.reading
        deaths = self._deaths[key] = self._deaths.get(key, 0) + 1
        if deaths < DEATHS:
            return
        if isinstance(question, Count):
            self._console.error("the process that reads history cannot count the topics: there is no list of them")
            del self._asked[question.reading]
            answered(_no_census(question))
            return
        start = 0 if isinstance(question, (Moment, Roll)) else question.start
        self._console.error(f"history from offset {start} on ended the process that reads it twice: it is given up")
        self._asked[question.reading] = GivenUp(question.reading, start), answered


def _no_census(question: Count) -> Failed:
    return Failed(question.reading, "damaged", "the topics cannot be counted: the log is damaged", 0)
