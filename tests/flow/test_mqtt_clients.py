"""MQTT clients that people use: paho over TCP and WebSocket, and mosquitto's programs where they are installed."""

import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from flow.house import Broker, wait_for
from flow.mqtt import Mqtt, topic

PATIENCE = 30.0  # seconds
V4, V5 = MQTTProtocolVersion.MQTTv311, MQTTProtocolVersion.MQTTv5
VERSIONS = pytest.mark.parametrize("version", [V4, V5], ids=["3.1.1", "5"])
TRANSPORTS = pytest.mark.parametrize("transport", ["tcp", "websockets"])


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(kinds=("mqtt", "web")) as broker:
        yield broker


class Paho:
    """A paho client in a thread of its own; what it got, in order."""

    def __init__(
        self,
        broker: Broker,
        transport: Any,
        version: MQTTProtocolVersion,
        name: str,
        *,
        lasting: bool = False,
        will: str = "",
    ) -> None:
        about: dict[str, Any] = {} if version == V5 else {"clean_session": not lasting}
        client = paho.Client(CallbackAPIVersion.VERSION2, name, transport=transport, protocol=version, **about)
        self.client = client
        self.got: list[tuple[str, bytes, int, bool]] = []
        self.granted: list[int] = []
        self.present: bool | None = None
        client.on_message = lambda _client, _data, one: self.got.append((one.topic, one.payload, one.qos, one.retain))
        client.on_subscribe = lambda _client, _data, _id, codes, _about: self.granted.extend(one.value for one in codes)
        client.on_connect = lambda _client, _data, flags, _code, _about: setattr(self, "present", flags.session_present)
        if will:
            client.will_set(will, b"dead", 1)
        more: dict[str, Any] = {}
        if version == V5:
            more = {"clean_start": not lasting, "properties": Properties(PacketTypes.CONNECT)}
            more["properties"].SessionExpiryInterval = 1_000 if lasting else 0
        client.connect("127.0.0.1", broker.ports["web" if transport == "websockets" else "mqtt"], **more)
        client.loop_start()
        wait_for(lambda: self.present is not None, "CONNACK", PATIENCE)

    def subscribe(self, name: str, qos: int) -> None:
        self.granted.clear()
        self.client.subscribe(name, qos)
        wait_for(lambda: self.granted == [qos], "SUBACK", PATIENCE)

    def publish(self, name: str, payload: bytes, qos: int, retain: bool = False) -> None:
        self.client.publish(name, payload, qos, retain).wait_for_publish(PATIENCE)

    def wait(self, *wanted: tuple[str, bytes, int, bool]) -> None:
        wait_for(lambda: len(self.got) >= len(wanted), str(self.got), PATIENCE)
        assert self.got == list(wanted)
        self.got.clear()

    def end(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


@VERSIONS
@TRANSPORTS
def test_paho(broker: Broker, transport: str, version: MQTTProtocolVersion) -> None:
    name = topic()
    one, other = (Paho(broker, transport, version, f"{name}{number}") for number in range(2))
    for qos in (0, 1, 2):
        one.subscribe(f"{name}/{qos}", qos)
        other.publish(f"{name}/{qos}", b"x" * 70_000 * qos, qos)
        one.wait((f"{name}/{qos}", b"x" * 70_000 * qos, qos, False))
    other.publish(f"{name}/kept", b"retained", 1, True)
    one.subscribe(f"{name}/kept", 1)
    one.wait((f"{name}/kept", b"retained", 1, True))
    one.subscribe(f"{name}/will", 1)
    mortal = Paho(broker, transport, version, f"{name}mortal", will=f"{name}/will")
    Mqtt(broker, f"{name}mortal")  # takes the session over
    one.wait((f"{name}/will", b"dead", 1, False))
    for client in (one, other, mortal):
        client.end()


@VERSIONS
@TRANSPORTS
def test_a_session_of_paho(broker: Broker, transport: str, version: MQTTProtocolVersion) -> None:
    name = topic()
    client = Paho(broker, transport, version, name, lasting=True)
    assert client.present is False
    client.subscribe(name, 2)
    client.end()
    other = Paho(broker, transport, version, f"{name}other")
    for number in range(20):
        other.publish(name, b"%d" % number, 1)
    other.end()
    client = Paho(broker, transport, version, name, lasting=True)
    assert client.present is True
    client.wait(*((name, b"%d" % number, 1, False) for number in range(20)))
    client.end()


@pytest.mark.skipif(
    not shutil.which("mosquitto_sub"), reason="there is no mosquitto_sub: apt-get install mosquitto-clients"
)
@pytest.mark.parametrize("version", ["mqttv31", "mqttv311", "mqttv5"])
def test_mosquittos_programs(broker: Broker, version: str) -> None:
    name = topic()
    about = ["-p", str(broker.ports["mqtt"]), "-V", version]

    def publish(topic: str, text: str, *more: str) -> None:
        subprocess.run(["mosquitto_pub", *about, "-t", topic, "-m", text, *more], check=True, timeout=PATIENCE)

    def got(*more: str) -> str:
        words = ["mosquitto_sub", *about, *more]
        return subprocess.run(words, check=True, timeout=PATIENCE, capture_output=True, text=True).stdout

    session = [
        "-i",
        f"{name}-sub",
        "-c",
        "-q",
        "2",
        "-t",
        f"{name}/#",
        *(["-x", "1000"] if version == "mqttv5" else []),
    ]
    got(*session, "-E")  # subscribes, and leaves
    for qos in ("1", "2"):
        publish(f"{name}/x", qos, "-q", qos)
    assert got(*session, "-C", "2") == "1\n2\n"
    publish(f"{name}/kept", "retained", "-r", "-q", "1")
    assert got("-t", f"{name}/kept", "-C", "1", "-F", "%p %q %r") == "retained 0 1\n"
