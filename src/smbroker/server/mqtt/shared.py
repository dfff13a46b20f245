"""A shared subscription, `$share/NAME/FILTER`: each message goes to one of its members, in turns.

Members that are here come first; if none is, the message waits in the queue of one whose session lasts.
"""

from smbroker.core.sessions import Session
from smbroker.model.filter import Filter
from smbroker.model.grant import EVERYTHING
from smbroker.model.message import Columns, Dialect
from smbroker.model.topic import Topic
from smbroker.server.mqtt.session import MqttSession
from smbroker.server.mqtt.subscriptions import Subscription


class Share(Session):
    __slots__ = ("_turn", "members", "pattern")

    def __init__(self, name: str, pattern: Filter) -> None:
        super().__init__(Dialect.MQTT, name)
        self.pattern = pattern
        self.members: dict[MqttSession, Subscription] = {}
        self._turn = 0
        self.receive = self.take
        self.grant = EVERYTHING  # each member has its own

    def take(self, topic: Topic, columns: Columns, start: int, end: int) -> None:
        members = [one for one in self.members if not one.grant.limited or one.grant.subscribes[topic]]
        able = [one for one in members if one.connection and not one.connection.full and one.room]
        able = able or [one for one in members if one.connection]
        away = not able
        able = able or [one for one in members if one.lasting]
        if not able:
            return
        for row in range(start, end):
            self._turn += 1
            member = able[self._turn % len(able)]
            item = member.item_of(columns, row, [self.members[member]])
            if item and (item.qos or not away):
                member.add(item)
        for member in able:
            member.pump()
