"""smbpublish and smbsubscribe --dialect mqtt, with a real broker."""

import pytest

from cli.programs import run, started
from flow.house import Broker
from flow.mqtt import Mqtt


def test_what_one_publishes_the_other_prints() -> None:
    with Broker("--no-log", kinds=("mqtt",)) as broker:
        port = broker.ports["mqtt"]
        Mqtt(broker).publish("b", b"retained", 1, retain=True)
        with started("smbsubscribe", "--dialect", "mqtt", "-p", port, "a/+", "b/#") as subscriber:
            subscriber.expect(b"b retained\n")  # it is subscribed
            result = run("smbpublish", "--dialect", "mqtt", "-p", port, "a/x", "hello")
            assert (result.returncode, result.stdout, result.stderr) == (0, b"", b"")
            subscriber.expect(b"a/x hello\n")
            subscriber.interrupt()
            assert subscriber.ended() == 0


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("smbpublish", "--dialect", "mqtt", "a/#", "x"), b"wildcard"),
        (("smbpublish", "--dialect", "mqtt", "", "x"), b"empty"),
        (("smbsubscribe", "--dialect", "mqtt", "a/#/b"), b"# can only be the last level"),
    ],
)
def test_topics_that_cannot_be(words: tuple[str, ...], text: bytes) -> None:
    result = run(*words)
    assert result.returncode == 2
    assert text in result.stderr
