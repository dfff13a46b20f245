from collections.abc import Iterator

import pytest

from cli.programs import TcpBroker, UdpBroker


@pytest.fixture
def udp() -> Iterator[UdpBroker]:
    broker = UdpBroker()
    yield broker
    broker.close()


@pytest.fixture
def tcp() -> Iterator[TcpBroker]:
    broker = TcpBroker()
    yield broker
    broker.close()
