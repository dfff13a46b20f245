// Messages as they come, sampled: a filter, a pause, three ways to show payloads, and back in time.

import { askLines } from "../ask.js";
import { h, say } from "../dom.js";
import { follow } from "../follow.js";
import { FORMATS, some, whole } from "../words.js";
import { Messages } from "./messages.js";

const MOST = 500; // messages on the page
const PAGE = 100; // that are asked for at once

export function tail(place, signal) {
  let filter = place.query.get("filter") ?? "", paused = false, held = 0, seen = 0, left = 0, timer = 0, leave = new AbortController();
  const messages = new Messages(MOST);
  const box = h("input", { type: "search", placeholder: "Filter, e.g. house/+/temperature or plant/#", value: filter, ariaLabel: "Filter", spellcheck: false, oninput: typed });
  const pause = h("button", { type: "button", onclick: () => hold(!paused) }, "Pause");
  const formats = h("select", { ariaLabel: "Format", onchange: () => { messages.use(formats.value); remember(); } },
    FORMATS.map((name) => h("option", { value: name }, name)));
  const note = h("span", { className: "note" });
  const more = h("button", { type: "button", className: "more", onclick: older }, "Older messages");

  function remember() {
    const parameters = Object.entries({ filter, format: formats.value === "text" ? "" : formats.value }).filter(([, value]) => value);
    window.history.replaceState(null, "", parameters.length ? `#/tail?${new URLSearchParams(parameters)}` : "#/tail");
  }

  function typed() {
    clearTimeout(timer);
    timer = setTimeout(() => {
      filter = box.value.trim();
      remember();
      begin();
    }, 200);
  }

  function hold(value) {
    paused = value;
    held = 0;
    say(pause, paused ? "Go on" : "Pause");
    pause.classList.toggle("on", paused);
    tell();
    if (!paused) begin();
  }

  function tell(text) {
    const skipped = left ? `, ${whole(left)} not shown` : "";
    say(note, text ?? (paused ? `paused, ${whole(held)} since` : `${some(seen, "message")}${skipped}`));
  }

  function heard(sample) {
    if (paused) held += sample.seen + sample.skipped;
    else {
      seen += sample.seen;
      left += sample.seen - sample.messages.length + (filter ? 0 : sample.skipped);
      messages.newest(sample.messages);
    }
    tell();
  }

  function past(found, hole) {
    if (paused) held += found.length;
    else {
      if (hole) messages.clear(); // what is between can be had by going back
      messages.newest(found);
    }
    tell();
  }

  function begin() {
    [seen, left] = [0, 0];
    leave.abort();
    leave = new AbortController();
    messages.clear();
    follow(filter ? { filter } : {}, AbortSignal.any([signal, leave.signal]),
      { page: PAGE, onpast: past, onsample: heard, onfailed: (error) => tell(error.message) });
  }

  async function older() {
    const before = messages.oldest;
    if (before === null) return;
    if (!paused) { paused = true; say(pause, "Go on"); pause.classList.add("on"); }
    try {
      const found = await askLines("/v1/messages", { ...(filter ? { filter } : {}), before, limit: PAGE }, signal);
      messages.older(found);
      tell(found.length ? undefined : "that was the first message");
    } catch (error) {
      if (!signal.aborted) tell(error.message);
    }
  }

  formats.value = FORMATS.includes(place.query.get("format")) ? place.query.get("format") : "text";
  messages.format = formats.value;
  begin();
  return h("div", {}, h("div", { className: "bar sticky" }, box, pause, formats, note), messages.element, more);
}
