"""Between history and what comes no message is missed, nor while the connection was cut, and none is shown twice."""

import pytest
from playwright.sync_api import Page, Route, expect

from flow.cuts import Way
from flow.house import Broker
from page.test_page import go, publish


@pytest.mark.parametrize("view", ["#/tail?filter={}", "#/topic/{}"])
def test_what_is_published_while_the_view_opens_is_shown_once(page: Page, broker: Broker, view: str) -> None:
    topic = "gap" if "tail" in view else "gap-one"
    publish(broker, (topic, "first"))
    sent: list[str] = []

    def publish_and_go_on(route: Route) -> None:
        """Once each: just before the stream is asked for, and just before the log is."""
        kind = "live" if "/v1/live" in route.request.url else "log"
        if kind not in sent:
            sent.append(kind)
            publish(broker, (topic, kind))
        route.continue_()

    page.route("**/v1/live?*tail=1*", publish_and_go_on)
    page.route("**/v1/messages?*", publish_and_go_on)
    go(page, view.format(topic))
    expect(page.locator("article")).to_have_count(3)
    publish(broker, (topic, "last"))
    expect(page.locator("article pre")).to_have_text(["last", *reversed(sent), "first"])


@pytest.mark.parametrize("view", ["#/tail?filter={}", "#/topic/{}"])
def test_what_is_published_while_the_connection_is_cut_is_shown_once(
    page: Page, broker: Broker, wrong: list[str], view: str
) -> None:
    topic = "cut" if "tail" in view else "cut-one"
    publish(broker, (topic, "first"))
    with Way(broker.ports["web"]) as way:
        page.goto(f"http://127.0.0.1:{way.port}/{view.format(topic)}")
        expect(page.locator("article pre")).to_have_text(["first"])
        way.cut()
        expect(page.locator("#state")).to_have_text("no connection; trying again")
        publish(broker, (topic, "meanwhile"))
        way.mend()
        expect(page.locator("#state")).to_have_text("live")
        expect(page.locator("article pre")).to_have_text(["meanwhile", "first"])
        publish(broker, (topic, "last"))
        expect(page.locator("article pre")).to_have_text(["last", "meanwhile", "first"])
        page.goto("about:blank")
    assert [said for said in wrong if "ERR_" not in said] == []  # the browser tells of every cut
    wrong.clear()


def test_more_than_a_page_while_the_connection_is_cut_leaves_no_hole(
    page: Page, broker: Broker, wrong: list[str]
) -> None:
    publish(broker, ("hole", "first"))
    with Way(broker.ports["web"]) as way:
        page.goto(f"http://127.0.0.1:{way.port}/#/tail?filter=hole")
        expect(page.locator("article pre")).to_have_text(["first"])
        way.cut()
        publish(broker, *(("hole", str(n)) for n in range(150)))
        way.mend()
        expect(page.locator("article pre").first).to_have_text("149")
        page.get_by_role("button", name="Older messages").click()
        expect(page.locator("article")).to_have_count(151)
        assert page.locator("article pre").all_inner_texts() == [*map(str, range(149, -1, -1)), "first"]
        page.goto("about:blank")
    wrong.clear()
