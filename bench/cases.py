"""The cases: what is measured, on which sides, what is compared with what, and what the project wants of it.

A case has sides that take turns within a round. A load case runs a generator against a freshly started
server for each side and fills the first two tables; the others give figures of their own.
"""

from functools import partial

import inside
from loads import Load, measured
from rounds import COST, Case, Figure, Ratio, Side, Wanted
from servers import RELAY, Broker, Relay


def load(name: str, server: Broker | Relay, program: str, **settings: int) -> Side:
    return Side(name, partial(measured, server, Load(program, settings)))


QUIET_UDP = Broker("udp", log=False)
TYPED = Broker("typed", log=False)


def fan_out(subscribers: int, wanted: float) -> Case:
    return Case(
        f"semicolon-1-{subscribers}",
        f"semicolon 1 → {subscribers}, log off",
        (
            load("SMB", QUIET_UDP, "semicolon_load", subscribers=subscribers),
            load("C relay", RELAY, "semicolon_load", subscribers=subscribers),
        ),
        (Ratio("SMB", "C relay", wanted=Wanted(least=wanted)),),
    )


def idle(few: int, many: int) -> Case:
    sides = [
        load(f"{name}, {count:,} idle", server, "semicolon_load", idle=count)
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


def log_price(dialect: str, server: Broker) -> Case:
    return Case(
        f"log-{dialect}-1-1",
        f"{dialect} 1 → 1, log on and off",
        (
            load("log on", server.with_log(), f"{dialect}_load"),
            load("log off", server, f"{dialect}_load"),
        ),
        (Ratio("log on", "log off", wanted=Wanted(least=0.7)),),
    )


def acknowledged(dialect: str, listener: str) -> Case:
    server = Broker(listener, log=True)
    sides = [load(f"window {window}", server, f"{dialect}_load", window=window) for window in (1, 20, 100)]
    return Case(f"{dialect}-acked", f"{dialect}, acknowledged once on disk", tuple(sides))


CASES = (
    fan_out(1, 1.0),
    fan_out(10, 2.0),
    fan_out(100, 2.5),
    idle(10, 10_000),
    log_price("semicolon", QUIET_UDP),
    log_price("typed", TYPED),
    acknowledged("pipe", "udp"),
    acknowledged("padded", "padded"),
    Case(
        "disk-sync",
        "the disk alone: 4 KB appended and synced",
        (Side("fdatasync", inside.syncs),),
        figures=(Figure("syncs_per_s", "syncs", "/s"),),
    ),
    Case(
        "log-append",
        f"Log.append, {inside.BATCH:,} messages of {inside.PAYLOAD} bytes at a time over {inside.TOPICS:,} topics",
        (Side("log", inside.append),),
        figures=(
            Figure("messages_per_s", "messages", "/s", Wanted(least=500_000)),
            Figure("sync_share", "of the time in fdatasync", "%"),
        ),
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
    ),
    Case(
        "ready",
        "from the start of smbbroker to `ready`",
        (Side("log on", partial(inside.ready, True)), Side("log off", partial(inside.ready, False))),
        figures=(Figure("ready_s", "`ready`", wanted=Wanted(most=0.5)),),
    ),
)
