"""Batches: staged, committed once, whatever is repeated, killed or missing."""

import json
import stat
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from flow.house import Broker, wait_for
from flow.lasting import Home, killed
from smbroker.client.batches import BatchClient
from smbroker.client.errors import ClientError
from web.calls import ARROW, KINDS, Said, call, get

QUERY = "6f1c-query"


def home_of(path: Path, settings: str = "") -> Home:
    return Home(path, settings, kinds=KINDS)


def body(**columns: Any) -> bytes:
    table = pa.table(columns)
    out = BytesIO()
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    return out.getvalue()


def rows(*payloads: str, topic: str = "derived/t") -> bytes:
    return body(topic=[topic] * len(payloads), payload=[payload.encode() for payload in payloads])


def staged(broker: Broker, data: bytes) -> str:
    said = call(broker, "POST", "/v1/stages", data, content_type=ARROW)
    assert said.status == 200, said.body
    name: str = said.json["stage"]
    return name


def committed(broker: Broker, batch: int, *stages: str, query: str = QUERY, token: str = "", **more: Any) -> Said:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    order = json.dumps({"stages": stages} | more)
    return call(broker, "POST", f"/v1/batches/{query}/{batch}", order.encode(), **headers)


def texts(broker: Broker, pattern: str = "%23") -> list[str]:
    return [row["text"] for row in get(broker, f"/v1/messages?filter={pattern}").rows]


def test_a_batch_is_published_once(tmp_path: Path) -> None:
    with home_of(tmp_path).broker() as broker:
        assert get(broker, f"/v1/batches/{QUERY}").json == {"batch": None}
        first, second = staged(broker, rows("1", "2")), staged(broker, rows("3"))
        lost = staged(broker, rows("the attempt that lost"))
        said = committed(broker, 0, second, first)
        assert said.json["first_offset"] == 0
        assert said.json["count"] == 3
        assert not said.json["repeated"]
        again = committed(broker, 0, lost)
        assert again.json["repeated"]
        assert again.json["count"] == 0
        assert texts(broker) == ["3", "1", "2"]
        assert get(broker, f"/v1/batches/{QUERY}").json == {"batch": 0}
        assert committed(broker, 7, staged(broker, rows("4"))).json["first_offset"] == 3
        assert committed(broker, 6, staged(broker, rows("older"))).json["repeated"]
        assert committed(broker, 0, staged(broker, rows("5")), query="another").json["first_offset"] == 4
        assert texts(broker) == ["3", "1", "2", "4", "5"]


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_the_ledger_outlives_the_broker(tmp_path: Path, end: str) -> None:
    home = home_of(tmp_path)
    for batch in range(2):
        with killed(home.broker()) if end == "kill" else home.broker() as broker:
            stage = staged(broker, rows(f"{batch}"))
            assert not committed(broker, batch, stage).json["repeated"]
    with home.broker() as broker:
        assert committed(broker, 1, staged(broker, rows("1"))).json["repeated"]
        assert texts(broker) == ["0", "1"]


def test_the_ledger_outlives_sealing_and_the_loss_of_the_notes_with_it(tmp_path: Path) -> None:
    home = home_of(tmp_path, "[log]\nseal_rows = 5\n")
    with killed(home.broker()) as broker:
        for batch in range(10):
            committed(broker, batch, staged(broker, rows("1", "2")))
        wait_for(home.sealed, "a sealed segment")
    with home.broker() as broker:
        assert get(broker, f"/v1/batches/{QUERY}").json == {"batch": 9}
        assert committed(broker, 9, staged(broker, rows("1", "2"))).json["repeated"]


def test_a_stage_outlives_the_broker_and_a_missing_one_is_refused(tmp_path: Path) -> None:
    home = home_of(tmp_path)
    with killed(home.broker()) as broker:
        stage = staged(broker, rows("kept"))
    with home.broker() as broker:
        assert committed(broker, 0, stage).json["count"] == 1
        for name in (stage, "0" * 32, "../../state.db", ""):
            said = committed(broker, 1, name)
            assert (said.status, said.code) == (409, "stage_missing")
        assert texts(broker) == ["kept"]
    assert not list((home.data / "stages").iterdir())


def test_all_or_nothing(tmp_path: Path) -> None:
    with home_of(tmp_path).broker() as broker:
        good = rows("1")
        bad = body(topic=["a", "$SYS/x"], payload=[b"2", b"3"])
        said = committed(broker, 0, staged(broker, good), staged(broker, bad))
        assert (said.status, said.code) == (400, "topic_reserved")
        assert "message 3" in said.json["error"]["text"]
        assert texts(broker) == []
        assert get(broker, f"/v1/batches/{QUERY}").json == {"batch": None}
        said = committed(broker, 0, staged(broker, good), staged(broker, bad), skip_bad=True)
        assert (said.json["count"], said.json["skipped"]) == (2, 1)
        assert "message 3" in said.json["skipped_because"]
        assert texts(broker) == ["1", "2"]


def test_kinds_retain_and_properties_are_kept(tmp_path: Path) -> None:
    pairs = pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())]))
    data = body(
        topic=["n", "n"],
        payload=["-12", "text"],
        kind=["int", None],
        retain=pa.array([None, True]),
        properties=pa.array([[{"key": "unit", "value": "°C"}], None], pairs),
    )
    home = home_of(tmp_path)
    with home.broker() as broker:
        assert committed(broker, 0, staged(broker, data), client="me").status == 200
        number, text = get(broker, "/v1/messages").rows
        assert (number["kind"], number["value"], number["client"], number["dialect"]) == ("int", -12.0, "me", "http")
        assert (text["kind"], text["text"]) == ("bytes", "text")
        wrong = body(topic=["n"], payload=["twelve"], kind=["int"])
        assert committed(broker, 1, staged(broker, wrong)).code == "not_a_number"
        wrong = body(topic=["n"], payload=["12"], kind=["integer"])
        assert committed(broker, 1, staged(broker, wrong)).code == "bad_kind"
    from smbroker.log.reader import LogReader

    (batch,) = LogReader(home.data / "log").read(0)
    assert batch.column("retain").to_pylist() == [False, True]
    assert batch.column("properties").to_pylist() == [[{"key": "unit", "value": "°C"}], []]


def test_reserved_topics_need_the_token_and_stats_are_relayed_but_not_kept(tmp_path: Path) -> None:
    home = home_of(tmp_path)
    with home.broker() as broker:
        file = home.data / "pipeline.token"
        wait_for(lambda: file.exists() and file.read_text().strip(), "the token")
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        token = file.read_text().strip()
        subscriber = broker.udp("udp")
        assert subscriber.ask(b"S|$stats/a") == b"Hello Subscriber!"
        data = body(topic=["$stats/a", "$alerts/silence/a"], payload=["stats", "alert"])
        assert committed(broker, 0, staged(broker, data)).code == "topic_reserved"
        wrong = committed(broker, 0, staged(broker, data), token="wrong")
        assert (wrong.status, wrong.code) == (401, "bad_token")
        assert committed(broker, 0, staged(broker, rows("1")), client="pipeline:x").code == "bad_token"
        assert committed(broker, 0, staged(broker, body(topic=["$SYS/x"], payload=["x"])), token=token).status == 400
        assert committed(broker, 0, staged(broker, data), token=token, client="pipeline:statistics").status == 200
        assert subscriber.receive() == b"TOPIC: $stats/a - MESSAGE: stats"
        assert texts(broker, "$stats/%23") == []
        assert texts(broker, "$alerts/%23") == ["alert"]


def test_bad_orders_are_told(tmp_path: Path) -> None:
    with home_of(tmp_path, "[web]\nmax_stage_bytes = 1000\n").broker() as broker:
        for order in (b"", b"[]", b'{"stages": "x"}', b'{"stages": [1]}', b'{"stages": [], "client": 1}'):
            assert call(broker, "POST", "/v1/batches/q/0", order).code == "bad_body"
        assert call(broker, "POST", "/v1/batches/q/-1", b'{"stages": []}').code == "bad_query"
        assert call(broker, "POST", "/v1/batches/" + "q" * 300 + "/0", b'{"stages": []}').code == "bad_body"
        assert call(broker, "POST", "/v1/stages", b"", content_type="text/plain").code == "bad_type"
        garbage = staged(broker, b"not arrow")
        assert committed(broker, 0, garbage).code == "bad_body"
        said = call(broker, "POST", "/v1/stages", bytes(1_001), content_type=ARROW)
        assert (said.status, said.code) == (503, "too_many_stages")
        assert committed(broker, 0).json == {
            "first_offset": None,
            "count": 0,
            "skipped": 0,
            "skipped_because": None,
            "repeated": False,
        }


def test_a_batch_has_a_number_that_the_ledger_can_keep(tmp_path: Path) -> None:
    with home_of(tmp_path).broker() as broker:
        for number in ("9" * 5_000, str(1 << 63)):
            order = json.dumps({"stages": [staged(broker, rows("too far"))]})
            assert call(broker, "POST", f"/v1/batches/far/{number}", order).code == "bad_query"
        assert not committed(broker, (1 << 63) - 1, staged(broker, rows("the last"))).json["repeated"]
    with home_of(tmp_path).broker() as broker:
        assert get(broker, f"/v1/batches/{QUERY}").json == {"batch": (1 << 63) - 1}
        assert texts(broker) == ["the last"]


def test_what_is_refused_does_not_stay_staged(tmp_path: Path) -> None:
    home = home_of(tmp_path)
    with home.broker() as broker:
        large = rows("x" * (16 << 20), "x" * (16 << 20))
        said = committed(broker, 0, *[staged(broker, large) for _ in range(9)])
        assert (said.status, said.code) == (413, "batch_too_large")
        assert committed(broker, 0, staged(broker, rows("1", topic="$SYS/x"))).code == "topic_reserved"
        assert not list((home.data / "stages").iterdir())
        kept = staged(broker, rows("1"))
        assert committed(broker, 0, kept, "0" * 32).code == "stage_missing"
        assert committed(broker, 0, kept).json["count"] == 1


def test_a_stage_may_be_longer_than_other_bodies(tmp_path: Path) -> None:
    with home_of(tmp_path, "[web]\nmax_body = 1000\n").broker() as broker:
        assert call(broker, "POST", "/v1/publish", bytes(1_001), content_type=ARROW).status == 413
        stage = staged(broker, rows("x" * (9 << 20), "y" * (9 << 20)))
        assert committed(broker, 0, stage).json["count"] == 2


@pytest.mark.parametrize("left", ["", "\n"])
def test_a_token_that_could_not_be_written_is_made_anew(tmp_path: Path, left: str) -> None:
    home = home_of(tmp_path)
    home.data.mkdir(parents=True, exist_ok=True)
    file = home.data / "pipeline.token"
    file.write_text(left)
    with home.broker() as broker:
        token = file.read_text().strip()
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert committed(broker, 0, staged(broker, rows("1")), token=token, client="pipeline:x").status == 200
    with home.broker():
        assert file.read_text().strip() == token
    assert {each.name for each in home.data.iterdir() if each.name.startswith("pipeline.")} == {file.name}


def test_without_a_log_there_is_no_sink(tmp_path: Path) -> None:
    with home_of(tmp_path).broker("--no-log") as broker:
        said = call(broker, "POST", "/v1/stages", rows("1"), content_type=ARROW)
        assert (said.status, said.code) == (503, "no_log")


# --- the client ---


def test_the_client_waits_for_a_broker_that_is_away(tmp_path: Path) -> None:
    home = home_of(tmp_path)
    with home.broker() as broker:
        client = BatchClient(f"http://127.0.0.1:{broker.ports['web']}", patience=1.0)
        stage = client.stage(rows("1"))
        assert client.commit(QUERY, 0, [stage], client="me")["count"] == 1
        assert client.last(QUERY) == 0
        with pytest.raises(ClientError, match="no stage"):
            client.commit(QUERY, 1, [stage])
    with pytest.raises(ClientError, match="does not answer"):
        client.last(QUERY)


@pytest.mark.parametrize("url", ["127.0.0.1:8090", "ftp://x", "http://", "http://h:port", "http://h/path"])
def test_a_bad_address_is_told(url: str) -> None:
    with pytest.raises(ClientError, match="the broker's address is like"):
        BatchClient(url)
