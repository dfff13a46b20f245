"""Every view of the page with live data, by clicking and typing, in a real browser."""

import re
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, Route, expect

from flow.house import Broker
from web.calls import post, post_lines

HOSTILE = "x/<script>window.hacked=1</script>/<img src=x onerror=window.hacked=1>"


def go(page: Page, address: str) -> None:
    page.goto("about:blank")
    page.goto(f"/{address}")


def publish(broker: Broker, *messages: tuple[str, str]) -> None:
    assert post_lines(broker, *({"topic": topic, "payload": text} for topic, text in messages)).status == 200


# --- overview ---


def test_the_overview_shows_what_flows_and_what_was_dropped(page: Page, broker: Broker) -> None:
    go(page, "#/")
    expect(page.locator("#state")).to_have_text("live")
    messages = page.locator(".card").first.locator("small")
    expect(messages).to_have_text(re.compile(r"\d messages"))  # figures come a moment after the connection
    before = int(messages.inner_text().split()[0].replace(",", ""))
    broker.udp().send(b"pflow/a;1")
    broker.udp().send(b"\x01no-subtopic\x02x")
    expect(messages).to_have_text(f"{before + 1:,} messages")
    expect(page.locator("tr", has_text="semicolon").first).to_be_visible()
    expect(page.locator("code", has_text="topic_no_subtopic")).to_be_visible()
    expect(page.locator(".chart canvas").first).to_be_visible()
    expect(page.locator("#twin a")).to_have_attribute("href", "/v1/stats")


def test_the_views_are_reached_by_clicking_and_by_address(page: Page) -> None:
    go(page, "#/")
    for name in page.locator("#nav a").all_inner_texts():
        page.get_by_role("link", name=name, exact=True).click()
        expect(page.locator("#nav a[aria-current]")).to_have_text(name)
        address = page.url
        page.goto("about:blank")
        page.goto(address)
        expect(page.locator("#nav a[aria-current]")).to_have_text(name)


# --- topics ---


def test_the_tree_shows_counts_rates_and_last_values_and_follows_them(page: Page, broker: Broker) -> None:
    publish(broker, ("tree/attic/temperature", "20.5"), ("tree/attic/temperature", "21.5"), ("tree/hall", "on"))
    go(page, "#/topics")
    branch = page.get_by_role("treeitem").filter(has=page.get_by_text("tree", exact=True))
    expect(branch.locator(".number").first).to_have_text("3")
    row = page.get_by_role("treeitem").filter(has_text="temperature").filter(has_text="21.5")
    expect(row.locator(".number").first).to_have_text("2")
    publish(broker, ("tree/attic/temperature", "22.5"))
    row = page.get_by_role("treeitem").filter(has_text="temperature").filter(has_text="22.5")
    expect(row.locator(".number").first).to_have_text("3")
    expect(row.locator(".spark path")).to_have_attribute("d", "M0.0 18.0L90.0 2.0")
    branch.locator(".caret").click()
    expect(row).to_have_count(0)


def test_topics_are_found_by_typing(page: Page, broker: Broker) -> None:
    publish(broker, ("search/needle", "1"), ("search/hay", "2"))
    go(page, "#/topics")
    page.get_by_label("Search topics").fill("NEEDLE")
    expect(page.get_by_text("1 topic", exact=True)).to_be_visible()
    expect(page.get_by_role("link", name="needle")).to_be_visible()
    expect(page.get_by_role("link", name="hay")).to_have_count(0)
    assert page.url.endswith("#/topics?search=NEEDLE")
    page.get_by_role("link", name="needle").click()
    expect(page.locator("h1")).to_contain_text("search/needle")


def test_topics_of_very_many_levels_do_not_stop_the_tree(page: Page, broker: Broker) -> None:
    publish(broker, ("deep" + "/" * 60_000, "far over"), ("deep" + "/y" * 20, "over"))
    go(page, "#/topics?search=deep")
    expect(page.get_by_text("2 topics", exact=True)).to_be_visible()
    page.locator(".tree").evaluate("tree => { tree.scrollTop = tree.scrollHeight; }")
    page.get_by_role("link", name="y/y", exact=True).click()
    expect(page.locator("article pre")).to_have_text("over")


def test_of_many_topics_only_those_in_sight_are_elements(page: Page, broker: Broker) -> None:
    publish(broker, *((f"many/{n:04}", str(n)) for n in range(3_000)))
    go(page, "#/topics?search=many/")
    expect(page.get_by_text("3,000 topics", exact=True)).to_be_visible()
    expect(page.get_by_role("link", name="0003", exact=True)).to_be_visible()
    assert page.get_by_role("treeitem").count() < 100
    page.locator(".tree").evaluate("tree => { tree.scrollTop = tree.scrollHeight; }")
    expect(page.get_by_role("link", name="2999", exact=True)).to_be_visible()


# --- one topic ---


def test_a_topic_has_a_plot_and_its_last_messages_and_both_go_on(page: Page, broker: Broker) -> None:
    publish(broker, *(("one/value", str(n)) for n in range(5)))
    go(page, "#/topic/one%2Fvalue")
    expect(page.locator("canvas")).to_be_visible()
    expect(page.locator(".latest")).to_have_text("4")
    expect(page.locator("article")).to_have_count(5)
    publish(broker, ("one/value", "17.25"))
    expect(page.locator(".latest")).to_have_text("17.25")
    expect(page.locator("article pre").first).to_have_text("17.25")


def test_a_topic_goes_further_back(page: Page, broker: Broker) -> None:
    publish(broker, *(("back/value", str(n)) for n in range(2_500)))
    go(page, "#/topic/back%2Fvalue")
    expect(page.get_by_role("button", name="Further back")).to_be_visible()
    page.get_by_role("button", name="Further back").click()
    expect(page.get_by_role("button", name="Further back")).to_be_hidden()


def test_a_topic_is_not_called_empty_before_the_log_has_answered(page: Page, broker: Broker) -> None:
    publish(broker, ("slow/text", "no number"))
    held: list[Route] = []
    page.route("**/v1/messages?**", lambda route: held.append(route))
    with page.expect_request("**/v1/messages?**"):
        go(page, "#/topic/slow%2Ftext")
    expect(page.locator(".empty")).to_have_text("…")
    held[0].continue_()
    expect(page.locator(".empty")).to_have_text("No numbers yet.")


# --- tail ---


def test_the_tail_is_filtered_paused_and_goes_on(page: Page, broker: Broker) -> None:
    publish(broker, ("tail/a", "before"), ("other/b", "unwanted"))
    go(page, "#/tail")
    expect(page.locator("article pre", has_text="unwanted")).to_be_visible()
    page.get_by_label("Filter").fill("tail/+")
    expect(page.locator("article pre", has_text="unwanted")).to_have_count(0)
    expect(page.locator("article pre", has_text="before")).to_be_visible()
    publish(broker, ("other/b", "unwanted"), ("tail/a", "after"))
    expect(page.locator("article pre").first).to_have_text("after")
    page.get_by_role("button", name="Pause").click()
    publish(broker, ("tail/a", "meanwhile"))
    expect(page.get_by_text("paused, 1 since")).to_be_visible()
    expect(page.locator("article pre").first).to_have_text("after")
    page.get_by_role("button", name="Go on").click()
    expect(page.locator("article pre").first).to_have_text("meanwhile")
    expect(page.locator("article pre", has_text="unwanted")).to_have_count(0)


def test_payloads_are_shown_as_text_json_and_hex(page: Page, broker: Broker) -> None:
    publish(broker, ("format/a", '{"b":[1,2]}'))
    go(page, "#/tail?filter=format/a")
    shown = page.locator("article pre").first
    expect(shown).to_have_text('{"b":[1,2]}')
    page.get_by_label("Format").select_option("json")
    assert shown.inner_text() == '{\n  "b": [\n    1,\n    2\n  ]\n}'
    page.get_by_label("Format").select_option("hex")
    expect(shown).to_have_text("7b 22 62 22 3a 5b 31 2c 32 5d 7d")
    post(broker, "format/a", b"\xff\x00")
    expect(page.locator("article pre").first).to_have_text("ff 00")


def test_a_payload_that_is_cut_says_how_long_it_is_and_no_other_does(page: Page, broker: Broker) -> None:
    publish(broker, ("cut/a", "21.5 °C"))
    post(broker, "cut/a", b"\xff" + bytes(2_999))
    go(page, "#/tail?filter=cut/a")
    shown = page.locator("article pre")
    expect(shown.last).to_have_text("21.5 °C")
    expect(shown.first).to_have_text(re.compile("^ff( 00)+ … 2.93 KiB in all$"))


def test_json_that_turns_the_direction_of_writing_does_not(page: Page, broker: Broker) -> None:
    publish(broker, ("turned/a", '{"a": "\u202e"}'))
    go(page, "#/tail?filter=turned/a&format=json")
    expect(page.locator("article pre")).to_have_text('{ "a": "\ufffd" }')


def test_the_tail_scrolls_back_through_history(page: Page, broker: Broker) -> None:
    publish(broker, *(("old/a", f"n{n}") for n in range(250)))
    go(page, "#/tail?filter=old/a")
    expect(page.locator("article")).to_have_count(100)
    page.get_by_role("button", name="Older messages").click()
    page.mouse.move(400, 400)
    for _ in range(1_000):  # as far as it goes
        if page.get_by_text("that was the first message").is_visible():
            break
        page.mouse.wheel(0, 2_000)
        page.wait_for_timeout(20)
    expect(page.locator("article")).to_have_count(250)
    assert page.locator("article pre").all_inner_texts() == [f"n{n}" for n in range(249, -1, -1)]


def test_where_nothing_is_older_nothing_older_is_offered(page: Page, broker: Broker) -> None:
    go(page, "#/tail?filter=first/a")
    expect(page.get_by_text("0 messages")).to_be_visible()
    expect(page.get_by_role("button", name="Older messages")).to_be_hidden()
    publish(broker, ("first/a", "1"))
    expect(page.get_by_role("button", name="Older messages")).to_be_visible()


def test_a_bad_filter_is_explained(page: Page, wrong: list[str]) -> None:
    go(page, "#/tail")
    page.get_by_label("Filter").fill("a/#/b")
    expect(page.get_by_text("# can only be the last level")).to_be_visible()
    page.get_by_label("Filter").fill("a/b")
    expect(page.get_by_text("0 messages")).to_be_visible()
    page.goto("about:blank")  # so that no refusal is still to be told
    assert [said for said in wrong if "400" not in said] == []  # the browser tells of every refusal
    wrong.clear()


# --- clients ---


def test_clients_and_their_subscriptions_are_listed(page: Page, broker: Broker) -> None:
    someone = broker.udp()
    someone.send(b"sroom/#")
    reader = broker.tcp("typed")
    reader.send(b"sensor1".ljust(11, b"\0") + b"s" + b"room/a".ljust(50, b"\0") + b"\x01\0")
    go(page, "#/clients")
    row = page.locator("tr", has_text="sensor1")
    expect(row).to_contain_text("room/a")
    expect(row).to_contain_text("here")
    expect(page.locator("tr", has_text=f":{someone.address[1]}")).to_contain_text("room/+/#")
    reader.sock.close()
    expect(row).to_contain_text("away")
    page.get_by_label("Dialect").select_option("semicolon")
    expect(row).to_have_count(0)
    expect(page.locator("tr", has_text=f":{someone.address[1]}")).to_be_visible()


# --- publish ---


def test_a_message_is_published_by_typing_it(page: Page) -> None:
    go(page, "#/publish")
    page.get_by_label("Topic").fill("typed/by hand/ü+#?")
    page.get_by_label("Message").fill("hello\nthere")
    page.get_by_role("button", name="Publish").click()
    expect(page.locator(".said")).to_contain_text("On disk, offset")
    page.get_by_role("link", name="look at the topic").click()
    expect(page.locator("h1")).to_contain_text("typed/by hand/ü+#?")
    expect(page.locator("article pre").first).to_have_text("hello\nthere")


def test_a_topic_may_have_levels_that_addresses_take_for_their_own(page: Page) -> None:
    go(page, "#/publish")
    page.get_by_label("Topic").fill("dots/../up/./here")
    page.get_by_role("button", name="Publish").click()
    expect(page.locator(".said")).to_contain_text("On disk, offset")
    page.get_by_role("link", name="look at the topic").click()
    expect(page.locator("article")).to_have_count(1)


# --- hostile text ---


@pytest.mark.parametrize("view", ["#/topics?search=x/", "#/tail", "#/topic/" + quote(HOSTILE, safe="")])
def test_hostile_topics_and_payloads_are_shown_as_text(page: Page, broker: Broker, view: str) -> None:
    publish(broker, (HOSTILE, "<script>window.hacked=2</script><b>bold</b>"))
    go(page, view)
    expect(page.get_by_text("<script>window.hacked=2</script><b>bold</b>").first).to_be_visible()
    expect(page.get_by_text("window.hacked=1").first).to_be_visible()
    assert page.evaluate("window.hacked") is None
    assert page.locator("main script, main img, main b").count() == 0


def test_a_hostile_address_is_only_text(page: Page) -> None:
    go(page, "#/topic/%3Cimg%20src=x%20onerror=window.hacked=1%3E")
    expect(page.locator("h1")).to_contain_text("<img src=x onerror=window.hacked=1>")
    assert page.evaluate("window.hacked") is None
