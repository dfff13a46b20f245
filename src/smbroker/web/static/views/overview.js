// What flows: rates by dialect, bytes, connections, the log, and what was dropped and why.

import { Chart } from "../chart.js";
import { cell, h, say, table } from "../dom.js";
import { figures, history, total, watch } from "../live.js";
import { bytes, millis, rate, some, span, whole } from "../words.js";

const SECONDS = 180; // that the charts show

export function overview(_place, signal) {
  const cards = h("div", { className: "cards" });
  const tiles = new Map();
  const received = new Chart(signal, { seconds: SECONDS }), delivered = new Chart(signal, { seconds: SECONDS });
  const dialects = h("div", { className: "scroll" }), drops = h("div", { className: "scroll" });
  const told = h("p", { className: "alarm", hidden: true });

  function tile(name, value, note = "") {
    if (!tiles.has(name)) {
      const made = { value: h("strong"), note: h("small") };
      tiles.set(name, made);
      cards.append(h("div", { className: "card" }, h("span", {}, name), made.value, made.note));
    }
    say(tiles.get(name).value, value);
    say(tiles.get(name).note, note);
  }

  function draw(found) {
    const last = history.at(-1), log = found.log;
    tile("In", last ? `${rate(total(last.in))}/s` : "…", `${whole(total(found.received))} messages`);
    tile("Out", last ? `${rate(total(last.out))}/s` : "…", `${whole(total(found.delivered))} deliveries`);
    tile("Bytes in", last ? `${bytes(last.bytesIn)}/s` : "…", `${bytes(found.bytes_in)} of payloads`);
    tile("Bytes out", last ? `${bytes(last.bytesOut)}/s` : "…", `${bytes(found.bytes_out)} of frames`);
    tile("Connections", whole(found.connections), `${some(total(found.subscriptions), "subscription")}, ${some(found.streams, "stream")}`);
    tile("Log", log ? bytes(log.bytes) : "off", log ? `${whole(log.next_offset - log.first_offset)} messages` : "a pure relay");
    tile("On disk after", log ? millis(log.durable_after) : "–", log ? `${bytes(log.queued_bytes)} waiting` : "");
    tile("Up for", span(found.uptime), `${whole(total(found.dropped))} dropped in all`);
    told.hidden = !log?.error;
    say(told, log?.error ? `The log cannot take messages: ${log.error}` : "");
    charts();
    dialects.replaceChildren(byDialect(found, last));
    drops.replaceChildren(byReason(found));
  }

  function charts() {
    const times = history.map((one) => one.time);
    for (const [chart, side] of [[received, "in"], [delivered, "out"]]) {
      const names = [...new Set(history.flatMap((one) => Object.keys(one[side])))].sort();
      if (names.length && times.length > 1) {
        chart.set(times, Object.fromEntries(names.map((name) => [name, history.map((one) => one[side][name] ?? 0)])));
      }
    }
  }

  function refused(barred) {
    if (!barred) return;
    told.hidden = false;
    say(told, "You may not see the broker's figures.");
  }

  watch({}, { onfigures: draw, onrefused: refused });
  if (figures) draw(figures);
  const panel = (title, chart) => h("section", { className: "panel" }, h("h2", {}, title, chart.legend), chart.element);
  return h("div", { className: "overview" },
    told, cards,
    h("div", { className: "pair" }, panel("Messages in per second", received), panel("Deliveries out per second", delivered)),
    h("div", { className: "pair" },
      h("section", { className: "panel" }, h("h2", {}, "By dialect"), dialects),
      h("section", { className: "panel" }, h("h2", {}, "Dropped, not delivered, ended"), drops)));
}

function byDialect(found, last) {
  const names = new Set([found.received, found.delivered, found.subscriptions, found.connections_by_dialect].flatMap(Object.keys));
  if (!names.size) return h("p", { className: "empty" }, "Nothing has come in yet.");
  const rows = [...names].sort().map((name) =>
    h("tr", {},
      cell(h("a", { href: `#/clients?dialect=${name}`, className: `dialect ${name}` }, name)),
      cell(whole(found.received[name] ?? 0), "number"),
      cell(rate(last?.in[name] ?? 0), "number"),
      cell(whole(found.delivered[name] ?? 0), "number"),
      cell(rate(last?.out[name] ?? 0), "number"),
      cell(whole(found.connections_by_dialect[name] ?? 0), "number wide"),
      cell(whole(found.subscriptions[name] ?? 0), "number wide")));
  return table([["dialect"], ["in", "number"], ["in/s", "number"], ["out", "number"], ["out/s", "number"],
    ["connections", "number wide"], ["subscriptions", "number wide"]], rows);
}

function byReason(found) {
  const all = [
    ...Object.entries(found.dropped).map(([reason, count]) => ["dropped", reason, "", count]),
    ...found.undeliverable.map(({ dialect, reason, count }) => ["not delivered", reason, dialect, count]),
    ...Object.entries(found.ended).map(([reason, count]) => ["ended", reason, "", count]),
    ...(found.not_logged ? [["relayed only", "not_logged", "", found.not_logged]] : []),
  ].sort((one, other) => other[3] - one[3]);
  if (!all.length) return h("p", { className: "empty" }, "Nothing was dropped.");
  return table([["what"], ["reason"], ["dialect"], ["count", "number"]], all.map(([what, reason, dialect, count]) =>
    h("tr", {}, cell(what), cell(h("code", {}, reason)), cell(dialect), cell(whole(count), "number"))));
}
