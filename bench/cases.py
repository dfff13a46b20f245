"""The cases: what is measured, on which sides, what is compared with what, and what the project wants of it.

A case has sides that take turns within a round. A load case runs a generator against a freshly started
server for each side and fills the first two tables; the others give figures of their own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial

import browser
import counts
import inside
import lasting
import pipelines
import spark_source
import sparking
import tls
from loads import Load, up
from rounds import COST, CPU, P99, Case, Figure, Ratio, Side, Wanted
from servers import AMQTT, COMPILED, MOSQUITTO, NATS, ONE_CORE, RELAY, Broker, OnOneCore, Peer, Server


def load(name: str, server: Server, program: str, **settings: int) -> Side:
    return Side(name, up=partial(up, server, Load(program, settings)))


QUIET_UDP = Broker("udp", log=False)
MQTT = Broker("mqtt", log=False)


# --- MQTT, beside its peers ---

LATENCY_MS = 500  # of a piece at a fixed rate: so long that each has a commit of the log
SINGLE_MS = 1_000  # of a piece whose processor time is compared …
SINGLE_RATE = 50_000  # … at a rate that all can take
SETTLE_MS = 100  # of a piece at a fixed rate: a device that sends all the time does not meet a broker that was idle
ANOTHER = "another Mosquitto"
LOG_ON = Wanted(least=0.5)  # of the rate without it
LOG_ON_BESIDE_MOSQUITTO = Wanted(least=5.0)  # a flood of short messages
LOG_ON_BESIDE = {(0, NATS.name): Wanted(least=0.5), (1, MOSQUITTO.name): Wanted(least=3.0)}  # by QoS


def installed(*peers: Peer) -> list[Peer]:
    return [peer for peer in peers if peer.path]


PEERS = [(one.name, one) for one in installed(MOSQUITTO)]


def mqtt(
    name: str,
    title: str,
    peers: Sequence[Peer],
    *,
    times: float = 1.0,
    full: bool = False,
    oftener: int = 1,
    anew: int = 1,
    **settings: int,
) -> Case:
    """SMB without its log, with it, and the peers that are installed; NATS speaks its own protocol.

    `times` Mosquitto's rate is wanted."""
    own = [load("SMB", MQTT, "mqtt_load", **settings), load("SMB, log on", MQTT.with_log(), "mqtt_load", **settings)]
    others = [
        load(peer.name, peer, "nats_load" if peer is NATS else "mqtt_load", **settings) for peer in installed(*peers)
    ]
    least = {MOSQUITTO.name: times}
    ratios = [Ratio("SMB", side.name, wanted=Wanted(least=least.get(side.name, 1.0))) for side in others]
    if times > 1.0 and MOSQUITTO in installed(*peers):
        ratios.append(Ratio("SMB, log on", MOSQUITTO.name, wanted=LOG_ON_BESIDE_MOSQUITTO))
    ratios.append(Ratio("SMB, log on", "SMB", wanted=LOG_ON if not settings.get("qos") else Wanted()))
    ratios += [
        Ratio("SMB, log on", side.name, wanted=LOG_ON_BESIDE[settings.get("qos", 0), side.name])
        for side in others
        if (settings.get("qos", 0), side.name) in LOG_ON_BESIDE
    ]
    return Case(name, title, (*own, *others), tuple(ratios), full=full, oftener=oftener, anew=anew)


def in_work(case: Case) -> Case:
    """Compared by the server's processor time, as all have the same rate. Bounds of rates are turned round."""
    return replace(case, ratios=tuple(replace(each, key=CPU, wanted=each.wanted.inverse) for each in case.ratios))


def mqtt_acked(qos: int, window: int, *, full: bool = False) -> Case:
    settings = {"qos": qos, "window": window, "subscribers": 0}
    peers = [load(peer.name, peer, "mqtt_load", **settings) for peer in installed(MOSQUITTO, AMQTT)]
    on_disk = load("SMB, on disk", MQTT.with_log(), "mqtt_load", **settings)
    return Case(
        f"mqtt-qos{qos}-acked-{window}",
        f"MQTT QoS {qos} acknowledged, window {window}; the peers acknowledge from memory",
        (load("SMB", MQTT, "mqtt_load", **settings), on_disk, *peers),
        tuple(Ratio("SMB, on disk", side.name) for side in peers),
        full=full,
        oftener=2,
    )


def alone_on_one_core() -> Case:
    sides = [
        Side(name, up=partial(up, OnOneCore(server), Load("mqtt_load", {"window": 1}, ONE_CORE)))
        for name, server in (("SMB", MQTT), *PEERS)
    ]
    ratios = (Ratio("SMB", MOSQUITTO.name, COST, Wanted(most=1.2)),) if PEERS else ()
    return Case(
        "mqtt-alone", "MQTT QoS 0, one message at a time, server and generator on one core", tuple(sides), ratios
    )


def latency(rate: int, *, full: bool = False) -> Case:
    sides = [("SMB", MQTT), ("SMB, log on", MQTT.with_log()), *((one.name, one) for one in installed(MOSQUITTO, NATS))]
    if MOSQUITTO.path:
        sides.append((ANOTHER, MOSQUITTO))  # how far two of a kind differ
    keys = (("p50_us", "p50"), (P99, "p99"), ("p999_us", "p99.9"))
    settings = {"rate": rate, "window": 100_000, "settle_ms": SETTLE_MS, "run_ms": LATENCY_MS}
    return Case(
        f"latency-{rate}",
        f"time to the subscriber at {rate:,} messages/s offered, 1 → 1, QoS 0",
        tuple(load(name, server, "nats_load" if server is NATS else "mqtt_load", **settings) for name, server in sides),
        _p99_beside_mosquitto() if MOSQUITTO.path and rate == 5_000 else (),
        tuple(Figure(key, title, "µs") for key, title in keys),
        full=full,
        anew=5,
    )


def _p99_beside_mosquitto() -> tuple[Ratio, ...]:
    own = (Ratio(name, MOSQUITTO.name, P99, Wanted(most=1.0), (ANOTHER,)) for name in ("SMB", "SMB, log on"))
    return *own, Ratio(ANOTHER, MOSQUITTO.name, P99)


def subscriptions() -> Case:
    """What a message costs among many subscriptions that do not want it."""
    few = load("10 exact", MQTT, "mqtt_load", exact=10)
    others = [
        load("1,000 exact", MQTT, "mqtt_load", exact=1_000),
        load("100,000 exact", MQTT, "mqtt_load", exact=100_000),
        load("10,000 wild", MQTT, "mqtt_load", exact=10, wild=10_000),
    ]
    return Case(
        "mqtt-subscriptions",
        "MQTT QoS 0 1 → 1 among subscriptions that do not match: cost of a message",
        (few, *others),
        tuple(Ratio(side.name, few.name, COST, Wanted(most=1.2)) for side in others),
    )


# --- the other dialects ---


@dataclass(frozen=True)
class Fan:
    """How many publish to how many: each to all, or in pairs."""

    publishers: int
    subscribers: int
    pairs: int = 0

    @property
    def name(self) -> str:
        return f"{self.publishers}-{self.subscribers}"

    @property
    def title(self) -> str:
        return f"{self.publishers} → {self.subscribers}{', in pairs' if self.pairs else ''}"


TO_1, TO_10, TO_100, PAIRS = Fan(1, 1), Fan(1, 10), Fan(1, 100), Fan(4, 4, pairs=1)


@dataclass(frozen=True)
class Dialect:
    """Its broker without log, and its generator."""

    name: str
    server: Broker
    program: str
    settings: Mapping[str, int]

    def side(self, name: str, server: Server, fan: Fan) -> Side:
        return load(name, server, self.program, **asdict(fan), **self.settings)


SEMICOLON = Dialect("semicolon", QUIET_UDP, "udp_load", {"dialect": 0})
BURSTS = Dialect("semicolon", QUIET_UDP, "udp_load", {"dialect": 0, "bursts": 1})
SOH = Dialect("soh", QUIET_UDP, "udp_load", {"dialect": 1})
PIPE = Dialect("pipe", QUIET_UDP, "udp_load", {"dialect": 2})
PADDED = Dialect("padded", Broker("padded", log=False), "padded_load", {"window": 200})
TYPED = Dialect("typed", Broker("typed", log=False), "typed_load", {})


def fan_out(dialect: Dialect, fan: Fan) -> Case:
    sides = (dialect.side("SMB", dialect.server, fan),)
    return Case(f"{dialect.name}-{fan.name}", f"{dialect.name} {fan.title}, log off", sides, full=fan is not TO_10)


def beside_relay(fan: Fan, wanted: Wanted = Wanted(), *, plain: bool = False, full: bool = False) -> Case:  # noqa: B008
    """`plain`: the generator sends each datagram by itself, and then it is the limit at 1 → 1."""
    dialect = SEMICOLON if plain else BURSTS
    sides = (dialect.side("SMB", QUIET_UDP, fan), dialect.side("C relay", RELAY, fan))
    name, title = f"semicolon-{fan.name}", f"semicolon {fan.title}, log off"
    if plain:
        name, title = f"{name}-plain", f"{title}, each datagram sent by itself"
    return Case(name, title, sides, (Ratio("SMB", "C relay", wanted=wanted),), full=full, oftener=2, anew=2)


def idle(few: int, many: int) -> Case:
    sides = [
        load(f"{name}, {count:,} idle", server, "udp_load", idle=count)
        for name, server in (("SMB", QUIET_UDP), ("C relay", RELAY))
        for count in (few, many)
    ]
    return Case(
        "semicolon-idle",
        "semicolon 1 → 1 beside idle subscriptions: cost of a message",
        tuple(sides),
        (
            Ratio(f"SMB, {many:,} idle", f"SMB, {few:,} idle", COST, Wanted(most=1.2)),
            Ratio(f"C relay, {many:,} idle", f"C relay, {few:,} idle", COST),
        ),
    )


def log_price(dialect: Dialect) -> Case:
    return Case(
        f"log-{dialect.name}-1-1",
        f"{dialect.name} 1 → 1, log on and off",
        (
            dialect.side("log on", dialect.server.with_log(), TO_1),
            dialect.side("log off", dialect.server, TO_1),
        ),
        (Ratio("log on", "log off", wanted=Wanted(least=0.7)),),
    )


def compiled(name: str, server: Broker, program: str, **settings: int) -> list[Case]:
    """Nothing without `make compiled`."""
    if not COMPILED.is_dir():
        return []
    sides = ("SMB, compiled", server.as_compiled()), ("SMB", server)
    title = f"{name} 1 → 1, log off, compiled and plain"
    loaded = tuple(load(each, one, program, **settings) for each, one in sides)
    return [Case(f"compiled-{name}", title, loaded, (Ratio("SMB, compiled", "SMB"),))]


def acknowledged(dialect: str, listener: str) -> Case:
    server = Broker(listener, log=True)
    sides = [load(f"window {window}", server, f"{dialect}_load", window=window) for window in (1, 20, 100)]
    return Case(f"{dialect}-acked", f"{dialect}, acknowledged once on disk", tuple(sides))


ALL = (MOSQUITTO, NATS, AMQTT)
BROKERS = (MOSQUITTO, NATS)

CASES = (
    mqtt("mqtt-1-1", "MQTT QoS 0, 1 → 1", ALL, times=10.0, oftener=2, anew=2),
    mqtt("mqtt-1-10", "MQTT QoS 0, 1 → 10", BROKERS, times=25.0, oftener=2, anew=2, subscribers=10, window=5_000),
    mqtt("mqtt-1-100", "MQTT QoS 0, 1 → 100", BROKERS, times=40.0, oftener=2, anew=2, subscribers=100, window=1_000),
    mqtt("mqtt-4-4", "MQTT QoS 0, 4 → 4, in pairs", BROKERS, oftener=2, anew=2, publishers=4, subscribers=4, pairs=1),
    mqtt("mqtt-16B", "MQTT QoS 0, 1 → 1, 16 bytes", BROKERS, size=16, full=True),
    mqtt("mqtt-1KB", "MQTT QoS 0, 1 → 1, 1 KB", BROKERS, size=1_024, window=1_000, full=True),
    mqtt("mqtt-64KB", "MQTT QoS 0, 1 → 1, 64 KB", BROKERS, oftener=2, anew=2, size=65_536, window=16),
    in_work(
        mqtt(
            "mqtt-single",
            f"MQTT QoS 0, 1 → 1, {SINGLE_RATE:,} messages/s offered, each in a write of its own",
            BROKERS,
            single=1,
            rate=SINGLE_RATE,
            window=100_000,
            run_ms=SINGLE_MS,
        )
    ),
    mqtt("mqtt-single-flood", "MQTT QoS 0, 1 → 1, each message in a write of its own", BROKERS, full=True, single=1),
    mqtt("mqtt-5000-topics", "MQTT QoS 0, 1 → 1 over 5,000 topics in turn", (MOSQUITTO,), topics=5_000),
    mqtt("mqtt-qos1-1-1", "MQTT QoS 1, 1 → 1, window 100", (MOSQUITTO,), oftener=2, qos=1, window=100),
    mqtt("mqtt-qos2-1-1", "MQTT QoS 2, 1 → 1", (MOSQUITTO,), qos=2, window=100, full=True),
    mqtt_acked(1, 100),
    mqtt_acked(1, 20, full=True),
    mqtt_acked(2, 100, full=True),
    alone_on_one_core(),
    latency(5_000),
    latency(20_000, full=True),
    subscriptions(),
    beside_relay(TO_1, Wanted(least=1.1)),
    beside_relay(TO_1, Wanted(least=1.1), plain=True),
    beside_relay(TO_10, Wanted(least=2.5)),
    beside_relay(TO_100, Wanted(least=3.5)),
    beside_relay(PAIRS, full=True),
    *(fan_out(dialect, fan) for dialect in (SOH, PIPE, PADDED, TYPED) for fan in (TO_1, TO_10, TO_100, PAIRS)),
    *compiled("mqtt", MQTT, "mqtt_load"),
    *compiled("mqtt-5000-topics", MQTT, "mqtt_load", topics=5_000),
    *(
        case
        for one in (SEMICOLON, PADDED, TYPED)
        for case in compiled(one.name, one.server, one.program, **one.settings)
    ),
    idle(10, 10_000),
    log_price(SEMICOLON),
    log_price(TYPED),
    acknowledged("pipe", "udp"),
    acknowledged("padded", "padded"),
    Case(
        "disk-sync",
        "the disk alone: 4 KB appended and synced",
        (Side("fdatasync", inside.syncs),),
        figures=(Figure("syncs_per_s", "syncs", "/s"),),
        generator=False,
    ),
    Case(
        "log-append",
        f"Log.append, {inside.BATCH:,} messages of {inside.PAYLOAD} bytes at a time over {inside.TOPICS:,} topics",
        (Side("log", inside.append),),
        figures=(
            Figure("messages_per_s", "messages", "/s", Wanted(least=500_000)),
            Figure("sync_share", "of the time in fdatasync", "%"),
        ),
        generator=False,
    ),
    Case(
        "connections",
        f"{lasting.CONNECTIONS:,} MQTT connections that say nothing",
        tuple(Side(name, partial(lasting.connections, one)) for name, one in (("SMB", MQTT), *PEERS)),
        figures=(
            Figure("per_s", "connections", "/s", Wanted(least=2_000)),
            Figure("bytes_each", "memory of each", "B", Wanted(most=20_000)),
        ),
        generator=False,
    ),
    Case(
        "history",
        "history of one topic over padded, and the start on its log",
        (Side("broker", inside.history),),
        figures=(
            Figure("first_s", "from SubAck to the first message", wanted=Wanted(most=0.5)),
            Figure("all_s", "from SubAck to all 1,000", wanted=Wanted(most=2.0)),
            Figure("again_first_s", "a second subscriber: the first"),
            Figure("again_all_s", "a second subscriber: all"),
            Figure("ready_s", "`ready` on that log, after a clean stop", wanted=Wanted(most=1.0)),
            Figure("ready_killed_s", "`ready` on that log, after kill -9", wanted=Wanted(most=1.0)),
        ),
        generator=False,
    ),
    Case(
        "ready",
        "from the start of smbbroker to `ready`",
        (Side("log on", partial(inside.ready, True)), Side("log off", partial(inside.ready, False))),
        figures=(Figure("ready_s", "`ready`", wanted=Wanted(most=0.5)),),
        generator=False,
    ),
    Case(
        "spark-source",
        f"Spark reads {spark_source.ROWS:,} messages of 100 bytes to its noop sink, local[2]",
        (Side("local[2]", spark_source.source),),
        figures=(
            Figure("rows_per_s", "rows", "/s", Wanted(least=2_000_000)),
            Figure("of_parquet", "÷ spark.read.parquet of the same files", "×", Wanted(least=0.6)),
            Figure("one_topic", "one topic of 1,000: so many times as fast as all", "×", Wanted(least=5.0)),
            Figure("decoded_per_s", "decoded, rows", "/s"),
        ),
        generator=False,
        once=True,
        missing=sparking.missing,
    ),
    Case(
        "pipelines",
        "smb up with four pipelines: derived topics, statistics, 20,000 messages/s",
        (Side("smb up", pipelines.pipelines),),
        figures=(
            Figure("derived_p50_s", "from a publish to the derived message, median", wanted=Wanted(most=0.6)),
            Figure("derived_p95_s", "… 95 of 100"),
            Figure(
                "stats_gap_s", "longest time between two statistics of a topic that speaks", wanted=Wanted(most=1.0)
            ),
            Figure("halfway_s", "at 20,000 messages/s: behind, halfway"),
            Figure("end_s", "… behind at the end, after a minute"),
            Figure("caught_up_s", "… until all is read", wanted=Wanted(most=10.0)),
        ),
        once=True,
        missing=sparking.missing,
    ),
    Case(
        "spark",
        f"Spark: {sparking.WRITTEN:,} messages published, and from publish to foreachBatch",
        (Side("local[2]", sparking.spark),),
        figures=(
            Figure("written_per_s", "sink, rows", "/s"),
            Figure("latency_s", "from publish to foreachBatch, median"),
            Figure("latency_most_s", "… most"),
        ),
        full=True,
        generator=False,
        missing=sparking.missing,
    ),
    Case(
        "tls",
        "MQTT QoS 0 over TLS beside Mosquitto, with the same certificate and cipher",
        (Side("SMB", tls.tls),),
        figures=(
            *(Figure(way.key, f"{way.title}: ÷ Mosquitto", "×", Wanted(least=3.0)) for way in tls.WAYS),
            *(Figure(f"{way.key}_per_s", f"{way.title}: deliveries", "/s") for way in tls.WAYS),
        ),
        once=True,
        missing=tls.missing,
    ),
    Case(
        "rights",
        "what rules cost, in instructions for each delivery counted by valgrind",
        (Side("SMB", counts.rights),),
        figures=tuple(
            Figure(way.key, f"{way.title}: with rules ÷ without", "×", Wanted(most=1.03)) for way in counts.WAYS
        ),
        generator=False,
        once=True,
        missing=counts.missing,
    ),
    Case(
        "page",
        f"the page in Chromium while {browser.RATE:,} messages/s flow over {browser.TOPICS:,} topics, log on",
        (Side("SMB", browser.page),),
        figures=(
            Figure("slowest_ms", "from a click or key to the next paint, the slowest", "ms", Wanted(most=100)),
            Figure("heap_bytes", "memory of the tab, at most", "B", Wanted(most=50_000_000)),
            Figure("kept_share", "of that rate went through", "%", Wanted(least=0.99)),
        ),
        once=True,
        missing=browser.missing,
    ),
    Case(
        "page-cost",
        f"what an open page costs the broker while {browser.TOPICS:,} topics change every second, log on",
        (Side("SMB", browser.cost),),
        figures=tuple(Figure(view, f"{view}, of a core", "%") for view in browser.VIEWS),
        full=True,
        generator=False,
        once=True,
    ),
    Case(
        "soak",
        "half of what it can do, QoS 1 with the log on, with clients that come and go",
        (Side("SMB", lasting.soak),),
        figures=(
            Figure("offered_per_s", "offered", "/s"),
            Figure("lost", "lost", "messages", Wanted(most=0)),
            Figure("missing", "acknowledged and not in the log", "messages", Wanted(most=0)),
            Figure("memory_growth", "memory, last ÷ first", "×", Wanted(most=1.05)),
            Figure("p99_first_us", "p99, median of the first third", "µs"),
            Figure("p99_last_us", "p99, median of the last third", "µs"),
            Figure("p99_growth", "p99, last ÷ first third", "×", Wanted(most=1.25)),
            Figure("p99_worst_us", "p99 of the worst five seconds", "µs"),
            Figure("came_and_went", "clients that came and went", "clients"),
        ),
        full=True,
        once=True,
    ),
)
