// Pipelines as their runner tells of them.

import { ask, poll } from "../ask.js";
import { h, say } from "../dom.js";
import { watch } from "../live.js";
import { ago, rate, visible, whole } from "../words.js";

const EVERY = 2000; // milliseconds

export function pipelines(_place, signal) {
  const note = h("span", { className: "note" }), list = h("div", { className: "pipelines" });

  async function look() {
    try {
      const found = await ask("/v1/pipelines", {}, signal);
      say(note, found.running ? `told ${ago(found.updated)}` : found.updated ? `the runner was last heard ${ago(found.updated)}` : "");
      list.replaceChildren(...(found.pipelines.length ? found.pipelines.map((one) => card(one, found.running)) : [none()]));
    } catch (error) {
      if (!signal.aborted) say(note, error.message);
    }
  }

  watch({}, {});
  poll(signal, EVERY, look);
  return h("div", {}, h("div", { className: "bar" }, h("h1", {}, "Pipelines"), note), list);
}

const none = () => h("p", { className: "empty" }, "No pipelines run. Start them with ", h("code", {}, "smb pipeline run"), " or ", h("code", {}, "smb up"), ".");

function card(one, running) {
  const state = running ? String(one.state) : "stopped";
  const file = String(one.file ?? "");
  const figure = (name, value) => h("div", {}, h("small", {}, name), h("strong", {}, value));
  const number = (value, shown = whole) => (typeof value === "number" ? shown(value) : "–");
  return h("section", { className: "panel pipeline" },
    h("h2", {}, visible(String(one.name)), h("span", { className: `badge ${state}` }, state)),
    h("p", { className: "soft", title: visible(file) }, visible(file.split("/").slice(-2).join("/")), one.since ? `, since ${ago(one.since)}`.replace(" ago", "") : ""),
    h("div", { className: "figures" },
      figure("rows/s", number(one.rows_per_second, rate)), figure("batch", number(one.batch)),
      figure("batch time", typeof one.batch_ms === "number" ? `${whole(one.batch_ms)} ms` : "–"),
      figure("backlog", number(one.backlog)), figure("next offset", number(one.offset))),
    one.error ? h("pre", { className: "error" }, visible(wrong(one.error))) : null,
    h("p", {}, one.table ? h("a", { href: `#/table/${encodeURIComponent(one.table)}` }, `table ${one.table}`) : null,
      one.table && one.topic ? " · " : null, one.topic ? `topic ${visible(String(one.topic))}` : null));
}

function wrong(error) {
  if (typeof error !== "object") return String(error);
  const where = [error.file, error.line].filter((part) => part !== null && part !== undefined).join(":");
  return where ? `${where}: ${error.reason}` : String(error.reason);
}
