"""One MQTT connection: its transport, how its packets are read and taken, and how it ends.

    NEW ──CONNECT──► OPEN ──DISCONNECT, an error, another connection with the same id──► closed

The first packet must be CONNECT, and must come soon; a second one is an error. Which packets a client may
send in OPEN, and what takes them, is the table HANDLERS (`handlers`). Whatever else it sends ends the
connection: MQTT 5 is told the reason.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from smbroker.dialects import mqtt
from smbroker.dialects.mqtt import Decoder, Malformed
from smbroker.dialects.mqtt import fields as f
from smbroker.dialects.mqtt.packets import Disconnect, Will
from smbroker.dialects.mqtt.reasons import (
    IMPLEMENTATION,
    KEEP_ALIVE_TIMEOUT,
    NOT_AUTHORIZED,
    QUOTA_EXCEEDED,
    SERVER_SHUTTING_DOWN,
)
from smbroker.model.errors import ProtocolError
from smbroker.model.message import Dialect, Origin
from smbroker.model.topic import Topic
from smbroker.server.access import certified
from smbroker.server.client import Client
from smbroker.server.lane import Lane
from smbroker.server.mqtt import connecting, publishing
from smbroker.server.mqtt.handlers import HANDLERS
from smbroker.server.mqtt.publishing import publish_again
from smbroker.server.mqtt.service import Mqtt
from smbroker.server.mqtt.session import MqttSession
from smbroker.server.sockets import FULL, handle_of
from smbroker.server.throttle import FLOOD

if TYPE_CHECKING:
    from smbroker.server.tcp import Connections

QOS_0, QOS_0_PUBLISH = 0xF6, f.PUBLISH << 4  # of a first byte: kind and QoS, and those of a publish with QoS 0
MAX_ITEMS = 1_000  # packets that are taken at once: those of one client must not keep others waiting
PARTING = 2.0  # seconds that a client may take to hear why it was ended


class MqttConnection(Client, asyncio.Protocol):
    __slots__ = (
        "_clock", "_decoder", "_ended", "_farewell", "_full", "_handle", "_heard", "_held", "_keep_alive", "_lane",
        "_later", "_pace", "_timer", "_told", "_transport", "aliases", "certified", "closing", "explains", "mqtt",
        "published", "received", "shared", "turn", "under_way", "unsure", "version", "will",
    )  # fmt: skip

    _transport: asyncio.Transport
    session: MqttSession | None

    def __init__(self, shared: "Connections", service: Mqtt) -> None:
        self.shared = shared
        self.mqtt = service
        self.turn = service.turn
        self._clock = shared.loop.time
        self._decoder = Decoder(shared.config.max_payload + connecting.HEAD_ROOM, most=MAX_ITEMS, server=True)
        self._held = 0
        self._lane: Lane | None = None  # for what is like the last read
        self._later: list[Any] | None = None  # packets that wait until the session is on disk
        self._full = False
        self.closing = False
        self._farewell = b""  # what is said last
        self._told = False  # that, or why there was no CONNECT: it should be heard
        self._ended = False  # nothing more is sent
        self._keep_alive = 0.0
        self._heard = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.received = 0  # bytes
        self._pace = shared.new_pace()
        # what CONNECT tells
        self.version = 0  # 0: no CONNECT yet
        self.will: Will | None = None
        self.explains = True  # refusals have a text
        # what is published
        self.aliases: dict[int, Topic] = {}
        self.published: Topic = b""  # the last topic of this read
        self.under_way = 0  # QoS 1 from the client, not acknowledged yet
        self.unsure: dict[int, MqttSession] = {}  # QoS 2 that is not on disk yet

    # --- the transport ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=FULL, low=0)
        self._handle = handle_of(transport)
        host, port = (transport.get_extra_info("peername") or ("", 0))[:2]
        super().__init__(Origin(Dialect.MQTT, host, port))
        self.certified = certified(transport)
        if not host:  # reset before it was accepted
            self.abort()
            return
        try:
            self.shared.enter(self)
        except ProtocolError as error:
            self.turn.reject(self, error)
            self.turn.begin()
            self.abort()
            return
        self.set_timer(self.mqtt.config.connect_timeout, self._connect_due)

    def stop_reading(self) -> None:
        if self._transport.is_reading():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """One of the reasons to pause is gone; there may be others."""
        if self._transport.is_closing() or self.shared.stopping:
            return
        self._heard = self._clock()
        if self._pace and (pause := self._pace.wait(0, self._heard)):
            self.shared.loop.call_later(pause, self.resume_reading)
        elif self.turn.behind and self.turn.commits:
            self.turn.commits.when_caught_up(self.resume_reading)
        else:
            self._transport.resume_reading()

    def set_timer(self, seconds: float, callback: Callable[[], None]) -> None:
        """There is one, for what is due next."""
        self.stop_timer()
        self._timer = self.shared.loop.call_later(seconds, callback)

    def stop_timer(self) -> None:
        if self._timer:
            self._timer.cancel()

    # --- reading ---

    def data_received(self, data: bytes) -> None:
        if self.closing:
            return
        if self._lane is not None and self._lane.take(data):
            return
        turn, size = self.turn, len(data)
        turn.begin_read(size)
        self.published = b""
        self._heard = self._clock()
        self.received += size
        if self._pace and (pause := self._pace.wait(size, self._heard)):
            self.stop_reading()
            self.shared.loop.call_later(pause, self.resume_reading)
        again = self._decoder.again
        if again and (size != again.size or not data.startswith(again.beginning)):
            again = None
        if again:
            publish_again(self, again, data)
        else:
            self._lane = None
            if self._decode(data):
                self.stop_reading()
                self.shared.loop.call_soon(self._go_on)
        if turn.behind or turn.throttle.on:
            self._let_catch_up(size)
        if not turn.scheduled:
            turn.end()
            if again and not self._pace:
                self._lane = publishing.lane(self, again)

    def _let_catch_up(self, size: int) -> None:
        """The log, or subscribers that a read of that size outruns: nothing more is read until they have."""
        turn = self.turn
        if self.closing or not self._transport.is_reading():
            return
        if turn.behind and turn.commits:
            self._transport.pause_reading()
            turn.commits.when_caught_up(self.resume_reading)
        elif size >= FLOOD and turn.throttle.outruns(self.published):
            self._transport.pause_reading()
            turn.throttle.when_there_is_room(self.published, self.resume_reading)

    def came(self, size: int) -> None:
        self._heard = self._clock()
        self.received += size

    def _decode(self, data: bytes) -> bool:
        """Whether there is more to decode, and others should have their turn first."""
        fault: Malformed | None = None
        try:
            items = self._decoder.feed(data)
        except Malformed as error:
            items, fault = error.items, error
        self.handle(items)
        if self.closing:
            return False
        if fault:
            self.fail(fault)
            return False
        return self._decoder.more

    def _go_on(self) -> None:
        """With the rest of a read that brought very many packets."""
        if self.closing:
            return
        turn = self.turn
        turn.begin()
        if turn.behind and turn.commits:
            turn.commits.when_caught_up(self._go_on)
        elif self._decode(b""):
            self.shared.loop.call_soon(self._go_on)
        else:
            self.resume_reading()
            if turn.behind or turn.throttle.on:
                self._let_catch_up(FLOOD)

    def handle(self, items: list[Any]) -> None:
        try:
            self._take(items)
            held = self._decoder.held
            if held != self._held:
                self._account(held)
        except Malformed as error:
            self.fail(error)
        except ProtocolError as error:
            self.fail(Malformed(error.code, error.text, IMPLEMENTATION))

    def _take(self, items: list[Any]) -> None:
        for at, item in enumerate(items):
            if self.closing:
                return
            if self._later is not None:
                self._later += items[at:]
                self._decoder.again = None  # what comes next waits as well
                return
            HANDLERS[type(item)](self, item)

    def hold(self) -> None:
        """What comes from here on waits."""
        self._later = []

    def held_back(self) -> list[Any]:
        """What has waited; from here on nothing does."""
        later, self._later = self._later or [], None
        return later

    def _account(self, held: int) -> None:
        self.shared.held += held - self._held
        self._held = held
        if held and self.shared.held > self.shared.config.tcp.input_bytes:
            raise Malformed("input_full", "too much unfinished input is waiting (tcp.input_bytes)", QUOTA_EXCEEDED)

    @property
    def unfinished(self) -> int:
        return self._held if self._transport.is_reading() else 0  # else it is the broker who does not listen

    def stalled(self) -> None:
        self.fail(Malformed("stalled", "a message that has begun does not go on (tcp.stall_timeout)", IMPLEMENTATION))
        self.abort()

    # --- writing ---

    @property
    def full(self) -> bool:
        return self._full

    @property
    def waiting(self) -> int:
        return super().waiting + self._transport.get_write_buffer_size()

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        if self.session:
            self.session.go_on()
            self.turn.begin()

    def flush(self) -> None:
        frames = self.frames
        if not frames:
            return
        if self._full and not self._keep_up():
            return
        data = frames[0] if len(frames) == 1 else b"".join(frames)
        frames.clear()
        self.written += len(data)
        if self._ended or self._transport.is_closing():
            return
        self._transport.write(data)
        self.turn.stats.bytes_out += len(data)

    def past(self) -> tuple[asyncio.Transport, int] | None:
        return (self._transport, self._handle) if self._handle >= 0 else None

    def _keep_up(self) -> bool:
        """A client that does not read: QoS 0 is left out once too much waits. Whether it stays.

        Every frame begins with a packet; one that begins with a QoS 0 publish has nothing but such, of equal length."""
        most, waits = self.shared.config.tcp.outbox_bytes, self._transport.get_write_buffer_size()
        self.turn.throttle.waits(self, waits)
        if waits <= most:
            return True
        left_out = sum(mqtt.packets_in(frame) for frame in self.frames if frame[0] & QOS_0 == QOS_0_PUBLISH)
        self.frames[:] = [frame for frame in self.frames if frame[0] & QOS_0 != QOS_0_PUBLISH]
        stats = self.turn.stats
        stats.undeliverable[Dialect.MQTT, "outbox_full"] += left_out
        stats.delivered[Dialect.MQTT] -= left_out
        self.dropped += left_out
        if waits <= 2 * most:
            return bool(self.frames)
        self.turn.reject(self, Malformed("outbox_full", "disconnected: it does not read", QUOTA_EXCEEDED))
        self._gone(self.will)
        self.abort()
        return False

    def say(self, packet: Any) -> None:
        data = self.fitting(packet)
        if data:
            self.turn.delivery.put(self, data)

    def fitting(self, packet: Any) -> bytes:
        """Its bytes, or none: "The Server MUST NOT send packets exceeding Maximum Packet Size" [MQTT-3.1.2-24]."""
        data: bytes = packet.encode(self.version)
        session = self.session
        if session is None or len(data) <= session.max_packet:
            return data
        packet.properties.pop(f.REASON_STRING, None)
        data = packet.encode(self.version)
        return data if len(data) <= session.max_packet else b""

    acknowledged = publishing.acknowledged
    unkept = publishing.unkept

    # --- why it ends ---

    def fail(self, error: Malformed) -> None:
        """ "the Server MUST … close the Network Connection" [MQTT-4.13.1-1], and may say why."""
        self.turn.reject(self, error)
        if self.version == 5:
            self._bid_farewell(Disconnect(error.reason))
        elif not self.version and (answer := connecting.refusal(error)):
            self.turn.delivery.put(self, answer)
            self._told = True
        self.leave(self.will)
        self.turn.begin()

    def end_unkept(self, text: str) -> None:
        """The client will send again what it was not told is safe; its will is published, for it was not its doing."""
        if not self.closing:
            self.fail(Malformed("log_unavailable", text, IMPLEMENTATION))

    def dismiss(self) -> None:
        """It was told why it may not come."""
        self._told = True
        self._shut()

    def end(self, reason: int, text: str) -> None:
        """Ended by the broker, for a reason that is no fault of the client's."""
        if self.version == 5:
            self._bid_farewell(Disconnect(reason, {f.REASON_STRING: text}))
        self.leave(self.will)

    def rights_changed(self) -> None:
        """Whoever may do nothing any more has to leave."""
        if self.session and self.grant.nothing:
            self.turn.stats.ended["not_allowed"] += 1
            self.end(NOT_AUTHORIZED, "nothing is allowed any more")

    def close(self) -> None:
        """The broker stops."""
        if not self.closing:
            if self.version == 5:
                self._farewell = self.fitting(Disconnect(SERVER_SHUTTING_DOWN))
            self._gone(None)
        self._told = False
        self._shut()

    def _connect_due(self) -> None:
        if not self.version:
            self.turn.stats.dropped["mqtt_connect_timeout"] += 1
            self.abort()

    def keep_alive(self, seconds: int) -> None:
        """0: the client may be silent for as long as it likes."""
        self.stop_timer()
        if seconds:
            self._keep_alive = seconds * 1.5
            self.set_timer(self._keep_alive, self._check_alive)

    def _check_alive(self) -> None:
        """ "If … the Server does not receive a Control Packet within one and a half times the Keep Alive" [3.1.2-22]"""
        self.turn.lanes.account()
        due = self._heard + self._keep_alive - self._clock()
        if not self._transport.is_reading():  # it is the broker who does not listen
            due = self._keep_alive
        if due > 0:
            self.set_timer(due, self._check_alive)
        elif not self.closing:
            self.turn.stats.ended["mqtt_keep_alive"] += 1
            self.end(KEEP_ALIVE_TIMEOUT, "nothing was heard for one and a half times the keep-alive")
            self.turn.begin()

    # --- how it ends ---

    def _bid_farewell(self, packet: Disconnect) -> None:
        self._farewell = self.fitting(packet)
        self._told = True

    def leave(self, will: Will | None) -> None:
        self._gone(will)
        self._shut()

    def _gone(self, will: Will | None) -> None:
        """Takes leave of the session, once."""
        session, self.session = self.session, None
        self.will = None
        if session:
            self.mqtt.closed(self, session, will)

    def _shut(self) -> None:
        self.closing = True
        if self.owed:
            return
        if self._farewell:  # the sender "MUST NOT send any more MQTT Control Packets" after it [MQTT-3.14.4-1]
            self.turn.delivery.put(self, self._farewell)
            self._farewell = b""
        self.flush()
        if self._told and not self._transport.is_closing() and self._transport.can_write_eof():
            self._part()
        else:
            self._transport.close()

    def _part(self) -> None:
        """The client was told why, and may still be sending: closed with its bytes unread, it would get a reset instead
        of the reason. So it is read, and not listened to, until it goes as well, or for a moment."""
        self._told = False
        self._ended = True
        self._handle = -1
        self._transport.write_eof()
        self._transport.resume_reading()
        self.set_timer(PARTING, self.abort)

    def paid(self) -> None:
        if self.closing and not self._ended:
            self._shut()

    def abort(self) -> None:
        self.closing = True
        self._transport.abort()

    def eof_received(self) -> bool:
        """The client has said all; it stays until it has what is owed to it."""
        if not self.closing:
            self._gone(self.will)
        self.closing = True
        self.flush()  # acknowledgements may be among it
        return self.owed > 0

    def connection_lost(self, _error: Exception | None) -> None:
        if not self.closing:
            self._gone(self.will)
        self.closing = True
        self.stop_timer()
        self._lane = None
        self.shared.held -= self._held
        self.shared.leave(self)
        self.frames.clear()
