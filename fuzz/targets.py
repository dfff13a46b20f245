"""What is fuzzed: for each codec and for HTTP a function that takes any bytes, and fails only if we have a bug.

A target may end with the errors that strangers' bytes are answered with. What it checks besides: what was decoded is
encoded to something that decodes to the same; a stream that comes in other pieces says the same.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import h11

from smbroker.dialects import mqtt as mqtt_dialect
from smbroker.dialects import padded as padded_dialect
from smbroker.dialects import pipe as pipe_dialect
from smbroker.dialects import semicolon as semicolon_dialect
from smbroker.dialects import soh as soh_dialect
from smbroker.dialects import typed as typed_dialect
from smbroker.dialects.mqtt import Acks, Malformed, Mixed, Numbered, Run
from smbroker.dialects.mqtt.packets import Connect
from smbroker.model.errors import ProtocolError, Refused, Unfit
from smbroker.model.framing import FramerOf
from smbroker.model.grant import EVERYTHING, Grant
from smbroker.model.message import Columns, Dialect, Kind, Origin
from smbroker.server.detect import stream_dialect
from smbroker.web.app import App
from smbroker.web.desk import Settings
from smbroker.web.frames import Decoder as FrameDecoder

MAX_PAYLOAD = 1 << 16
FRAMERS: tuple[FramerOf, ...] = (
    soh_dialect.framer,
    pipe_dialect.framer,
    semicolon_dialect.framer,
    padded_dialect.framer,
    typed_dialect.framer,
    mqtt_dialect.framer_of(4),
    mqtt_dialect.framer_of(5),
)


def _command(decode: Callable[[bytes], Any], data: bytes) -> Any:
    try:
        found = decode(data)
    except (ProtocolError, Refused):
        return None
    if isinstance(found, tuple):
        _deliver(found)
    return found


def _deliver(message: tuple[Any, ...]) -> None:
    """Every dialect can frame what any has published, or says why not."""
    topic, payload, kind, _ = message
    columns = Columns(0, [topic], [payload], [kind], [Origin(Dialect.SOH, "192.0.2.1", 9)])
    for framer in FRAMERS:
        unfit: list[str] = []
        try:
            frames = framer(topic)(columns, 0, 1, unfit)
        except Unfit:  # no message of that topic can be said
            continue
        assert len(frames) + len(unfit) == 1


def soh(data: bytes) -> None:
    _command(soh_dialect.decode, data)


def pipe(data: bytes) -> None:
    _command(pipe_dialect.decode, data)


def semicolon(data: bytes) -> None:
    _command(semicolon_dialect.Codec(128, 500, prefix_match=False).decode, data)
    _command(semicolon_dialect.Codec(128, 500, prefix_match=True).decode, data)


def typed(data: bytes) -> None:
    """The first byte says whether it is a datagram, or a stream and in which pieces that comes."""
    if not data[:1] or data[0] & 1:
        _command(typed_dialect.decode, data[1:])
    else:
        _same_in_pieces(typed_dialect.Decoder, data[1:], data[0])


def padded(data: bytes) -> None:
    body = data[1:]
    if body.isascii():  # else the pieces matter: docs/reference/padded.md
        _same_in_pieces(lambda: padded_dialect.Decoder(MAX_PAYLOAD), body, data[0] if data else 0)
    else:
        _commands(padded_dialect.Decoder(MAX_PAYLOAD), _pieces(body, data[0]))
    stream_dialect(body)


def _same_in_pieces(make: Callable[[], Any], data: bytes, size: int) -> None:
    assert _commands(make(), [data]) == _commands(make(), _pieces(data, size))


def _pieces(data: bytes, size: int) -> list[bytes]:
    step = size // 2 + 1
    return [data[at : at + step] for at in range(0, len(data), step)]


def _commands(decoder: Any, pieces: list[bytes]) -> tuple[list[Any], str]:
    found: list[Any] = []
    try:
        for piece in pieces:
            decoder.feed(piece)
            while (command := decoder.next()) is not None:
                found.append(command)
                if isinstance(command, tuple):
                    _deliver(command)
            assert decoder.held <= MAX_PAYLOAD + 4_096
    except (ProtocolError, Refused) as error:
        return found, error.code
    return found, ""


def mqtt(data: bytes) -> None:
    """The first byte says the version, and in which pieces the stream comes."""
    first, body = data[0] if data else 0, data[1:]
    version = (0, 3, 4, 5)[first & 3]
    whole = _packets(version, [body])
    assert whole == _packets(version, _pieces(body, first >> 1))


def _packets(version: int, pieces: list[bytes]) -> tuple[list[Any], str]:
    decoder = mqtt_dialect.Decoder(MAX_PAYLOAD, version)
    found: list[Any] = []
    fault = ""
    for piece in pieces:
        try:
            items = decoder.feed(piece)
        except Malformed as error:
            items, fault = error.items, error.code
        found += [each for item in items for each in _written_out(item)]
        if fault:
            break
    for packet in found:
        if not isinstance(packet, tuple):
            _comes_back(packet, decoder.version)
    return found, fault


def _written_out(item: Any) -> list[Any]:
    """Rows of packets depend on the pieces; the packets do not."""
    if isinstance(item, Run):
        assert item.wire.count(item.topic) >= 1
        for payload in item.payloads:
            _deliver((item.topic, payload, Kind.BYTES, b""))
        return [("publish", item.topic, 0, b"", payload) for payload in item.payloads]
    if isinstance(item, Mixed):
        for topic, payload in zip(item.topics, item.payloads, strict=True):
            _deliver((topic, payload, Kind.BYTES, b""))
        return [("publish", topic, 0, b"", payload) for topic, payload in zip(item.topics, item.payloads, strict=True)]
    if isinstance(item, Numbered):
        return [
            ("publish", item.topic, 1, number, payload)
            for number, payload in zip(item.numbers, item.payloads, strict=True)
        ]
    if isinstance(item, Acks):
        return [("ack", number) for number in item.numbers]
    return [item]


def _comes_back(packet: Any, version: int) -> None:
    if isinstance(packet, Connect):
        wire, version = packet.encode(), 0
    else:
        wire = packet.encode(version)
    again = mqtt_dialect.Decoder(2 * MAX_PAYLOAD, version).feed(wire)
    assert len(again) == 1, (packet, again)


def websocket(data: bytes) -> None:
    first, body = data[0] if data else 0, data[1:]
    assert _unframed([body]) == _unframed(_pieces(body, first))


def _unframed(pieces: list[bytes]) -> tuple[bytes, list[bytes], Any]:
    decoder, found, pings = FrameDecoder(), b"", []
    for piece in pieces:
        fed = decoder.feed(piece)
        found += fed.data
        pings += fed.pings
        if fed.end:
            return found, pings, fed.end
    return found, pings, None


class Desk:
    """The broker, as the web knows it, with nothing behind it: the calls themselves are meant."""

    open = rights_on = True
    streams = first_offset = 0
    next_offset = 10
    PIECES = frozenset(("messages", "follow", "topics", "live", "arrow_rows", "staged_rows"))

    async def publish(self, columns: Columns, *_rest: Any) -> int:
        for topic, payload in zip(columns.topics, columns.payloads, strict=True):
            _deliver((topic, payload, Kind.BYTES, b""))
        return 0

    async def enter(self, *_given: Any) -> Grant:
        return EVERYTHING

    def begin_session(self, *_given: Any) -> str:
        return "session"

    async def health(self, *_rest: Any) -> tuple[bool, dict[str, Any]]:
        return True, {}

    async def _nothing(self, *_given: Any, **_named: Any) -> Any:
        return {}

    async def _pieces(self, *_given: Any, **_named: Any) -> Any:
        for piece in ():
            yield piece

    def __getattr__(self, name: str) -> Any:
        if name in ("refused", "warn", "knows_token", "end_session"):
            return lambda *_given: False
        return self._pieces if name in self.PIECES else self._nothing


_app = App(Desk(), Settings(1 << 16, 1 << 16, (), 10, 10, 0))  # type: ignore[arg-type]
_loop = asyncio.new_event_loop()


def http(data: bytes) -> None:
    """The bytes of a connection, up to the end of its first request."""
    parser = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 16)
    parser.receive_data(data)
    body = b""
    try:
        request = parser.next_event()
        if not isinstance(request, h11.Request):
            return
        while isinstance(event := parser.next_event(), h11.Data):
            body += event.data
    except h11.RemoteProtocolError:
        return
    path, _, query = request.target.partition(b"?")
    if path == b"/metrics":  # takes no input, and has figures to show
        return
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": request.method.decode(),
        "scheme": "http",
        "path": path.decode("latin-1"),
        "raw_path": path,
        "root_path": "",
        "query_string": query,
        "headers": list(request.headers),
        "server": ("127.0.0.1", 8090),
        "client": ("127.0.0.1", 9),
    }
    _loop.run_until_complete(_asked(scope, body))


async def _asked(scope: dict[str, Any], body: bytes) -> None:
    bugs: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: bugs.append(context))
    answers: list[Any] = []
    asked = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def receive() -> Any:
        return next(asked, {"type": "http.disconnect"})

    async def send(message: Any) -> None:
        answers.append(message)

    await _app(scope, receive, send)
    for bug in bugs:
        raise bug["exception"]
    assert answers
    assert answers[0]["status"] < 500


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target for target in (soh, pipe, semicolon, padded, typed, mqtt, websocket, http)
}
