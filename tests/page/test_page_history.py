"""A long log on the page: back to the first and forward again, with a bounded number of elements.

SMB_LONG=1: a million messages.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from playwright.sync_api import Page, Response, expect

from flow.house import Broker
from flow.lasting import LONG
from page.test_page import go
from smbroker.log.log import Log
from smbroker.model.message import Columns, Dialect, Kind, Origin
from web.calls import KINDS

COUNT = 1_000_000 if LONG else 300_000
TURN = 5_000
START = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000
MOST = 500  # messages that the tail has at once


def filled(directory: Path) -> None:
    """A thousand messages a second; every tenth is one of `deep/value`."""
    topics, kinds = [b"deep/value", *[b"deep/other"] * 9] * (TURN // 10), [Kind.STRING] * TURN
    origins = [Origin(Dialect.MQTT, "127.0.0.1", 1)] * TURN
    log = Log.open(directory)
    for first in range(0, COUNT, TURN):
        payloads = [b"%d" % number for number in range(first, first + TURN)]
        log.append([Columns(START + first * 1_000, topics, payloads, kinds, origins)])
        log.rotate_if_due(START / 1e6)
    log.close()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    data = tmp_path_factory.mktemp("long")
    filled(data / "log")
    with Broker(data=data, kinds=KINDS) as made:
        yield made


@pytest.fixture
def loaded(page: Page) -> list[int]:
    """Bytes of the messages that the page was given."""
    sizes: list[int] = []

    def took(response: Response) -> None:
        if "/v1/messages" in response.url:
            sizes.append(len(response.body()))

    page.on("response", took)
    return sizes


def test_the_tail_goes_back_to_the_first_message_and_forward_again(page: Page, loaded: list[int]) -> None:
    go(page, "#/tail")
    expect(page.locator("article pre").first).to_have_text(str(COUNT - 1))
    for _ in range(8):
        oldest = page.locator("article pre").last.inner_text()
        page.get_by_role("button", name="Older messages").click()
        expect(page.locator("article pre").last).not_to_have_text(oldest)
    expect(page.locator("article")).to_have_count(MOST)
    shown = [int(text) for text in page.locator("article pre").all_inner_texts()]
    assert shown == list(range(shown[0], shown[0] - MOST, -1))
    assert shown[-1] <= COUNT - 900
    local = page.evaluate(
        "at => { const d = new Date(at); d.setMinutes(d.getMinutes() - d.getTimezoneOffset()); "
        "return d.toISOString().slice(0, 19); }",
        START / 1000 + 1_000,
    )
    page.get_by_label("Go to").fill(local)
    expect(page.locator("article pre").first).to_have_text(str(TURN))
    page.get_by_role("button", name="Older messages").click()
    expect(page.locator("article pre").last).not_to_have_text(str(TURN - 99))
    page.get_by_role("button", name="Newer messages").click()
    expect(page.locator("article pre").first).not_to_have_text(str(TURN))
    shown = [int(text) for text in page.locator("article pre").all_inner_texts()]
    assert shown == list(range(shown[0], shown[-1] - 1, -1))
    page.get_by_role("button", name="Go on").click()
    expect(page.locator("article pre").first).to_have_text(str(COUNT - 1))
    assert sum(loaded) < 2_000_000


def test_a_topic_goes_back_and_keeps_so_many_points(page: Page, loaded: list[int]) -> None:
    go(page, "#/topic/deep%2Fvalue")
    expect(page.locator(".latest")).to_have_text(str(COUNT - 10))
    for _ in range(11):
        with page.expect_response("**/v1/messages?*"):
            page.get_by_role("button", name="Further back").click()
        expect(page.get_by_role("button", name="Further back")).to_be_enabled()
    expect(page.get_by_role("button", name="Back to now")).to_be_visible()
    assert page.locator("article").count() == 50
    page.get_by_role("button", name="Back to now").click()
    expect(page.get_by_role("button", name="Back to now")).to_be_hidden()
    assert sum(loaded) < 10_000_000
