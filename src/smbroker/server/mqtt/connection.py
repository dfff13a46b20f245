"""One MQTT connection: packets in, and what the standard says to each of them.

    NEW ──CONNECT──► OPEN ──DISCONNECT, an error, another connection with the same id──► closed

The first packet must be CONNECT, and must come soon; a second one is an error. Which packets a client may
send in OPEN is the table HANDLERS. Whatever else it sends ends the connection: MQTT 5 is told the reason.
"""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from itertools import compress
from operator import not_
from typing import TYPE_CHECKING, Any, cast

from smbroker.dialects import mqtt
from smbroker.dialects.mqtt import Acks, Decoder, Malformed, Mixed, Numbered, One, Run
from smbroker.dialects.mqtt import fields as f
from smbroker.dialects.mqtt.packets import (
    Ack,
    Connack,
    Connect,
    Disconnect,
    Ping,
    Publish,
    Results,
    Subscribe,
    Topics,
    Unsubscribe,
    Will,
)
from smbroker.dialects.mqtt.reasons import (
    BAD_AUTHENTICATION_METHOD,
    BAD_USER_OR_PASSWORD,
    CLIENT_ID_NOT_VALID,
    DISCONNECT_WITH_WILL,
    IMPLEMENTATION,
    KEEP_ALIVE_TIMEOUT,
    NO_SUBSCRIPTION_EXISTED,
    NOT_AUTHORIZED,
    PACKET_ID_NOT_FOUND,
    PACKET_TOO_LARGE,
    PROTOCOL_ERROR,
    QUOTA_EXCEEDED,
    RECEIVE_MAXIMUM_EXCEEDED,
    RETURN_CODES,
    SERVER_BUSY,
    SERVER_SHUTTING_DOWN,
    TOPIC_ALIAS_INVALID,
    UNSPECIFIED,
    UNSUPPORTED_VERSION,
)
from smbroker.model.errors import ProtocolError, Refused, SmbError
from smbroker.model.message import Dialect, Extra, Kind, Origin
from smbroker.model.rights import Identity
from smbroker.model.topic import Topic
from smbroker.server.access import certified
from smbroker.server.client import Client
from smbroker.server.console import printable
from smbroker.server.mqtt.retaining import Retaining
from smbroker.server.mqtt.service import Mqtt
from smbroker.server.mqtt.session import ACKNOWLEDGED, MqttSession
from smbroker.server.mqtt.subscriptions import Subscription
from smbroker.server.sockets import FULL

if TYPE_CHECKING:
    from smbroker.server.tcp import Connections

PLAIN_EXTRAS = {(qos, retain): Extra(qos, retain) for qos in range(3) for retain in (False, True)}
PLAIN_EXTRAS[1, False] = ACKNOWLEDGED
PUBACK = f.PUBACK << 4
DOLLAR = ord("$")
PUBREC = f.PUBREC << 4
PINGRESP = Ping(f.PINGRESP).encode()
QOS_0, QOS_0_PUBLISH = 0xF6, f.PUBLISH << 4  # of a first byte: kind and QoS, and those of a publish with QoS 0
MAX_ITEMS = 1_000  # packets that are taken at once: those of one client must not keep others waiting
PARTING = 2.0  # seconds that a client may take to hear why it was ended
HEAD_ROOM = 65_535 + 4_096  # what a packet may have besides its payload: topic, properties


class MqttConnection(Client, asyncio.Protocol):
    __slots__ = (
        "_aliases", "_clock", "_closing", "_decoder", "_ended", "_explains", "_farewell", "_full", "_heard", "_held",
        "_keep_alive", "_later", "_pace", "_shared", "_timer", "_told", "_transport", "_turn", "_unsure", "_user",
        "_will", "mqtt", "received", "under_way", "version",
    )  # fmt: skip

    _transport: asyncio.Transport

    def __init__(self, shared: "Connections", service: Mqtt) -> None:
        self._shared = shared
        self.mqtt = service
        self._turn = service.turn
        self._clock = shared.loop.time
        self.version = 0  # 0: no CONNECT yet
        self._decoder = Decoder(shared.config.max_payload + HEAD_ROOM, most=MAX_ITEMS, server=True)
        self._aliases: dict[int, Topic] = {}
        self.under_way = 0  # QoS 1 from the client, not acknowledged yet
        self._unsure: dict[int, MqttSession] = {}  # QoS 2 that is not on disk yet
        self._held = 0
        self._full = False
        self._closing = False
        self._farewell = b""  # what is said last
        self._told = False  # that, or why there was no CONNECT: it should be heard
        self._ended = False  # nothing more is sent
        self._explains = True  # refusals have a text
        self._will: Will | None = None
        self._later: list[Any] | None = None  # packets that wait until the session is on disk
        self._keep_alive = 0.0
        self._heard = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.received = 0  # bytes
        self._pace = shared.new_pace()

    # --- the transport ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=FULL, low=0)
        host, port = (transport.get_extra_info("peername") or ("", 0))[:2]
        super().__init__(Origin(Dialect.MQTT, host, port))
        self._user = certified(transport)
        shared = self._shared
        if not host:  # reset before it was accepted
            self.abort()
            return
        try:
            shared.enter(self)
        except ProtocolError as error:
            self.mqtt.turn.reject(self, error)
            self.mqtt.turn.begin()
            self.abort()
            return
        self._timer = shared.loop.call_later(self.mqtt.config.connect_timeout, self._connect_due)

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        turn, size = self._turn, len(data)
        turn.begin_read(size)
        self._heard = self._clock()
        self.received += size
        if self._pace and (pause := self._pace.wait(size, self._heard)):
            self.stop_reading()
            self._shared.loop.call_later(pause, self._resume_reading)
        commits = turn.commits
        if commits and commits.behind and self._transport.is_reading():
            self._transport.pause_reading()
            commits.when_caught_up(self._resume_reading)
        again = self._decoder.again
        if again and size == again.size and data.startswith(again.beginning):
            self._publish_again(again, data)
        elif self._decode(data):
            self.stop_reading()
            self._shared.loop.call_soon(self._go_on)
        if not turn.scheduled:
            turn.end()

    def _decode(self, data: bytes) -> bool:
        """Whether there is more to decode, and others should have their turn first."""
        fault: Malformed | None = None
        try:
            items = self._decoder.feed(data)
        except Malformed as error:
            items, fault = error.items, error
        self._handle(items)
        if self._closing:
            return False
        if fault:
            self._fail(fault)
            return False
        return self._decoder.more

    def _go_on(self) -> None:
        """With the rest of a read that brought very many packets."""
        if self._closing:
            return
        turn = self.mqtt.turn
        turn.begin()
        if turn.behind and turn.commits:
            turn.commits.when_caught_up(self._go_on)
        elif self._decode(b""):
            self._shared.loop.call_soon(self._go_on)
        else:
            self._resume_reading()

    def _handle(self, items: list[Any]) -> None:
        try:
            self._take(items)
            held = self._decoder.held
            if held != self._held:
                self._account(held)
        except Malformed as error:
            self._fail(error)
        except ProtocolError as error:
            self._fail(Malformed(error.code, error.text, IMPLEMENTATION))

    def _take(self, items: list[Any]) -> None:
        for at, item in enumerate(items):
            if self._closing:
                return
            if self._later is not None:
                self._later += items[at:]
                self._decoder.again = None  # what comes next waits as well
                return
            HANDLERS[type(item)](self, item)

    def _account(self, held: int) -> None:
        self._shared.held += held - self._held
        self._held = held
        if held and self._shared.held > self._shared.config.tcp.input_bytes:
            raise Malformed("input_full", "too much unfinished input is waiting (tcp.input_bytes)", QUOTA_EXCEEDED)

    @property
    def unfinished(self) -> int:
        return self._held

    def stalled(self) -> None:
        self._fail(Malformed("stalled", "a message that has begun does not go on (tcp.stall_timeout)", IMPLEMENTATION))
        self.abort()

    def stop_reading(self) -> None:
        if self._transport.is_reading():
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()

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
        session = self._session
        if session:
            session.pump()
            if session.retaining:
                session.retaining.wake()
            for share in session.sharing:
                share.wake()
            if session.replay and not session.replay.live:
                session.replay.wake()
            self.mqtt.turn.begin()

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
        self._turn.stats.bytes_out += len(data)

    def _keep_up(self) -> bool:
        """A client that does not read: QoS 0 is left out once too much waits. Whether it stays.

        Every frame begins with a packet; one that begins with a QoS 0 publish has nothing but such, of equal length."""
        most, waits = self._shared.config.tcp.outbox_bytes, self._transport.get_write_buffer_size()
        if waits <= most:
            return True
        left_out = sum(mqtt.packets_in(frame) for frame in self.frames if frame[0] & QOS_0 == QOS_0_PUBLISH)
        self.frames[:] = [frame for frame in self.frames if frame[0] & QOS_0 != QOS_0_PUBLISH]
        stats = self.mqtt.turn.stats
        stats.undeliverable[Dialect.MQTT, "outbox_full"] += left_out
        stats.delivered[Dialect.MQTT] -= left_out
        self.dropped += left_out
        if waits <= 2 * most:
            return bool(self.frames)
        self.mqtt.turn.reject(self, Malformed("outbox_full", "disconnected: it does not read", QUOTA_EXCEEDED))
        self._gone(self._will)
        self.abort()
        return False

    def close(self) -> None:
        """The broker stops."""
        if not self._closing:
            if self.version == 5:
                self._farewell = self._fitting(Disconnect(SERVER_SHUTTING_DOWN))
            self._gone(None)
        self._told = False
        self._shut()

    def _shut(self) -> None:
        self._closing = True
        if self.owed:
            return
        if self._farewell:  # the sender "MUST NOT send any more MQTT Control Packets" after it [MQTT-3.14.4-1]
            self.mqtt.turn.delivery.put(self, self._farewell)
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
        self._transport.write_eof()
        self._resume_reading()
        if self._timer:
            self._timer.cancel()
        self._timer = self._shared.loop.call_later(PARTING, self.abort)

    def paid(self) -> None:
        if self._closing:
            self._shut()

    def abort(self) -> None:
        self._closing = True
        self._transport.abort()

    def eof_received(self) -> bool:
        """The client has said all; it stays until it has what is owed to it."""
        if not self._closing:
            self._gone(self._will)
        self._closing = True
        return self.owed > 0

    def connection_lost(self, _error: Exception | None) -> None:
        if not self._closing:
            self._gone(self._will)
        self._closing = True
        if self._timer:
            self._timer.cancel()
        self._shared.held -= self._held
        self._shared.leave(self)
        self.frames.clear()

    # --- ends ---

    @property
    def _session(self) -> MqttSession | None:
        return cast(MqttSession | None, self.session)

    def _gone(self, will: Will | None) -> None:
        """Takes leave of the session, once."""
        session, self.session = self._session, None
        self._will = None
        if session:
            self.mqtt.closed(self, session, will)

    def _fail(self, error: Malformed) -> None:
        """ "the Server MUST … close the Network Connection" [MQTT-4.13.1-1], and may say why."""
        turn = self.mqtt.turn
        turn.reject(self, error)
        if self.version == 5:
            self._bid_farewell(Disconnect(error.reason))
        elif not self.version:
            self._refuse_connect(error)
        self._gone(self._will)
        self._shut()
        turn.begin()

    def _refuse_connect(self, error: Malformed) -> None:
        """ "The Server MAY send a CONNACK packet with a Reason Code of 0x80 or greater before closing" (3.1.4)"""
        put = self.mqtt.turn.delivery.put
        if error.reason == UNSUPPORTED_VERSION:
            put(self, Connack(False, 1).encode(4))
        elif error.version == 5:
            put(self, Connack(False, error.reason).encode(5))
        else:
            return
        self._told = True

    def end(self, reason: int, text: str) -> None:
        """Ended by the broker, for a reason that is no fault of the client's."""
        if self.version == 5:
            self._bid_farewell(Disconnect(reason, {f.REASON_STRING: text}))
        self._gone(self._will)
        self._shut()

    def rights_changed(self) -> None:
        """Whoever may do nothing any more has to leave."""
        if self.session and self.grant.nothing:
            self.mqtt.turn.stats.ended["not_allowed"] += 1
            self.end(NOT_AUTHORIZED, "nothing is allowed any more")

    def _bid_farewell(self, packet: Disconnect) -> None:
        self._farewell = self._fitting(packet)
        self._told = True

    def _say(self, packet: Any) -> None:
        data = self._fitting(packet)
        if data:
            self.mqtt.turn.delivery.put(self, data)

    def _fitting(self, packet: Any) -> bytes:
        """Its bytes, or none: "The Server MUST NOT send packets exceeding Maximum Packet Size" [MQTT-3.1.2-24]."""
        data: bytes = packet.encode(self.version)
        session = self._session
        if session is None or len(data) <= session.max_packet:
            return data
        packet.properties.pop(f.REASON_STRING, None)
        data = packet.encode(self.version)
        return data if len(data) <= session.max_packet else b""

    def _connect_due(self) -> None:
        if not self.version:
            self.mqtt.turn.stats.dropped["mqtt_connect_timeout"] += 1
            self.abort()

    def _check_alive(self) -> None:
        """ "If … the Server does not receive a Control Packet within one and a half times the Keep Alive" [3.1.2-22]"""
        due = self._heard + self._keep_alive - self._shared.loop.time()
        if due > 0:
            self._timer = self._shared.loop.call_later(due, self._check_alive)
        elif not self._closing:
            self.mqtt.turn.stats.ended["mqtt_keep_alive"] += 1
            self.end(KEEP_ALIVE_TIMEOUT, "nothing was heard for one and a half times the keep-alive")
            self.mqtt.turn.begin()

    # --- CONNECT ---

    def _connect(self, packet: Connect) -> None:
        version = packet.version
        if packet.properties.get(f.AUTHENTICATION_METHOD) is not None:
            self._deny(version, BAD_AUTHENTICATION_METHOD, Refused("mqtt_refused", "no extended authentication here"))
            return
        assigned = ""
        if not packet.client:
            if version == 3 or (version == 4 and not packet.clean):  # [MQTT-3.1.3-8]
                self._deny(version, CLIENT_ID_NOT_VALID, Refused("mqtt_refused", "an empty client id"))
                return
            packet.client = assigned = self.mqtt.new_id()
        self.origin = Origin(Dialect.MQTT, self.origin.host, self.origin.port, packet.client)
        access = self.mqtt.turn.access
        if access.on and packet.user is not None and (packet.password is not None or not self._user):
            self._later = []
            self.stop_reading()
            if self._timer:
                self._timer.cancel()  # from here on it is the broker who takes long
            who = Identity(Dialect.MQTT, self.origin.host, packet.user, packet.client)
            access.check(who, packet.password or b"", partial(self._known, packet, assigned))
            return
        self.grant = access.grant(Dialect.MQTT, self.origin.host, packet.client, self._user)
        self._admit(packet, assigned)

    def _known(self, packet: Connect, assigned: str, outcome: Identity | Refused) -> None:
        """The password was checked: what came meanwhile is taken now."""
        later, self._later = self._later or [], None
        packet.password = None
        if self._closing:
            return
        self._resume_reading()
        if isinstance(outcome, Refused):
            reason = BAD_USER_OR_PASSWORD if outcome.code == "bad_password" else SERVER_BUSY
            self._deny(packet.version, reason, outcome)
        else:
            self.grant = self.mqtt.turn.access.rights.grant(outcome)
            self._admit(packet, assigned)
            if self._later is None:
                self._handle(later)
            else:
                self._later += later
        self.mqtt.turn.begin()

    def _admit(self, packet: Connect, assigned: str) -> None:
        version, will = packet.version, packet.will
        if self.grant.nothing:
            self._deny(version, NOT_AUTHORIZED, Refused("not_allowed", "nothing is allowed"))
            return
        if will and not self.may_publish(will.topic):
            self._deny(version, NOT_AUTHORIZED, Refused("not_allowed", "a will to a topic that is not allowed"))
            return
        try:
            session, present = self.mqtt.open(self, packet)
        except Malformed as error:
            self._deny(version, error.reason, error)
            return
        self.version = version
        self.session = session
        self._will = packet.will
        self._explains = packet.properties.get(f.REQUEST_PROBLEM, 1) == 1
        keep_alive = self._kept_alive(packet)
        connack = Connack(present and version > 3, 0, self._offered(packet, session, assigned, keep_alive))
        if present:
            self._opened(session, connack)
        else:
            self._later = []
            self.mqtt.when_kept(session, partial(self._opened, session, connack))

    def _opened(self, session: MqttSession, connack: Connack) -> None:
        """A session that lasts is on disk before its client hears that it is there."""
        if self._closing or self.session is not session:
            return
        answer = self._fitting(connack)
        if not answer:
            self._will = None
            text = "a CONNACK is larger than the client allows packets to be"
            self._fail(Malformed("mqtt_packet_too_large", text, PACKET_TOO_LARGE))
            return
        self.mqtt.turn.delivery.put(self, answer)
        self.mqtt.attach(session)
        later, self._later = self._later, None
        self.mqtt.turn.begin()
        if later:
            self._handle(later)

    def _kept_alive(self, packet: Connect) -> int:
        most = self.mqtt.config.max_keep_alive
        keep_alive = min(packet.keep_alive, most) if packet.version == 5 and most else packet.keep_alive
        if self._timer:
            self._timer.cancel()
        if keep_alive:
            self._keep_alive = keep_alive * 1.5
            self._timer = self._shared.loop.call_later(self._keep_alive, self._check_alive)
        return keep_alive

    def _offered(self, packet: Connect, session: MqttSession, assigned: str, keep_alive: int) -> f.Properties:
        if self.version != 5:
            return {}
        config = self.mqtt.config
        properties: f.Properties = {
            f.RECEIVE_MAXIMUM: config.receive_maximum,
            f.MAXIMUM_PACKET_SIZE: self._shared.config.max_payload + HEAD_ROOM,
            f.TOPIC_ALIAS_MAXIMUM: config.topic_alias_maximum,
        }
        if assigned:
            properties[f.ASSIGNED_CLIENT_ID] = assigned
        if keep_alive != packet.keep_alive:
            properties[f.SERVER_KEEP_ALIVE] = keep_alive
        if session.expiry != packet.properties.get(f.SESSION_EXPIRY, 0):
            properties[f.SESSION_EXPIRY] = session.expiry
        return properties

    def _deny(self, version: int, reason: int, error: SmbError) -> None:
        self.mqtt.turn.reject(self, error)
        code = reason if version == 5 else RETURN_CODES.get(reason, 3)
        self.mqtt.turn.delivery.put(self, Connack(False, code).encode(version))
        self._told = True
        self._shut()

    # --- publishing ---

    def may_publish(self, topic: Topic) -> bool:
        grant = self.grant
        return topic[:1] != b"$" and (not grant.limited or grant.publishes[topic])

    def refused(self, topic: Topic, messages: int) -> None:
        code = "topic_reserved" if topic.startswith(b"$") else "not_allowed"
        self.mqtt.turn.stats.dropped[code] += messages
        text = f"mqtt {self.origin.source}: not allowed to publish to {printable(topic, 100)}"
        self.mqtt.turn.console.warn(code, text)

    def _run(self, run: Run) -> None:
        if not self.may_publish(run.topic):
            self.refused(run.topic, len(run.payloads))
            return
        if len(run.payloads[0]) > self._shared.config.max_payload:
            raise Malformed("payload_too_long", "a payload longer than max_payload", 0x95)
        self.mqtt.turn.publish_run(self, run.topic, run.payloads, 5 if run.version == 5 else 4, run.wire)

    def _publish_again(self, one: One, data: bytes) -> None:
        """A read that is one plain publish like the last one: most that small devices send."""
        if self.may_publish(one.topic):
            self._turn.publish_one(self, one.topic, data[len(one.beginning) :], one.version, data)
        else:
            self.refused(one.topic, 1)

    def _mixed(self, some: Mixed) -> None:
        topics, payloads, grant = some.topics, some.payloads, self.grant
        reserved = any(topic[0] == DOLLAR for topic in topics)
        if reserved or (grant.limited and not all(map(grant.publishes.__getitem__, topics))):
            allowed = [self.may_publish(topic) for topic in topics]
            for topic in compress(topics, map(not_, allowed)):
                self.refused(topic, 1)
            topics, payloads = list(compress(topics, allowed)), list(compress(payloads, allowed))
        if max(map(len, payloads), default=0) > self._shared.config.max_payload:
            raise Malformed("payload_too_long", "a payload longer than max_payload", 0x95)
        self.mqtt.turn.publish_mixed(self, topics, payloads)

    def _numbered(self, run: Numbered) -> None:
        if not self.may_publish(run.topic):
            for number, payload in zip(run.numbers, run.payloads, strict=True):
                self._publish(Publish(run.topic, payload, 1, packet_id=number))
            return
        session = self._session
        assert session
        self.under_way += len(run.numbers)
        if self.version == 5 and self.under_way + len(session.inbound) > self.mqtt.config.receive_maximum:
            self._exceeds(0)
        try:
            self.mqtt.turn.publish_numbered(self, run.topic, run.payloads, PLAIN_EXTRAS[1, False], run.acks)
        except Refused as error:
            self._not_taken(run.acks, error)

    def acknowledged(self, ack: bytes) -> None:
        if ack[0] == PUBACK:
            self.under_way -= len(ack) // 4
        elif ack[0] == PUBREC:
            self._is_sure(int.from_bytes(ack[2:4], "big"))

    def _is_sure(self, number: int) -> None:
        """A message with QoS 2 is on disk, or never will be."""
        session = self._unsure.pop(number, None)
        if session:
            session.unsure.discard(number)
            session.changed = True
            if session.connection is None:
                self.mqtt.changed(session)

    def _acks(self, acks: Acks) -> None:
        session = self._session
        assert session
        session.acknowledged(acks.numbers)

    def _publish(self, packet: Publish) -> None:
        topic = self._resolved(packet)
        qos, number = packet.qos, packet.packet_id
        session = self._session
        assert session
        if qos and self.under_way + len(session.inbound) >= self.mqtt.config.receive_maximum:
            self._exceeds(number)
        ack = b"" if not qos else Ack(f.PUBACK if qos == 1 else f.PUBREC, number).encode(self.version)
        if qos == 2 and number in session.inbound:  # "MUST NOT cause duplicate messages" [MQTT-4.3.3-10]
            self.mqtt.turn.acknowledge(self, ack)
            return
        if not self.may_publish(topic):
            self.refused(topic, 1)
            if qos:
                reason = NOT_AUTHORIZED if self.version == 5 else 0
                self._say(Ack(f.PUBACK if qos == 1 else f.PUBREC, number, reason))
            return
        key = (qos, packet.retain)
        properties = packet.properties
        extra = Extra(*key, mqtt.to_pairs(properties, time.time())) if properties else PLAIN_EXTRAS[key]
        note = None
        if qos == 2:
            session.inbound.add(number)
            session.unsure.add(number)
            self._unsure[number] = session
            session.changed = True
            note = self._note(session, b"+", number)
        try:
            self.mqtt.turn.publish_with(self, (topic, packet.payload, Kind.BYTES, ack), extra, note)
            self.under_way += qos == 1
        except Refused as error:
            session.inbound.discard(number)
            self._is_sure(number)
            self._not_taken(ack, error)

    def _not_taken(self, ack: bytes, error: Refused) -> None:
        reply = self.unkept(ack, error.text)
        if not ack or not reply:
            raise Malformed(error.code, error.text, IMPLEMENTATION) from error
        self.mqtt.turn.reject(self, error)
        self.mqtt.turn.delivery.put(self, reply)

    def unkept(self, ack: bytes, text: str) -> bytes:
        """MQTT 5 is told that the message was not kept; older versions are closed, so that it comes again."""
        if self.version != 5 or not ack:
            return b""
        kind = ack[0] >> 4
        if kind not in (f.PUBACK, f.PUBREC):
            return b""
        self.acknowledged(ack)
        numbers = [int.from_bytes(ack[at + 2 : at + 4], "big") for at in range(0, len(ack), 4)]
        if kind == f.PUBREC and self._session:
            self._session.inbound.difference_update(numbers)
        about = {f.REASON_STRING: text} if self._explains else {}  # [MQTT-3.1.2-29]
        return b"".join(self._fitting(Ack(kind, number, IMPLEMENTATION, about)) for number in numbers)

    def _exceeds(self, number: int) -> None:
        """Reason 0x93 [MQTT-3.3.4-9]; older versions know no such limit, so there QoS 1 is not counted."""
        session = self._session
        assert session
        if self.version != 5 and len(session.inbound) < self.mqtt.config.receive_maximum:
            return
        if number in session.inbound:
            return
        raise Malformed("mqtt_receive_maximum", "more messages under way than allowed", RECEIVE_MAXIMUM_EXCEEDED)

    def _resolved(self, packet: Publish) -> Topic:
        """The topic, from its alias if there is one."""
        alias = packet.properties.pop(f.TOPIC_ALIAS, None)
        if f.SUBSCRIPTION_ID in packet.properties:  # "sent from a Client … MUST NOT contain" [MQTT-3.3.4-6]
            raise Malformed("mqtt_protocol", "a subscription identifier from a client", PROTOCOL_ERROR)
        if alias is None:
            return packet.topic
        if alias > self.mqtt.config.topic_alias_maximum:
            raise Malformed("mqtt_alias", f"topic alias {alias} is above the maximum", TOPIC_ALIAS_INVALID)
        if packet.topic:
            self._aliases[alias] = packet.topic
        elif alias not in self._aliases:
            raise Malformed("mqtt_alias", f"topic alias {alias} is not known", PROTOCOL_ERROR)
        return self._aliases[alias]

    def _note(self, session: MqttSession, sign: bytes, number: int) -> tuple[str, bytes] | None:
        """What must survive with the messages: identifiers of QoS 2, of sessions that last."""
        if not session.lasting or not self.mqtt.turn.commits:
            return None
        return "mqtt", sign + b"%d " % number + session.name.encode()

    # --- acknowledgements ---

    def _ack(self, packet: Ack) -> None:
        session = self._session
        assert session
        ACKS[packet.kind](self, session, packet)

    def _puback(self, session: MqttSession, packet: Ack) -> None:
        session.acknowledged([packet.packet_id])

    def _pubrec(self, session: MqttSession, packet: Ack) -> None:
        number = packet.packet_id
        if packet.reason >= 0x80:
            session.acknowledged([number], 2)
            return
        flight = session.received(number)
        reason = PACKET_ID_NOT_FOUND if flight is None and self.version == 5 else 0
        release = Ack(f.PUBREL, number, reason).encode(self.version)
        if flight and flight.item.offset >= 0 and session.lasting and self.mqtt.turn.commits:
            note = self._note(session, b">", flight.item.offset)
            self.mqtt.turn.acknowledge(self, release, note)
        else:
            self.mqtt.turn.delivery.put(self, release)

    def _pubrel(self, session: MqttSession, packet: Ack) -> None:
        number = packet.packet_id
        if number not in session.inbound:
            reason = PACKET_ID_NOT_FOUND if self.version == 5 else 0
            self.mqtt.turn.acknowledge(self, Ack(f.PUBCOMP, number, reason).encode(self.version))
            return
        session.inbound.discard(number)
        session.changed = True
        note = self._note(session, b"-", number)
        self.mqtt.turn.acknowledge(self, Ack(f.PUBCOMP, number).encode(self.version), note)

    def _pubcomp(self, session: MqttSession, packet: Ack) -> None:
        flight = session.flight(packet.packet_id)
        if flight and not flight.received:  # "unacknowledged until it has received … PUBREC" [MQTT-4.3.3-4]
            raise Malformed("mqtt_protocol", "PUBCOMP before PUBREC", PROTOCOL_ERROR)
        session.acknowledged((packet.packet_id,), 2)

    # --- subscriptions ---

    def _subscribe(self, packet: Subscribe) -> None:
        session, service = self._session, self.mqtt
        assert session
        service.turn.settle()
        identifier = packet.properties.get(f.SUBSCRIPTION_ID, 0)
        wanted = dict(packet.properties.get(f.USER, ())).get("smb-replay")
        answer = Results(f.SUBACK, packet.packet_id, [])
        made: list[Subscription] = []  # those whose retained messages are wanted
        for options in packet.topics:
            try:
                self._check_allowed(options.filter)
                one = self._asked(options, identifier)
                self._check_rights(one, wanted)
                new = service.subscribe(session, one)
                if wanted is not None:
                    service.replay(session, one, wanted)
            except Malformed as error:
                if error.reason == PROTOCOL_ERROR:
                    raise
                service.turn.reject(self, error)
                if self._explains:  # [MQTT-3.1.2-29]
                    answer.properties[f.REASON_STRING] = error.text[:1_000]
                answer.codes.append(error.reason if self.version == 5 else 0x80)
                continue
            answer.codes.append(one.qos)
            if not one.share and wanted is None and (options.handling == 0 or (options.handling == 1 and new)):
                made.append(one)
        service.when_kept(session, partial(self._subscribed, session, answer, made))

    def _check_allowed(self, raw: bytes) -> None:
        if raw.decode() in self.mqtt.config.no_subscribe:
            raise Malformed("mqtt_no_subscribe", "nobody may subscribe to this (mqtt.no_subscribe)", UNSPECIFIED)

    def _check_rights(self, one: Subscription, wanted: str | None) -> None:
        grant = self.grant
        try:
            grant.check_subscribe(one.pattern)
        except Refused as error:
            raise Malformed(error.code, error.text, NOT_AUTHORIZED) from error
        if wanted is not None and grant.limited and not grant.replays.permit.meets(one.pattern):
            raise Malformed("not_allowed", "not allowed to replay this", NOT_AUTHORIZED)

    @staticmethod
    def _asked(options: Topics, identifier: int) -> Subscription:
        share, pattern = mqtt.decode_filter(options.filter)
        if share and options.no_local:
            raise Malformed("mqtt_protocol", "no-local with a shared subscription", PROTOCOL_ERROR)
        return Subscription.asked(pattern, share, options, identifier)

    def _subscribed(self, session: MqttSession, answer: Results, made: list[Subscription]) -> None:
        if self._closing or self.session is not session:
            return
        self._say(answer)
        if made:
            session.retaining = session.retaining or Retaining(session, self)
            session.retaining.begin(made)
        self.mqtt.turn.begin()

    def _unsubscribe(self, packet: Unsubscribe) -> None:
        session = self._session
        assert session
        self.mqtt.turn.settle()
        codes = []
        for raw in packet.filters:
            try:
                gone = self.mqtt.unsubscribe(session, *mqtt.decode_filter(raw))
                codes.append(0 if gone else NO_SUBSCRIPTION_EXISTED)
            except Malformed as error:
                if error.reason == PROTOCOL_ERROR:
                    raise
                codes.append(error.reason)
        self._say(Results(f.UNSUBACK, packet.packet_id, codes))

    # --- the rest ---

    def _ping(self, packet: Ping) -> None:
        if packet.kind != f.PINGREQ:
            self._not_for_us(packet)
        self.mqtt.turn.delivery.put(self, PINGRESP)

    def _disconnect(self, packet: Disconnect) -> None:
        session = self._session
        assert session
        expiry = packet.properties.get(f.SESSION_EXPIRY)
        if expiry is not None:
            if expiry and not session.expiry:
                raise Malformed("mqtt_protocol", "a session that ends cannot be prolonged", PROTOCOL_ERROR)
            session.expiry = self.mqtt.capped(expiry)
        self._gone(self._will if packet.reason == DISCONNECT_WITH_WILL else None)
        self._shut()

    def _not_for_us(self, packet: object) -> None:
        raise Malformed("mqtt_protocol", f"{type(packet).__name__} is not for a client to send", PROTOCOL_ERROR)


HANDLERS: dict[type, Callable[[MqttConnection, Any], None]] = {
    Run: MqttConnection._run,
    Mixed: MqttConnection._mixed,
    Numbered: MqttConnection._numbered,
    Acks: MqttConnection._acks,
    Publish: MqttConnection._publish,
    Ack: MqttConnection._ack,
    Subscribe: MqttConnection._subscribe,
    Unsubscribe: MqttConnection._unsubscribe,
    Ping: MqttConnection._ping,
    Disconnect: MqttConnection._disconnect,
    Connect: MqttConnection._connect,
}
for _kind in (Connack, Results, mqtt.Auth):
    HANDLERS[_kind] = MqttConnection._not_for_us
ACKS: dict[int, Callable[[MqttConnection, MqttSession, Ack], None]] = {
    f.PUBACK: MqttConnection._puback,
    f.PUBREC: MqttConnection._pubrec,
    f.PUBREL: MqttConnection._pubrel,
    f.PUBCOMP: MqttConnection._pubcomp,
}
