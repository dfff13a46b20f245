// One topic: its value over time, from the log and as it comes; its statistics, where a pipeline makes them; its last messages.

import { ask, askLines } from "../ask.js";
import { Chart } from "../chart.js";
import { h, say } from "../dom.js";
import { follow } from "../follow.js";
import { ago, rate, seconds, visible } from "../words.js";
import { Messages } from "./messages.js";
import { form } from "./publish.js";

const POINTS = 2000; // that are asked for at once
const MOST = 20000; // that the plot holds
const SHOWN = 50; // messages

const short = (value) => String(Number(value.toPrecision(5)));

export function topic(place, signal) {
  const name = place.name, times = [], values = [], offsets = [];
  let first = null, still = false, count = 0, begun = Date.now() / 1000, last = null, leave = new AbortController();
  const chart = new Chart(signal, { height: 260, shown: short, points: true });
  const statistics = new Chart(signal, { height: 220, shown: short });
  const note = h("span", { className: "note" }), latest = h("strong", { className: "latest" });
  const none = h("p", { className: "empty" }, "…");
  const more = h("button", { type: "button", hidden: true, onclick: older }, "Further back");
  const now = h("button", { type: "button", hidden: true, onclick: begin }, "Back to now");
  const table = h("section", { className: "panel", hidden: true }, h("h2", {}, "Statistics", statistics.legend), statistics.element);
  const messages = new Messages(SHOWN, { topics: false });

  function put(found, where = "push") {
    const numbers = found.filter((one) => one.value !== null);
    times[where](...numbers.map((one) => seconds(one.ts)));
    values[where](...numbers.map((one) => one.value));
    offsets[where](...numbers.map((one) => one.offset));
  }

  function putNewer(found) {
    put(found);
    const gone = times.length - MOST;
    if (gone > 0) {
      for (const each of [times, values, offsets]) each.splice(0, gone);
      first = offsets[0];
      more.hidden = false;
    }
    draw();
  }

  // Further back the newest points go, and the plot stands still.
  function putOlder(found) {
    put(found, "unshift");
    if (times.length > MOST) {
      times.length = values.length = offsets.length = MOST;
      still = true;
      now.hidden = false;
    }
    draw();
  }

  function draw() {
    say(none, "No numbers yet.");
    none.hidden = values.length > 0;
    if (values.length) chart.set(times, { value: values });
  }

  function add(found) {
    if (!still) putNewer(found);
    if (found.length) { last = found.at(-1); count += found.length; }
  }

  function tell() {
    if (!last) return;
    say(latest, last.text === undefined ? "(binary)" : visible(last.text).slice(0, 200));
    const passed = Date.now() / 1000 - begun;
    say(note, `${ago(last.ts)}${passed > 3 ? `, ${rate(count / passed)} per second while you look` : ""}`);
  }

  // The last messages; and again, those since the stream was cut.
  function past(found, hole) {
    if (hole || first === null) {
      times.length = values.length = offsets.length = 0;
      still = false;
      now.hidden = true;
      messages.clear();
      first = found[0]?.offset ?? null;
      more.hidden = found.length < POINTS;
      begun = Date.now() / 1000;
      count = -found.length;
    }
    add(found);
    messages.newest(found.slice(-SHOWN));
    tell();
    if (!last) say(note, "Nothing has been published here yet.");
  }

  function sample(heard) {
    first ??= heard.messages[0]?.offset ?? null;
    add(heard.messages);
    count += heard.seen - heard.messages.length;
    messages.newest(heard.messages);
    tell();
  }

  async function older() {
    more.disabled = true;
    try {
      const found = await askLines("/v1/messages", { topic: name, before: first, limit: POINTS, short: 1 }, signal);
      first = found[0]?.offset ?? first;
      more.hidden = found.length < POINTS;
      putOlder(found);
    } catch (error) {
      if (!signal.aborted) say(note, error.message);
    }
    more.disabled = false;
  }

  function begin() {
    first = null;
    leave.abort();
    leave = new AbortController();
    follow({ topic: name }, AbortSignal.any([signal, leave.signal]),
      { page: POINTS, onpast: past, onsample: sample, onfigures: tell, onfailed: (error) => say(note, error.message) });
  }

  // From the table that the pipeline `statistics` writes, if there is one.
  async function averages() {
    let found;
    try {
      const { tables } = await ask("/v1/tables", {}, signal);
      if (!tables.some((one) => one.name === "statistics")) return;
      found = await ask("/v1/tables/statistics", { topic: name, limit: 1000 }, signal);
    } catch {
      return; // there is none, or nobody who can read it
    }
    const rows = found.rows.filter((row) => row.mean !== null && row.mean !== undefined && row.window_start);
    if (rows.length < 2) return;
    table.hidden = false;
    statistics.set(rows.map((row) => seconds(row.window_start)),
      { min: rows.map((row) => row.min), mean: rows.map((row) => row.mean), max: rows.map((row) => row.max) });
  }

  begin();
  averages();
  const levels = name.split("/"), up = levels.slice(0, -1).join("/");
  return h("div", {},
    h("h1", { className: "name" }, h("a", { href: up ? `#/topics?${new URLSearchParams({ search: up })}` : "#/topics" }, "Topics"), " / ", visible(name)),
    h("p", { className: "lead" }, latest, note),
    h("section", { className: "panel" }, h("h2", {}, "Value", now, more), none, chart.element),
    table,
    h("section", { className: "panel" }, h("h2", {}, "Last messages", h("a", { href: `#/tail?${new URLSearchParams({ filter: name })}` }, "tail")), messages.element),
    h("details", { className: "panel" }, h("summary", {}, "Publish here"), form(name)));
}
