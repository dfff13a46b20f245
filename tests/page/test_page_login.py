"""The page asks for a login when there are rules, and then shows what that user may see."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from flow.cuts import Way
from flow.house import Broker
from rights.guarded import as_boss, guarded
from web.calls import post

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

RULES = """
[[allow]]
user = ["ann", "boss"]
topics = ["#", "$SYS/#"]

[[allow]]
user = "bob"
topics = "open/#"

[[deny]]
user = "ann"
topics = "secret/#"
"""


@pytest.fixture
def closed(tmp_path: Path) -> Iterator[Broker]:
    with guarded(tmp_path, RULES, kinds=("web",)) as made:
        yield made


@pytest.fixture
def visitor(browser: "Browser", closed: Broker) -> Iterator["Page"]:
    context = browser.new_context(base_url=f"http://127.0.0.1:{closed.ports['web']}")
    page = context.new_page()
    page.set_default_timeout(30_000)
    yield page
    context.close()


def test_log_in_look_and_log_out(visitor: "Page", closed: Broker) -> None:
    for topic in ("secret/x", "open/x"):
        assert post(closed, topic, b"hello", **as_boss()).status == 200
    visitor.goto("/#/topics")
    visitor.get_by_label("User").fill("ann")
    visitor.get_by_label("Password").fill("wrong")
    visitor.get_by_role("main").get_by_role("button", name="Log in").click()
    expect(visitor.get_by_role("alert")).to_have_text("the user or the password is wrong", timeout=30_000)
    visitor.get_by_label("Password").fill("password of ann")
    visitor.get_by_role("main").get_by_role("button", name="Log in").click()
    expect(visitor.get_by_role("button", name="Log out")).to_be_visible(timeout=30_000)
    expect(visitor.get_by_text("open", exact=False).first).to_be_visible(timeout=30_000)
    expect(visitor.get_by_text("secret")).to_have_count(0)
    assert visitor.evaluate("document.cookie") == "", "scripts cannot read it"
    visitor.get_by_role("button", name="Log out").click()
    expect(visitor.get_by_label("Password")).to_be_visible(timeout=30_000)


@pytest.mark.parametrize("view", ["#/tail", "#/topic/open%2Fx"])
def test_who_may_not_see_figures_sees_what_was_published_while_the_connection_was_cut(
    browser: "Browser", closed: Broker, view: str
) -> None:
    with Way(closed.ports["web"]) as way, browser.new_context(base_url=f"http://127.0.0.1:{way.port}") as context:
        page = context.new_page()
        page.goto(f"/{view}")
        page.get_by_label("User").fill("bob")
        page.get_by_label("Password").fill("password of bob")
        page.get_by_role("main").get_by_role("button", name="Log in").click()
        post(closed, "open/x", b"first", **as_boss())
        expect(page.locator("article pre")).to_have_text(["first"])
        way.cut()
        expect(page.locator("#state")).to_have_text("no connection; trying again")
        post(closed, "open/x", b"meanwhile", **as_boss())
        way.mend()
        expect(page.locator("article pre")).to_have_text(["meanwhile", "first"])
        post(closed, "open/x", b"last", **as_boss())
        expect(page.locator("article pre")).to_have_text(["last", "meanwhile", "first"])


def test_who_may_not_see_figures_is_told_so_not_that_there_is_no_connection(visitor: "Page", closed: Broker) -> None:
    post(closed, "open/x", b"hello", **as_boss())
    visitor.goto("/")
    visitor.get_by_label("User").fill("bob")
    visitor.get_by_label("Password").fill("password of bob")
    visitor.get_by_role("main").get_by_role("button", name="Log in").click()
    expect(visitor.locator("#state")).to_have_text("you may not see all of this")
    expect(visitor.get_by_text("You may not see the broker's figures.")).to_be_visible()
    visitor.get_by_role("link", name="Topics").click()
    expect(visitor.get_by_text("open", exact=False).first).to_be_visible()
    expect(visitor.locator("#state")).to_have_text("you may not see all of this")
    visitor.get_by_role("link", name="Tail").click()
    expect(visitor.locator("#state")).to_have_text("live")
