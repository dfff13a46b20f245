"""The broker's settings: one frozen dataclass per part, a comment per field.

`smb.example.toml` repeats every default with its trade-off; a test holds the two equal. An unknown
key or a value of the wrong type is an error that names it.
"""

import dataclasses
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from smbroker.dialects import semicolon
from smbroker.log.settings import LogSettings
from smbroker.model.errors import UsageError

DEFAULT_LISTEN = (
    "udp://127.0.0.1:8080",
    "padded://127.0.0.1:1379",
    "typed://127.0.0.1:12345",
    "mqtt://127.0.0.1:1883",
    "web://127.0.0.1:8090",
)

BUILTIN = ("archive", "statistics", "silence")  # pipelines


@dataclass(frozen=True, slots=True)
class SemicolonConfig:
    max_subscribers: int = 100  # pairs of address and topic (-s)
    max_message: int = semicolon.MAX_MESSAGE  # bytes of an incoming message (-m)
    max_topic: int = semicolon.MAX_TOPIC  # bytes of an incoming topic (-t)
    prefix_match: bool = False  # a subscription to `a` also matches `a/b` and deeper


@dataclass(frozen=True, slots=True)
class UdpConfig:
    max_subscriptions: int = 200_000  # in all
    max_subscriptions_per_address: int = 20_000  # of one IP address
    lease: float | Literal["auto"] = "auto"  # seconds; 0 none; auto: none on loopback, 24 hours elsewhere
    allow: tuple[str, ...] = ()  # address ranges, such as 192.168.1.0/24, that datagrams are taken from; empty: any
    max_datagrams: int = 0  # a second, of one IP address, that are taken; 0: any number
    max_replies: int | Literal["auto"] = "auto"  # a second, to one IP address; 0 any; auto: 1,000 beyond loopback
    max_bytes: int = 0  # a second, to one IP address; 0: any number
    unreachable_limit: int = 5  # sends in a row that come back before a peer is forgotten
    receive_buffer: int = 4 << 20  # bytes of the socket's buffer; the kernel may grant less


@dataclass(frozen=True, slots=True)
class TcpConfig:
    max_connections: int = 10_000  # in all; further ones are closed at once
    max_connections_per_address: int | Literal["auto"] = "auto"  # auto: none on loopback, 1,000 elsewhere
    max_subscriptions: int = 20_000  # of one connection or id
    outbox_bytes: int = 16 << 20  # a subscriber that lets more than this wait is disconnected
    input_bytes: int = 256 << 20  # of unfinished messages, of all connections together
    first_timeout: float = 10.0  # seconds until a typed client must have said its id, on `tcp` any which dialect it is
    stall_timeout: float = 60.0  # seconds after which a message that has begun and hardly goes on ends the connection
    max_rate: int = 0  # bytes a second that are read from one connection; 0: any number


@dataclass(frozen=True, slots=True)
class TlsConfig:
    certificate: str = ""  # file of the listeners with +tls, PEM: their own, then those between it and the root
    key: str = ""  # file, PEM, not encrypted; empty: in the file of the certificate
    client_ca: str = ""  # file, PEM: who may sign clients' certificates; empty: clients are not asked for one
    require_client: bool = True  # with a client_ca: clients without a certificate are refused
    ciphers: str = ""  # of TLS 1.2, as OpenSSL writes them; empty: good ones
    handshake_timeout: float = 10.0  # seconds


@dataclass(frozen=True, slots=True)
class TypedConfig:
    max_sessions: int = 100_000  # ids that are remembered


@dataclass(frozen=True, slots=True)
class MqttConfig:
    connect_timeout: float = 10.0  # seconds until a connection must have said CONNECT
    max_keep_alive: int = 60  # seconds; MQTT 5 clients that ask for more are told this
    max_sessions: int = 100_000  # of clients, connected or not
    max_session_expiry: int = 0  # seconds that a session is kept for a client that is away; 0: as long as it asks
    receive_maximum: int = 1_000  # messages of a client that are not acknowledged yet
    max_inflight: int = 1_000  # messages to a client that it has not acknowledged yet
    topic_alias_maximum: int = 100  # of a client
    max_filter_bytes: int = 512 << 20  # of memory for subscriptions, about; one session may take an eighth
    max_queued: int = 10_000  # messages that wait in memory for a client; with a log they wait there instead
    max_queued_bytes: int = 16 << 20  # … and their bytes
    max_retained: int = 100_000  # topics with a retained message
    max_retained_bytes: int = 256 << 20  # of retained messages
    no_subscribe: tuple[str, ...] = ()  # filters that nobody may subscribe to, as they are written
    sys_interval: float = 10.0  # seconds between messages about the broker under $SYS; 0: none


@dataclass(frozen=True, slots=True)
class WebConfig:
    max_body: int = 64 << 20  # bytes of a request's body
    hosts: tuple[str, ...] = ()  # names that requests may use for us, besides loopback's and the listener's address
    max_connections: int = 2_000  # in all; requests on further ones are refused
    max_connections_per_address: int | Literal["auto"] = "auto"  # auto: none on loopback, 200 elsewhere
    max_streams: int = 1_000  # subscriptions
    max_replays: int = 100  # answers of /v1/messages that are under way
    max_stage_bytes: int = 4 << 30  # that Spark's sink may spool to the data directory before its commits
    max_topics: int = 100_000  # that the list of topics remembers
    metric_topics: int = 0  # the busiest, that /metrics has a series of


@dataclass(frozen=True, slots=True)
class RightsConfig:
    rules: str = ""  # the file that says who may do what (--rules); empty: loopback all, others nothing
    users: str = ""  # the file of users; empty: users.toml in the data directory


@dataclass(frozen=True, slots=True)
class PipelinesConfig:
    directory: str = "pipelines"  # of the pipelines' files (--pipelines)
    builtin: tuple[str, ...] = BUILTIN  # which of the built-in ones run


@dataclass(frozen=True, slots=True)
class Config:
    listen: tuple[str, ...] = DEFAULT_LISTEN  # KIND://HOST:PORT
    max_payload: int = 16 << 20  # bytes of the largest message the broker takes at all
    data: str = "smb-data"  # the directory of log, state and tables (--data)
    no_log: bool = False  # a pure relay: nothing is written (--no-log)
    quiet: bool = False  # neither `listening` lines nor the semicolon console
    log_format: Literal["text", "json"] = "text"  # of the lines on standard error (--log-format)
    semicolon: SemicolonConfig = field(default_factory=SemicolonConfig)
    udp: UdpConfig = field(default_factory=UdpConfig)
    tcp: TcpConfig = field(default_factory=TcpConfig)
    tls: TlsConfig = field(default_factory=TlsConfig)
    typed: TypedConfig = field(default_factory=TypedConfig)
    mqtt: MqttConfig = field(default_factory=MqttConfig)
    web: WebConfig = field(default_factory=WebConfig)
    rights: RightsConfig = field(default_factory=RightsConfig)
    log: LogSettings = field(default_factory=LogSettings)
    pipelines: PipelinesConfig = field(default_factory=PipelinesConfig)


Part = TypeVar("Part")


def load(path: Path) -> Config:
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError("config", f"{path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError("config", f"{path}: {error}") from error
    try:
        return from_table(Config, data, "")
    except UsageError as error:
        raise UsageError("config", f"{path}: {error.text}") from error


def from_table(part: type[Part], table: dict[str, Any], prefix: str) -> Part:
    hints = get_type_hints(part)
    values = {}
    for key, value in table.items():
        if key not in hints:
            raise UsageError("config", f"unknown key {prefix}{key}; {_hint(key, hints)}")
        values[key] = _value(hints[key], value, prefix + key)
    return part(**values)


def _hint(key: str, known: Iterable[str]) -> str:
    """Where it belongs, what it may have been meant to be, or all there are."""
    from difflib import get_close_matches  # here, since it is hardly ever needed

    parts = {name: kind for name, kind in get_type_hints(Config).items() if dataclasses.is_dataclass(kind)}
    homes = [f"[{name}]" for name, kind in parts.items() if key in get_type_hints(kind)]
    if homes:
        return f"it belongs below {' or '.join(homes)}"
    if meant := get_close_matches(key, known, 1):
        return f"did you mean {meant[0]}?"
    return f"there are {', '.join(sorted(known))}"


def as_table(part: object) -> dict[str, Any]:
    """The settings as a TOML file would give them."""
    assert dataclasses.is_dataclass(part)
    table = {}
    for each in dataclasses.fields(part):
        value = getattr(part, each.name)
        if dataclasses.is_dataclass(value):
            value = as_table(value)
        table[each.name] = list(value) if isinstance(value, tuple) else value
    return table


def _value(hint: Any, value: Any, name: str) -> Any:
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, dict):
            raise UsageError("config", f"{name} must be a table: [{name}]")
        return from_table(hint, value, name + ".")  # type: ignore[arg-type]
    if get_origin(hint) is tuple:
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise UsageError("config", f"{name} must be a list of strings")
        return tuple(value)
    if get_origin(hint) is Literal:
        return _word(get_args(hint), value, name)
    if "auto" in _words(hint) and value == "auto":
        return value
    if hint is str and not isinstance(value, str):
        raise UsageError("config", f"{name} must be a string, not {value!r}")
    return value if hint is str else _number(hint, value, name)


def _number(hint: Any, value: Any, name: str) -> Any:
    whole = hint is int or int in get_args(hint)
    wanted = bool if hint is bool else int if whole else (int, float)
    if not isinstance(value, wanted) or (isinstance(value, bool) and hint is not bool):
        raise UsageError("config", f"{name} must be {'true or false' if hint is bool else 'a number'}, not {value!r}")
    if not isinstance(value, bool) and not value >= 0:  # so that nan is refused too
        raise UsageError("config", f"{name} must not be negative")
    return value


def _word(words: tuple[str, ...], value: Any, name: str) -> str:
    if value not in words:
        raise UsageError("config", f"{name} must be one of {', '.join(words)}, not {value!r}")
    return str(value)


def _words(hint: Any) -> tuple[Any, ...]:
    """The strings that a setting such as `float | Literal["auto"]` takes."""
    return tuple(word for option in get_args(hint) if get_origin(option) is Literal for word in get_args(option))
