// Messages as rows: the newest first, so many and no more.

import { h } from "../dom.js";
import { bytes, clock, held, payload, visible } from "../words.js";
import { linkTo } from "./topics.js";

export class Messages {
  constructor(most, { topics = true } = {}) {
    this.most = most;
    this.topics = topics;
    this.format = "text";
    this.element = h("div", { className: "messages", role: "log" });
    this.shown = new Map(); // rows by element, to write them again in another format
  }

  row(message) {
    const body = h("pre");
    const from = [message.dialect, message.client ?? message.source].filter(Boolean).join(" ");
    const element = h("article", {},
      h("time", { title: message.ts }, clock(message.ts)),
      this.topics ? h("a", { className: "topic", href: linkTo(message.topic) }, visible(message.topic)) : null,
      body,
      h("small", { title: visible(from) }, h("span", { className: `dialect ${message.dialect}` }, message.dialect), message.offset === null ? "" : ` ${message.offset}`));
    this.shown.set(element, { message, body });
    this.write(message, body);
    return element;
  }

  write(message, body) {
    body.textContent = payload(message, this.format);
    if (message.size > held(message)) body.append(h("em", {}, ` … ${bytes(message.size)} in all`));
  }

  newest(messages) {
    this.element.prepend(...messages.slice(-this.most).reverse().map((message) => this.row(message)));
    this.trim(() => this.element.lastElementChild);
  }

  // Older ones at the end; what is newest goes if there are too many, and whether it did is told.
  older(messages) {
    this.element.append(...messages.reverse().map((message) => this.row(message)));
    return this.trim(() => this.element.firstElementChild);
  }

  trim(next) {
    const many = this.element.childElementCount > this.most;
    while (this.element.childElementCount > this.most) {
      const gone = next();
      this.shown.delete(gone);
      gone.remove();
    }
    return many;
  }

  clear() {
    this.shown.clear();
    this.element.replaceChildren();
  }

  use(format) {
    this.format = format;
    for (const { message, body } of this.shown.values()) this.write(message, body);
  }

  get latest() {
    return this.shown.get(this.element.firstElementChild)?.message.offset ?? null;
  }

  get oldest() {
    return this.shown.get(this.element.lastElementChild)?.message.offset ?? null;
  }
}
