"""Pipelines and their tables on the page, with the real Spark that runs them."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from flow.house import Broker
from page.browsing import LIMIT, complaints, missing
from spark.runnerkit import started, wait_rows
from spark.test_runner import directory
from web.calls import KINDS, post_lines

ROOMS = "-- from: house/#\n-- table: rooms\n-- every: 1 second\nSELECT levels[1] AS room, value FROM messages\n"


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_a_running_pipeline_its_error_and_its_table_are_seen(
    spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    from playwright.sync_api import expect

    pipelines = directory(tmp_path, rooms_sql=ROOMS, bad_sql="-- table: b\nSELECT x FORM messages\n")
    wrong: list[str] = []
    with Broker(kinds=KINDS) as broker, started(spark, broker.data, pipelines) as running:
        running.wait_state("rooms", "running")
        page = request.getfixturevalue("browser").new_page()
        page.set_default_timeout(LIMIT)
        complaints(page, wrong)
        page.goto(f"http://127.0.0.1:{broker.ports['web']}/#/pipelines")
        rooms = page.locator(".pipeline", has_text="rooms.sql")
        expect(rooms.locator(".badge")).to_have_text("running")
        expect(page.locator(".pipeline", has_text="bad.sql").locator(".error")).to_contain_text("bad.sql:2: ")
        messages = ({"topic": f"house/r{n % 3}/temperature", "payload": str(n)} for n in range(30))
        assert post_lines(broker, *messages).status == 200
        wait_rows(broker.data, "rooms", 30)
        next_offset = rooms.locator(".figures div", has_text="next offset").locator("strong")
        expect(next_offset).to_have_text("30")
        expect(rooms.locator(".figures div", has_text="backlog").locator("strong")).to_have_text("0")
        rooms.get_by_role("link", name="table rooms").click()
        expect(page.locator("tbody tr")).to_have_count(30)
        expect(page.locator("tbody tr").first).to_contain_text("29")
        page.close()
    assert not wrong
