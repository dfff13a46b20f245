// Clients and what they are subscribed to; those that are behind come first.

import { ask, poll } from "../ask.js";
import { cell, h, say, table } from "../dom.js";
import { watch } from "../live.js";
import { bytes, some, visible, whole } from "../words.js";

const EVERY = 2000; // milliseconds
const MOST = 500;
const FILTERS = 3; // that are shown unless asked for more

export function clients(place, signal) {
  const dialect = place.query.get("dialect") ?? "", open = new Set();
  const choice = h("select", { ariaLabel: "Dialect", onchange: () => { location.hash = choice.value ? `#/clients?dialect=${choice.value}` : "#/clients"; } },
    ["", "soh", "pipe", "semicolon", "padded", "typed", "mqtt", "http"].map((name) => h("option", { value: name }, name || "all dialects")));
  const note = h("span", { className: "note" }), list = h("div", { className: "scroll" });
  choice.value = dialect;

  function subscriptions(one) {
    const key = `${one.dialect} ${one.name}`, all = one.subscriptions, few = open.has(key) ? all : all.slice(0, FILTERS);
    const left = one.subscription_count - few.length;
    const shown = few.map(({ filter, keep }) => h("span", { className: "filter", title: keep ? "kept while away" : "" }, visible(filter) + (keep ? " ●" : "")));
    const more = left > 0 && all.length > few.length ? h("button", { type: "button", className: "link", onclick: () => { open.add(key); look(); } }, `and ${whole(left)} more`)
      : left > 0 ? `and ${whole(left)} more` : null;
    return [...shown, more];
  }

  // The name is shown where there is no room for a head.
  function figure(name, text, bad) {
    const made = cell(text, bad ? "number bad" : "number");
    made.dataset.name = name;
    return made;
  }

  function row(one) {
    return h("tr", { className: one.here ? "" : "away" },
      cell(h("span", { className: `dialect ${one.dialect}` }, one.dialect)),
      cell(visible(one.name), "name", { title: visible(one.source) }),
      cell(one.here ? "here" : "away", "wide"),
      cell(subscriptions(one), "filters"),
      figure("queue", bytes(one.queue_bytes), one.queue_bytes > 1e6),
      figure("lag", one.lag === null ? "–" : whole(one.lag), one.lag > 10000),
      figure("dropped", whole(one.dropped), one.dropped > 0));
  }

  async function look() {
    try {
      const found = await ask("/v1/clients", { dialect, limit: MOST }, signal);
      say(note, `${some(found.count, "client")}${found.count > found.clients.length ? `, the ${MOST} that are the furthest behind` : ""}`);
      const heads = [["dialect"], ["client"], ["", "wide"], ["subscriptions"], ["queue", "number"], ["lag", "number"], ["dropped", "number"]];
      list.replaceChildren(found.clients.length ? table(heads, found.clients.map(row), { className: "clients" })
        : h("p", { className: "empty" }, "Nobody is subscribed or connected. UDP publishers come and go unseen; the tail shows what they say."));
    } catch (error) {
      if (!signal.aborted) say(note, error.message);
    }
  }

  watch({}, {});
  poll(signal, EVERY, look);
  return h("div", {}, h("div", { className: "bar" }, choice, note), h("section", { className: "panel" }, list));
}
