"""Joins the broker with the services that other packages bring: at present the `web` listener."""

from smbroker.server.broker import Entrance, Service
from smbroker.server.config import Config
from smbroker.server.desk import Desk
from smbroker.server.listeners import Bound
from smbroker.web.desk import Settings
from smbroker.web.listener import WebListener


def _web(desk: Desk, config: Config, bound: Bound, entrance: Entrance) -> Service:
    assert bound.stream
    settings = Settings(
        max_body=config.web.max_body,
        max_payload=config.max_payload,
        hosts=tuple(host.lower() for host in config.web.hosts),
        max_connections=config.web.max_connections,
        max_streams=config.web.max_streams,
        metric_topics=config.web.metric_topics,
    )
    return WebListener(desk, settings, bound.stream, entrance.gate, entrance.around)


SERVICES = {"web": _web}
