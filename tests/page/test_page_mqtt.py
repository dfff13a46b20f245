"""MQTT.js over WebSocket in a real browser: each QoS, retained messages, wills, sessions, in both versions."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from flow.house import Broker

LIBRARY = Path(__file__).parent / "vendor" / "mqtt.min.js"

# Functions that the tests call: a client by its name, and what came to it.
SCRIPT = """
window.clients = {};
window.opened = (name, options) => new Promise((done, fail) => {
  const url = `ws://${location.host}/mqtt`;
  const client = mqtt.connect(url, {clientId: name, reconnectPeriod: 0, connectTimeout: 30000, ...options});
  client.got = [];
  client.on('message', (topic, payload, packet) =>
    client.got.push([topic, payload.toString(), packet.qos, packet.retain]));
  client.on('connect', (connack) => done(connack.sessionPresent));
  client.on('error', fail);
  client.on('close', () => fail(new Error('closed')));
  clients[name] = client;
});
"""


@pytest.fixture
def script(browser: Browser, broker: Broker) -> Iterator[Page]:
    """A document of the broker's own origin, with the library in it."""
    context = browser.new_context(base_url=f"http://127.0.0.1:{broker.ports['web']}", bypass_csp=True)
    page = context.new_page()
    page.set_default_timeout(30_000)
    page.goto("/health")
    page.add_script_tag(path=LIBRARY)
    page.add_script_tag(content=SCRIPT)
    yield page
    context.close()


def connect(page: Page, name: str, version: int, **options: Any) -> bool:
    present: bool = page.evaluate(
        "([name, options]) => opened(name, options)", [name, {"protocolVersion": version, **options}]
    )
    return present


def subscribe(page: Page, name: str, topic: str, qos: int) -> None:
    granted = page.evaluate(
        "([name, topic, qos]) => clients[name].subscribeAsync(topic, {qos}).then(all => all.map(one => one.qos))",
        [name, topic, qos],
    )
    assert granted == [qos]


def publish(page: Page, name: str, topic: str, text: str, qos: int, retain: bool = False) -> None:
    """Until it is acknowledged."""
    page.evaluate(
        "([name, topic, text, options]) => clients[name].publishAsync(topic, text, options).then(() => null)",
        [name, topic, text, {"qos": qos, "retain": retain}],
    )


def got(page: Page, name: str, count: int) -> list[list[Any]]:
    page.wait_for_function("([name, count]) => clients[name].got.length >= count", arg=[name, count])
    found: list[list[Any]] = page.evaluate("name => clients[name].got.splice(0)", name)
    return found


def end(page: Page, name: str) -> None:
    page.evaluate("name => clients[name].endAsync()", name)


@pytest.mark.parametrize("version", [4, 5])
def test_mqtt_js_in_the_browser(script: Page, broker: Broker, version: int) -> None:
    here, there = f"here{version}", f"there{version}"
    assert not connect(script, here, version)
    assert not connect(script, there, version)
    for qos in (0, 1, 2):
        subscribe(script, here, f"js/{version}/{qos}", qos)
        publish(script, there, f"js/{version}/{qos}", "ü" * 50_000, qos)
        assert got(script, here, 1) == [[f"js/{version}/{qos}", "ü" * 50_000, qos, False]]
    broker.udp().send(f"pjs/{version}/0;from a device".encode())
    assert got(script, here, 1) == [[f"js/{version}/0", "from a device", 0, False]]

    publish(script, there, f"js/{version}/kept", "retained", 1, retain=True)
    subscribe(script, here, f"js/{version}/kept", 1)
    assert got(script, here, 1) == [[f"js/{version}/kept", "retained", 1, True]]

    subscribe(script, here, f"js/{version}/will", 1)
    connect(script, "mortal", version, will={"topic": f"js/{version}/will", "payload": "dead", "qos": 1})
    script.evaluate("clients.mortal.stream.destroy()")
    assert got(script, here, 1) == [[f"js/{version}/will", "dead", 1, False]]
    end(script, here)
    end(script, there)


@pytest.mark.parametrize("version", [4, 5])
def test_a_session_of_mqtt_js_gets_what_came_while_it_was_away(script: Page, version: int) -> None:
    lasting = {"clean": False, "properties": {"sessionExpiryInterval": 1_000} if version == 5 else {}}
    name, other = f"away{version}", f"publisher{version}"
    assert not connect(script, name, version, **lasting)
    subscribe(script, name, f"js/away/{version}", 2)
    end(script, name)
    connect(script, other, version)
    for number in range(20):
        publish(script, other, f"js/away/{version}", str(number), 1 if version == 4 else 2)
    assert connect(script, name, version, **lasting)
    assert [text for _, text, _, _ in got(script, name, 20)] == [str(number) for number in range(20)]
    end(script, name)
    end(script, other)
