"""From a request's rows to columns: topics, payloads, kinds and properties are checked, once for the whole body."""

import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from smbroker.model.errors import Refused
from smbroker.model.message import Columns, Extra, Kind, Origin, Rows
from smbroker.model.properties import fault
from smbroker.model.topic import KnownTopics, Topic

RETAINED = Extra(retain=True)
KINDS = {kind.name.lower(): kind for kind in Kind} | {None: Kind.BYTES}
NUMBERS = {Kind.INT, Kind.SHORT_REAL, Kind.FLOAT}
DECIMAL = re.compile(rb"-?[0-9]{1,300}(\.[0-9]{1,300})?")


@dataclass(slots=True)
class Gathering:
    """What one request's messages are checked with; with `skip` those that do not pass are left out."""

    origin: Origin
    check: Callable[[bytes], Topic]
    max_payload: int
    skip: bool = False
    columns: Columns = field(default_factory=Columns)
    size: int = 0  # bytes of topics, payloads and properties
    skipped: list[Refused] = field(default_factory=list)  # the first few
    skipped_count: int = 0
    _seen: int = 0

    async def all(self, parts: AsyncIterator[Rows], most: int) -> Columns:
        """Raises Refused, with the number of the message."""
        topics = KnownTopics(self.check)
        async for rows in parts:
            self._add(rows, topics)
            if self.size > most:
                raise Refused("batch_too_large", f"the messages have more than {most} bytes together")
        self.columns.origins = [self.origin] * len(self.columns)
        return self.columns

    def _add(self, rows: Rows, known: KnownTopics) -> None:
        columns, longest = self.columns, self.max_payload
        kinds = rows.kinds or [None] * len(rows.topics)
        for row, (topic, payload, kind) in enumerate(zip(rows.topics, rows.payloads, kinds, strict=True)):
            self._seen += 1
            try:
                name = known[topic]
                if len(payload) > longest:
                    text = f"payload of {len(payload)} bytes, at most {longest} (max_payload)"
                    raise Refused("payload_too_long", text)
                checked = Kind.BYTES if kind is None else _kind(kind, payload)
                extra = _extra(rows, row)
            except Refused as error:
                self._refuse(error)
                continue
            if extra:
                self.size += sum(len(key) + len(value) for key, value in extra.properties)
                columns.extras[len(columns.topics)] = extra
            columns.topics.append(name)
            columns.payloads.append(payload)
            columns.kinds.append(checked)
            self.size += len(topic) + len(payload)

    def _refuse(self, error: Refused) -> None:
        error = Refused(error.code, f"message {self._seen}: {error.text}")
        if not self.skip:
            raise error
        self.skipped_count += 1
        if len(self.skipped) < 10:
            self.skipped.append(error)


def _kind(name: str, payload: bytes) -> Kind:
    kind = KINDS.get(name)
    if kind is None:
        raise Refused("bad_kind", f"the kind {name[:50]!r} is unknown; there are {', '.join(k for k in KINDS if k)}")
    if kind in NUMBERS and not DECIMAL.fullmatch(payload):
        raise Refused("not_a_number", f"the kind is {name}, but the payload is no decimal number")
    return kind


def _extra(rows: Rows, row: int) -> Extra | None:
    retain = bool(rows.retain and rows.retain[row])
    properties = rows.properties[row] if rows.properties else None
    if properties:
        if wrong := fault(tuple(properties)):
            raise Refused("bad_property", wrong)
        return Extra(retain=retain, properties=tuple(properties))
    return RETAINED if retain else None
