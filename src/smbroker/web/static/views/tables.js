// Tables that pipelines have written, and the last rows of one.

import { ask } from "../ask.js";
import { cell, h, say, table } from "../dom.js";
import { watch } from "../live.js";
import { bytes, some, visible, whole } from "../words.js";

const ROWS = 100;

export function tables(_place, signal) {
  const note = h("span", { className: "note" }, "…"), list = h("div", { className: "scroll" });

  async function look() {
    try {
      const found = await ask("/v1/tables", {}, signal);
      say(note, "");
      const heads = [["table"], ["rows", "number"], ["bytes", "number"], ["version", "number"], ["columns", "wide"]];
      list.replaceChildren(found.tables.length ? table(heads, found.tables.map((one) => h("tr", {},
        cell(h("a", { href: `#/table/${encodeURIComponent(one.name)}` }, visible(one.name))), cell(whole(one.rows), "number"),
        cell(bytes(one.bytes), "number"), cell(whole(one.version), "number"),
        cell(one.columns.map(([name]) => name).join(", "), "wide"))))
        : h("p", { className: "empty" }, "There are no tables yet; pipelines make them."));
    } catch (error) {
      if (!signal.aborted) say(note, error.message);
    }
  }

  watch({}, {});
  look();
  return h("div", {}, h("div", { className: "bar" }, h("h1", {}, "Tables"), note), h("section", { className: "panel" }, list));
}

export function oneTable(place, signal) {
  const note = h("span", { className: "note" }, "…"), list = h("div", { className: "scroll" });
  const panel = h("section", { className: "panel", hidden: true }, list);

  async function look() {
    try {
      const found = await ask(`/v1/tables/${encodeURIComponent(place.name)}`, { limit: ROWS }, signal);
      const names = [...new Set(found.rows.flatMap(Object.keys))];
      say(note, `the last ${some(found.rows.length, "row")}`);
      panel.hidden = false;
      list.replaceChildren(table(names.map((name) => [visible(name)]), found.rows.reverse().map((row) => h("tr", {},
        names.map((name) => cell(visible(shown(row[name])), typeof row[name] === "number" ? "number" : "text"))))));
    } catch (error) {
      if (!signal.aborted) say(note, error.message);
    }
  }

  watch({}, {});
  look();
  const again = h("button", { type: "button", onclick: look }, "Look again");
  return h("div", {}, h("div", { className: "bar" }, h("h1", { className: "name" }, h("a", { href: "#/tables" }, "Tables"), " / ", visible(place.name)), again, note), panel);
}

function shown(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "number") return Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(7)));
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}
