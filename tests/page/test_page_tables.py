"""Pipelines and tables on the page, as the runner and the tables' writer leave them on disk."""

import math
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from playwright.sync_api import Page, expect

from flow.house import Broker
from page.test_page import go, publish

pytest.importorskip("deltalake")

from smbroker.spark.pipelines.status import PipelineStatus, now, write
from smbroker.spark.tables import TableWriter


def test_no_pipelines_run(page: Page) -> None:
    go(page, "#/pipelines")
    expect(page.get_by_text("No pipelines run.")).to_be_visible()


def test_pipelines_show_their_state_and_their_last_error(page: Page, broker: Broker) -> None:
    well = PipelineStatus(
        "rooms", "pipelines/rooms.sql", "running", 1234.5, 17, 250, 42, 4711, None, now(), "rooms", None
    )
    bad = {"file": "bad.sql", "line": 3, "reason": "no such column <b>x</b>"}
    write(broker.data, [well, PipelineStatus("bad", "pipelines/bad.sql", "failed", error=bad, since=now())])
    go(page, "#/pipelines")
    rooms = page.locator(".pipeline", has_text="rooms.sql")
    expect(rooms.locator(".badge")).to_have_text("running")
    for figure in ("1,235", "250 ms", "42", "4,711"):
        expect(rooms.get_by_text(figure, exact=True)).to_be_visible()
    expect(rooms.get_by_role("link", name="table rooms")).to_have_attribute("href", "#/table/rooms")
    expect(page.locator(".pipeline", has_text="bad.sql").locator(".error")).to_have_text(
        "bad.sql:3: no such column <b>x</b>"
    )
    well.rows_per_second = 8.0
    write(broker.data, [well])
    expect(rooms.get_by_text("8", exact=True)).to_be_visible()
    expect(page.locator(".pipeline")).to_have_count(1)


def test_tables_have_a_preview_and_topics_their_statistics(page: Page, broker: Broker) -> None:
    start = datetime(2026, 11, 15, tzinfo=UTC)
    rows = [
        {
            "topic": "table/<i>x</i>",
            "window_start": start + timedelta(minutes=n),
            "count": n,
            "min": math.sin(n) - 1,
            "mean": math.sin(n),
            "max": math.sin(n) + 1,
        }
        for n in range(60)
    ]
    TableWriter(broker.data / "tables" / "statistics").write(pa.Table.from_pylist(rows), "query", 0)
    publish(broker, ("table/<i>x</i>", "1"))
    go(page, "#/tables")
    page.get_by_role("link", name="statistics").click()
    expect(page.get_by_text("the last 60 rows")).to_be_visible()
    expect(page.locator("tbody tr")).to_have_count(60)
    expect(page.locator("tbody tr").first).to_contain_text("table/<i>x</i>")
    TableWriter(broker.data / "tables" / "single").write(pa.table({"offset": [1]}), "query", 0)
    go(page, "#/table/single")
    expect(page.get_by_text("the last 1 row", exact=True)).to_be_visible()
    go(page, "#/topic/table%2F%3Ci%3Ex%3C%2Fi%3E")
    section = page.locator("section", has_text="Statistics")
    expect(section.locator("canvas")).to_be_visible()
    expect(section.locator(".legend")).to_have_text("minmeanmax")


def test_a_table_that_is_not_there_is_explained(page: Page, wrong: list[str]) -> None:
    go(page, "#/table/nosuch")
    expect(page.get_by_text("there is no table nosuch")).to_be_visible()
    expect(page.locator(".panel")).to_be_hidden()
    assert [said for said in wrong if "404" not in said] == []  # the browser tells of every refusal
    wrong.clear()
