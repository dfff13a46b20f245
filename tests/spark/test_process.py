"""What the process that runs Spark says of it."""

import logging
import socket
from threading import Thread

import pytest

pytest.importorskip("pyspark")

from py4j.java_gateway import GatewayClient, GatewayParameters

from smbroker.spark.process import hush_py4j


def test_a_jvm_that_ends_during_a_command_leaves_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    """At Ctrl-C. Other words of the root logger are still heard."""
    hush_py4j()
    with socket.create_server(("127.0.0.1", 0)) as ending:
        Thread(target=hang_up_on_all, args=(ending,), daemon=True).start()
        client = GatewayClient(gateway_parameters=GatewayParameters(port=ending.getsockname()[1]))
        client.send_command("a\n")
        ending.shutdown(socket.SHUT_RDWR)
    logging.error("ours")
    assert [record.getMessage() for record in caplog.records] == ["ours"]


def hang_up_on_all(server: socket.socket) -> None:
    while True:
        try:
            server.accept()[0].close()
        except OSError:  # it is closed
            return
