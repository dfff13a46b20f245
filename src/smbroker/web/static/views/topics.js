// The tree of topics: counts, rates, last values, sparklines. Only the rows that can be seen exist as elements.

import { ask, poll } from "../ask.js";
import { curve, h, say, svg } from "../dom.js";
import { watch } from "../live.js";
import { ago, rate, some, visible, whole } from "../words.js";

const EVERY = 2000; // milliseconds between looks
const MOST = 20000; // topics that the page holds
const SHOWN_TEXT = 120; // characters
const KEPT = 30; // values of a sparkline
const ROW = 34; // pixels
const OPEN_ROWS = 150; // the tree opens by itself while it has no more rows
const DEEPEST = 20; // levels of the tree; what a topic has below them is one row

export const linkTo = (name) => `#/topic/${encodeURIComponent(name)}`;

class Node {
  constructor(name, depth, path) {
    Object.assign(this, { name, depth, path, children: new Map(), topic: null, open: false, count: 0, rate: 0, topics: 0 });
  }
}

export function topics(place, signal) {
  let search = place.query.get("search") ?? "", known = new Map(), root = new Node("", -1, ""), rows = [];
  let asked = 0, since = 0, looked = 0, opened = false;
  const box = h("input", { type: "search", placeholder: "Search topics", value: search, ariaLabel: "Search topics", oninput: typed });
  const note = h("span", { className: "note" });
  const space = h("div", { className: "space" }), list = h("div", { className: "tree", role: "tree", tabIndex: 0, onscroll: draw }, space);
  const lines = [];
  let timer = 0;

  function typed() {
    clearTimeout(timer);
    timer = setTimeout(() => {
      search = box.value;
      const address = search ? `#/topics?${new URLSearchParams({ search })}` : "#/topics";
      window.history.replaceState(null, "", address);
      [known, root, since, looked, opened] = [new Map(), new Node("", -1, ""), 0, 0, false];
      look();
    }, 150);
  }

  async function look() {
    const mine = ++asked, now = performance.now();
    try {
      const found = await ask("/v1/topics", { search, since_offset: since, limit: MOST, characters: SHOWN_TEXT }, signal);
      if (mine !== asked) return; // another search meanwhile
      take(found, looked ? (now - looked) / 1000 : 0);
      looked = now;
      say(note, known.size ? `${some(known.size, "topic")}${found.length === MOST ? ", and more: search for them" : ""}`
        : search ? "No topic holds this." : "No topics yet.");
    } catch (error) {
      if (!signal.aborted && mine === asked) say(note, error.message);
    }
  }

  function take(found, passed) {
    for (const one of known.values()) one.rate = 0;
    for (const one of found) {
      const before = known.get(one.topic);
      const kept = before ?? { spark: [], rate: 0 };
      if (before && passed) kept.rate = (one.count - before.count) / passed;
      Object.assign(kept, one);
      const value = one.last_text?.trim() ? Number(one.last_text) : NaN;
      if (Number.isFinite(value)) {
        kept.spark.push(value);
        if (kept.spark.length > KEPT) kept.spark.shift();
      }
      since = Math.max(since, one.last_offset + 1);
      if (!before && known.size < MOST) {
        known.set(one.topic, kept);
        grow(kept);
      }
    }
    sum(root);
    if (!opened && known.size) {
      opened = true;
      unfold();
    }
    flatten();
  }

  function grow(one) {
    let node = root;
    const levels = one.topic.split("/");
    if (levels.length > DEEPEST) levels.push(levels.splice(DEEPEST - 1).join("/"));
    levels.forEach((level, depth) => {
      if (!node.children.has(level)) node.children.set(level, new Node(level, depth, levels.slice(0, depth + 1).join("/")));
      node = node.children.get(level);
    });
    node.topic = one;
  }

  function sum(node) {
    node.count = node.topic?.count ?? 0;
    node.rate = node.topic?.rate ?? 0;
    node.topics = node.topic ? 1 : 0;
    for (const child of node.children.values()) {
      sum(child);
      node.count += child.count;
      node.rate += child.rate;
      node.topics += child.topics;
    }
  }

  function unfold() {
    let level = [root], count = 0;
    while (level.length) {
      const next = level.flatMap((node) => [...node.children.values()]);
      count += next.length;
      if (!search && count > OPEN_ROWS && level[0] !== root) return;
      for (const node of level) node.open = true;
      level = next;
    }
  }

  function flatten() {
    rows = [];
    const visit = (node) => {
      for (const child of [...node.children.values()].sort(before)) {
        rows.push(child);
        if (child.open) visit(child);
      }
    };
    visit(root);
    space.style.height = `${rows.length * ROW}px`;
    draw();
  }

  function toggle(node) {
    node.open = !node.open;
    flatten();
  }

  function draw() {
    const first = Math.max(0, Math.floor(list.scrollTop / ROW) - 4);
    const wanted = Math.min(rows.length - first, Math.ceil((list.clientHeight || 600) / ROW) + 8);
    while (lines.length < wanted) {
      const line = new Line(toggle);
      lines.push(line);
      space.append(line.element);
    }
    lines.forEach((line, place) => line.show(place < wanted ? rows[first + place] : null, first + place));
  }

  watch({}, {});
  poll(signal, EVERY, look);
  const resized = new ResizeObserver(draw);
  resized.observe(list);
  signal.addEventListener("abort", () => resized.disconnect());
  return h("div", { className: "fill" }, h("div", { className: "bar" }, box, note),
    h("div", { className: "treehead line" }, h("span", {}, "topic"), h("span", { className: "number" }, "count"), h("span", { className: "number" }, "per s"),
      h("span", {}, "last value"), h("span", { className: "curve" }), h("span", { className: "age" }, "when")), list);
}

// By name; the broker's own topics last.
function before(one, other) {
  const own = one.name.startsWith("$") - other.name.startsWith("$");
  return own || (one.name < other.name ? -1 : 1);
}

class Line {
  constructor(toggle) {
    this.caret = h("button", { className: "caret", type: "button", onclick: () => toggle(this.node) });
    this.name = h("a", { onclick: (event) => { if (!this.node.topic) { event.preventDefault(); toggle(this.node); } } });
    this.inner = h("small");
    this.count = h("span", { className: "number" });
    this.rate = h("span", { className: "number" });
    this.text = h("span", { className: "last" });
    this.age = h("span", { className: "age" });
    this.path = svg("path");
    this.curve = h("span", { className: "curve" }, svg("svg", { class: "spark", viewBox: "0 0 90 20", width: 90, height: 20, "aria-hidden": "true" }, this.path));
    this.element = h("div", { className: "line", role: "treeitem" },
      h("span", { className: "name" }, this.caret, this.name, this.inner), this.count, this.rate, this.text, this.curve, this.age);
  }

  show(node, place) {
    this.node = node;
    this.element.hidden = !node;
    if (!node) return;
    const { topic } = node;
    this.element.style.transform = `translateY(${place * ROW}px)`;
    this.element.style.setProperty("--depth", node.depth);
    this.element.ariaLevel = node.depth + 1;
    this.caret.classList.toggle("open", node.open);
    this.caret.classList.toggle("none", !node.children.size);
    this.caret.ariaLabel = node.open ? "close" : "open";
    say(this.name, visible(node.name) || "(empty)");
    this.name.href = topic ? linkTo(node.path) : "#/topics";
    this.name.classList.toggle("inner", !topic);
    say(this.inner, node.children.size ? whole(node.topics) : "");
    say(this.count, whole(node.count));
    say(this.rate, rate(node.rate));
    say(this.text, topic ? (topic.last_text === null ? "(binary)" : visible(topic.last_text)) : "");
    say(this.age, topic ? ago(topic.last_ts) : "");
    const values = topic?.spark ?? [];
    this.path.setAttribute("d", values.length > 1 ? curve(values, 90, 20) : "");
  }
}
