"""SUBSCRIBE and UNSUBSCRIBE: which of the filters a client gets, and the answer, once what lasts is on disk."""

from functools import partial
from typing import TYPE_CHECKING

from smbroker.dialects import mqtt
from smbroker.dialects.mqtt import Malformed
from smbroker.dialects.mqtt import fields as f
from smbroker.dialects.mqtt.packets import Results, Subscribe, Topics, Unsubscribe
from smbroker.dialects.mqtt.reasons import NO_SUBSCRIPTION_EXISTED, NOT_AUTHORIZED, PROTOCOL_ERROR, UNSPECIFIED
from smbroker.model.errors import Refused
from smbroker.model.grant import Grant
from smbroker.server.mqtt import going_back
from smbroker.server.mqtt.retaining import Retaining
from smbroker.server.mqtt.session import MqttSession
from smbroker.server.mqtt.subscriptions import Subscription

if TYPE_CHECKING:
    from smbroker.server.mqtt.connection import MqttConnection


def subscribe(connection: "MqttConnection", packet: Subscribe) -> None:
    session, service = connection.session, connection.mqtt
    assert session
    service.turn.settle()
    identifier = packet.properties.get(f.SUBSCRIPTION_ID, 0)
    wanted = dict(packet.properties.get(f.USER, ())).get("smb-replay")
    answer = Results(f.SUBACK, packet.packet_id, [])
    made: list[Subscription] = []  # those whose retained messages are wanted
    for options in packet.topics:
        try:
            _check_allowed(options.filter, service.config.no_subscribe)
            one = _asked(options, identifier)
            _check_rights(connection.grant, one, wanted)
            if wanted is not None:
                going_back.check(service, session, one, wanted)
            new = service.subscribe(session, one)
            if wanted is not None:
                going_back.go_back(service, session, one, wanted)
        except Malformed as error:
            if error.reason == PROTOCOL_ERROR:
                raise
            service.turn.reject(connection, error)
            if connection.explains:  # [MQTT-3.1.2-29]
                answer.properties[f.REASON_STRING] = error.text[:1_000]
            answer.codes.append(error.reason if connection.version == 5 else 0x80)
            continue
        answer.codes.append(one.qos)
        if not one.share and wanted is None and (options.handling == 0 or (options.handling == 1 and new)):
            made.append(one)
    service.when_kept(session, partial(_answer, connection, session, answer, made))


def _check_allowed(raw: bytes, nobody: tuple[str, ...]) -> None:
    if raw.decode() in nobody:
        raise Malformed("mqtt_no_subscribe", "nobody may subscribe to this (mqtt.no_subscribe)", UNSPECIFIED)


def _check_rights(grant: Grant, one: Subscription, wanted: str | None) -> None:
    try:
        grant.check_subscribe(one.pattern)
    except Refused as error:
        raise Malformed(error.code, error.text, NOT_AUTHORIZED) from error
    if wanted is not None and grant.limited and not grant.replays.permit.meets(one.pattern):
        raise Malformed("not_allowed", "not allowed to replay this", NOT_AUTHORIZED)


def _asked(options: Topics, identifier: int) -> Subscription:
    share, pattern = mqtt.decode_filter(options.filter)
    if share and options.no_local:
        raise Malformed("mqtt_protocol", "no-local with a shared subscription", PROTOCOL_ERROR)
    return Subscription.asked(pattern, share, options, identifier)


def _answer(connection: "MqttConnection", session: MqttSession, answer: Results, made: list[Subscription]) -> None:
    if connection.closing or connection.session is not session:
        return
    connection.say(answer)
    if made:
        session.retaining = session.retaining or Retaining(session, connection)
        session.retaining.begin(made)
    connection.turn.begin()


def unsubscribe(connection: "MqttConnection", packet: Unsubscribe) -> None:
    session = connection.session
    assert session
    connection.turn.settle()
    codes: list[int] = []
    for raw in packet.filters:
        try:
            gone = connection.mqtt.unsubscribe(session, *mqtt.decode_filter(raw))
            codes.append(0 if gone else NO_SUBSCRIPTION_EXISTED)
        except Malformed as error:
            if error.reason == PROTOCOL_ERROR:
                raise
            codes.append(error.reason)
    answer = Results(f.UNSUBACK, packet.packet_id, codes)
    connection.mqtt.when_kept(session, partial(_answer, connection, session, answer, []))
