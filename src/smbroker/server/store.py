"""The data directory in use: log, state, the reading process, sealing and retention; start and stop.

DIR/log/       the messages
DIR/state.db   sessions and subscriptions
"""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from smbroker.log.ledger import Ledger
from smbroker.log.log import Log
from smbroker.log.segments import Segment
from smbroker.log.state import State
from smbroker.model.errors import LogError
from smbroker.model.message import Dialect, Origin
from smbroker.server import pipelines
from smbroker.server.commits import Commits
from smbroker.server.config import Config
from smbroker.server.console import Console
from smbroker.server.history import History
from smbroker.server.memory import Memory
from smbroker.server.mqtt.keeping import MqttKeeping
from smbroker.server.mqtt.service import Mqtt
from smbroker.server.turn import Turn
from smbroker.server.udp import UdpListener

CARE = 1.0  # seconds between looks at the cursors, at what is to be removed, and at what is to be sealed
SEALED_AT_ONCE = 8  # closed tails, by one process, whose start takes as long as one of them
FLOOD = 1_000_000  # messages a second, to which sealing gives way …
FLOOD_TAILS = 16  # … until so many closed tails wait: it takes a core for as long as they took to come
FLOOD_CARE = 0.5  # seconds between looks meanwhile: a disk may stand still for half of that


class Store:
    def __init__(self, config: Config, log: Log, state: State, turn: Turn) -> None:
        self._log = log
        self._settings = config.log
        self._console = turn.console
        self._turn = turn
        self._saved = state.load()
        self.data = Path(config.data)
        self._directory = self.data / "log"
        self.history = History(self._directory, turn.console)
        followers = turn.use_log(log, self.history)
        assert turn.commits
        self._commits = turn.commits
        self.ledger = Ledger(state, log)
        self._memory = Memory(state, turn.commits, followers)
        for refused in self._memory.restore_typed(turn.sessions, self._saved):
            turn.console.warn(refused.code, f"a typed session from before the restart: {refused.text}")
        turn.sessions.remember = self._memory
        self._state = state
        self.mqtt: MqttKeeping | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._none_closed = -1  # none was after so many had been begun
        self._seen = (time.monotonic(), log.next_offset)  # when there was a look for a flood, and how far the log was

    @classmethod
    def open(cls, config: Config, turn: Turn) -> "Store":
        """Raises LogError: in use by another broker, damaged, or the disk refuses."""
        log = Log.open(Path(config.data) / "log", config.log)
        try:
            state = State(Path(config.data) / "state.db", Teller(turn.loop, turn.console))
            for sentence in log.recovered:
                turn.console.warn("recovered", sentence)
            return cls(config, log, state, turn)
        except BaseException:
            log.close()
            raise

    @property
    def commits(self) -> Commits:
        return self._commits

    def keep_mqtt(self, service: Mqtt) -> None:
        """What MQTT remembers survives a restart, from here on; and is what it was. Raises LogError."""
        self.mqtt = MqttKeeping(service, self._state, self._commits)
        try:
            self.mqtt.restore(self._saved, self._log, time.time())
        except ValueError as error:  # SQLite has no checksums: what is read may be anything
            raise self._state.damaged(error) from error
        service.keeping = self.mqtt

    def start(self) -> None:
        self.history.start()
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._repeat(self._care, "the log cannot be shortened")),
            loop.create_task(self._repeat(self._seal_closed, "nothing can be sealed")),
        ]

    def restore_peers(self, listeners: list[UdpListener]) -> None:
        """Peers go back to the listener that they know, or to one that speaks their dialect."""
        for one in self._saved:
            dialect, source, name = one.key
            if not name or dialect == Dialect.MQTT:
                continue
            origin = Origin.at(Dialect(dialect), source)
            address = (origin.host, origin.port)
            able = [each for each in listeners if each.serves(origin.dialect, address)]
            if able:
                best = next((each for each in able if each.name == name), able[0])
                if best.name != name:
                    self._memory.drop(one.key)
                best.restore(origin.dialect, address, list(one.subscriptions))

    async def all_kept(self) -> None:
        """Returns when all that was submitted so far is committed or has failed."""
        told = asyncio.get_running_loop().create_future()
        self._commits.after(lambda: None if told.done() else told.set_result(None))
        await told

    async def stop(self) -> None:
        """Everything is on disk when this returns; acknowledgements have been put into their outboxes."""
        for task in self._tasks:
            task.cancel()
        self._turn.lanes.account()
        self._commits.stop()
        await asyncio.get_running_loop().run_in_executor(None, self._commits.close)
        await asyncio.sleep(0)  # what the writing thread told last

    async def close(self) -> None:
        """After the last client has gone."""
        await self.history.stop()
        if self.mqtt:
            self.mqtt.save()
        self._memory.close()
        try:
            self._log.close()
        except LogError as error:
            self._console.error(error.text)

    async def _repeat(self, work: Callable[[], Awaitable[float]], trouble: str) -> None:
        """Whatever happens, after as many seconds as the work says."""
        pause = CARE
        while True:
            await asyncio.sleep(pause)
            pause = CARE
            try:
                pause = await work()
            except LogError as error:
                self._complain(error.text)
            except OSError as error:
                self._complain(f"{trouble}: {error}")
            except Exception as bug:
                self._turn.loop.call_exception_handler({"message": trouble, "exception": bug})

    def _complain(self, text: str) -> None:
        self._console.warn("log_care", f"{text}; it is tried again")
        self._console.write()

    async def _care(self) -> float:
        self._memory.save_cursors()
        if self.mqtt:
            self.mqtt.save(completely=False)
        loop = asyncio.get_running_loop()
        if self._settings.retain_age or self._settings.retain_bytes:
            await loop.run_in_executor(None, self._log.retain, time.time())
        self._commits.read_by(pipelines=await loop.run_in_executor(None, pipelines.running, self.data))
        return CARE

    async def _seal_closed(self) -> float:
        """No pause after something was sealed: more may have been closed meanwhile, and it must keep up."""
        flooded = self._flooded()
        if self._log.begun == self._none_closed and not self._log.due(time.time()):
            return CARE  # to look for them in the directory would take long where there are thousands of segments
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self._log.rotate_if_due, time.time())
        begun = self._log.begun
        closed = await loop.run_in_executor(None, lambda: self._log.closed_tails)
        if not closed:
            self._none_closed = begun
        if flooded and 0 < len(closed) < FLOOD_TAILS:
            return FLOOD_CARE
        return 0.0 if closed and await self._notes_applied() and await self._seal(closed) else CARE

    def _flooded(self) -> bool:
        """Since the last look."""
        then, before = self._seen
        self._seen = now, offset = time.monotonic(), self._commits.recent.next
        return offset - before > FLOOD * (now - then)

    async def _notes_applied(self) -> bool:
        """Sealing drops the notes: what they say must be in the state before. Whether it is."""
        await self.all_kept()  # the loop has heard of all that the closed tails hold
        if self.mqtt:
            self.mqtt.save()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(None, self.ledger.apply, self._commits.recent.next)

    async def _seal(self, closed: Sequence[Segment]) -> bool:
        """Whether they could be. In a process of its own: packing columns takes the interpreter for long. It may
        outlive the broker, so it is told how far it may go: the notes of tails that are closed later are not in the
        state yet."""
        bases, until = [str(segment.base) for segment in closed[:SEALED_AT_ONCE]], closed[-1].end
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "smbroker.log.lean", "smbroker.log.seal"),
            *(str(self._directory), *bases, "--until", str(until)),
            *("--rows", str(self._settings.seal_rows), "--bytes", str(self._settings.seal_bytes)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        try:
            done, failed = await process.communicate()
        except asyncio.CancelledError:
            process.kill()
            raise
        for line in done.splitlines():  # what it had to leave out, in sentences
            self._console.error(json.loads(line))
            self._console.write()
        if process.returncode:
            text = failed.decode(errors="replace").strip().rpartition("\n")[2]
            self._complain(f"a segment from {bases[0]} on could not be sealed: {text}")
        return process.returncode == 0


class Teller:
    """Says on the console what the state's thread has to say."""

    def __init__(self, loop: asyncio.AbstractEventLoop, console: Console) -> None:
        self._loop = loop
        self._console = console

    def __call__(self, trouble: str) -> None:
        self._loop.call_soon_threadsafe(self._say, trouble)

    def _say(self, trouble: str) -> None:
        if trouble:
            self._console.error(f"sessions cannot be saved: {trouble}")
        else:
            self._console.note("sessions are saved again")
        self._console.write()
