import inspect

import pytest

from client.brokers import SHORT, udp_broker
from smbroker.client import pipe
from smbroker.client.errors import ClientError


def test_a_broker_that_does_not_answer_a_publish() -> None:
    with udp_broker() as (_, address), pytest.raises(ClientError) as caught:
        pipe.publish(address, b"t", b"m", answer_timeout=SHORT)
    assert caught.value.code == "no_answer"
    assert caught.value.text == f"no answer from {address} within 0.05 s; check host and port"


def test_a_broker_that_does_not_answer_a_subscribe() -> None:
    with udp_broker() as (_, address):
        subscriber = pipe.Subscriber(address, b"t", answer_timeout=SHORT)
        with pytest.raises(ClientError) as caught:
            subscriber.subscribe()
        assert caught.value.code == "no_answer"
        subscriber.close()


def test_a_message_that_overtakes_the_greeting_is_not_lost() -> None:
    with udp_broker() as (broker, address):
        subscriber = pipe.Subscriber(address, b"t")
        client = subscriber._datagrams._socket.getsockname()
        for datagram in (b"TOPIC: t - MESSAGE: m", b"Hello Subscriber!"):
            broker.sendto(datagram, client)
        assert subscriber.subscribe() == (b"Hello Subscriber!", [b"TOPIC: t - MESSAGE: m"])
        subscriber.close()


@pytest.mark.parametrize("waiting", [pipe.publish, pipe.Subscriber])
def test_the_default_is_10_seconds(waiting: object) -> None:
    assert inspect.signature(waiting).parameters["answer_timeout"].default == 10  # type: ignore[arg-type]
