// Messages as they come, sampled: a filter, a pause, three ways to show payloads, and back in time.

import { askLines } from "../ask.js";
import { h, say } from "../dom.js";
import { follow } from "../follow.js";
import { FORMATS, some, whole } from "../words.js";
import { Messages } from "./messages.js";

const MOST = 500; // messages on the page
const PAGE = 100; // that are asked for at once
const NEAR = 300; // pixels from an end at which more are asked for

export function tail(place, signal) {
  let filter = place.query.get("filter") ?? "", paused = false, asking = false, held = 0, seen = 0, left = 0, timer = 0, leave = new AbortController();
  const messages = new Messages(MOST);
  const box = h("input", { type: "search", placeholder: "Filter, e.g. house/+/temperature or plant/#", value: filter, ariaLabel: "Filter", spellcheck: false, oninput: typed });
  const pause = h("button", { type: "button", onclick: () => hold(!paused) }, "Pause");
  const formats = h("select", { ariaLabel: "Format", onchange: () => { messages.use(formats.value); remember(); } },
    FORMATS.map((name) => h("option", { value: name }, name)));
  const note = h("span", { className: "note" });
  const when = h("input", { type: "datetime-local", step: 1, ariaLabel: "Go to", title: "Go to a time", onchange: () => { if (when.value) jump(new Date(when.value)); } });
  const later = h("button", { type: "button", className: "more", hidden: true, onclick: newer }, "Newer messages");
  const more = h("button", { type: "button", className: "more", hidden: true, onclick: older }, "Older messages");

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
    if (value !== paused) held = 0;
    paused = value;
    say(pause, paused ? "Go on" : "Pause");
    pause.classList.toggle("on", paused);
    tell();
    if (!paused) begin();
  }

  function tell(text) {
    const skipped = left ? `, ${whole(left)} not shown` : "";
    more.hidden = messages.oldest === null;
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
    when.value = "";
    later.hidden = true;
    tell("…");
    follow(filter ? { filter } : {}, AbortSignal.any([signal, leave.signal]),
      { page: PAGE, onpast: past, onsample: heard, onfailed: (error) => tell(error.message) });
  }

  // Messages of the log in place of those that come: the page has a stretch of so many, which moves up and down.
  async function ask(...questions) {
    if (asking) return null;
    asking = true;
    hold(true);
    let found = null;
    try {
      for (const question of questions) {
        const parameters = typeof question === "function" ? question(found) : question;
        if (parameters) found = await askLines("/v1/messages", { ...(filter ? { filter } : {}), limit: PAGE, short: 1, ...parameters }, signal);
      }
    } catch (error) {
      found = null;
      if (!signal.aborted) tell(error.message);
    }
    asking = false;
    return found;
  }

  async function older() {
    if (messages.oldest === null) return;
    const found = await ask({ before: messages.oldest });
    if (!found) return;
    if (messages.older(found)) later.hidden = false;
    if (!found.length) tell("that was the first message");
  }

  async function newer() {
    const found = await ask({ from: messages.latest + 1 });
    if (!found) return;
    messages.newest(found);
    later.hidden = found.length < PAGE;
  }

  // The first message since then, and those before it.
  async function jump(time) {
    const found = await ask({ since: time.toISOString(), limit: 1 }, ([first]) => first && { before: first.offset + 1 });
    if (!found) return;
    if (!found.length) return tell("nothing was published since");
    messages.clear();
    messages.newest(found);
    later.hidden = false;
    tell();
    scrollTo(0, 0);
  }

  let height = 0;
  function scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = document.scrollingElement;
    if (scrollTop > height && scrollHeight - clientHeight - scrollTop < NEAR) older();
    height = scrollTop;
  }

  addEventListener("scroll", scrolled, { passive: true, signal });
  formats.value = FORMATS.includes(place.query.get("format")) ? place.query.get("format") : "text";
  messages.format = formats.value;
  begin();
  return h("div", {}, h("div", { className: "bar sticky" }, box, pause, formats, when, note), later, messages.element, more);
}
