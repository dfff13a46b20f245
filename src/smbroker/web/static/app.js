// The page: which view the address names, and what all views share.
//   #/  #/topics  #/topic/NAME  #/tail  #/clients  #/pipelines  #/tables  #/table/NAME  #/publish, each with ?parameters
// A view is a function (place, signal): it gives an element, and stops when the signal is aborted.

import { ask } from "./ask.js";
import { h, say } from "./dom.js";
import { hearState } from "./live.js";
import { clients } from "./views/clients.js";
import { loggingIn, whoLooks } from "./views/login.js";
import { overview } from "./views/overview.js";
import { pipelines } from "./views/pipelines.js";
import { publishing } from "./views/publish.js";
import { oneTable, tables } from "./views/tables.js";
import { tail } from "./views/tail.js";
import { topic } from "./views/topic.js";
import { topics } from "./views/topics.js";

const VIEWS = {
  "": { title: "Overview", view: overview, twin: "/v1/stats" },
  topics: { title: "Topics", view: topics, twin: "/v1/topics" },
  topic: { view: topic, under: "topics", twin: (place) => `/v1/messages?before=latest&${new URLSearchParams({ topic: place.name })}` },
  tail: { title: "Tail", view: tail, twin: "/v1/messages?before=latest" },
  clients: { title: "Clients", view: clients, twin: "/v1/clients" },
  pipelines: { title: "Pipelines", view: pipelines, twin: "/v1/pipelines" },
  tables: { title: "Tables", view: tables, twin: "/v1/tables" },
  table: { view: oneTable, under: "tables", twin: (place) => `/v1/tables/${encodeURIComponent(place.name)}` },
  publish: { title: "Publish", view: publishing, twin: null },
};
const STATES = { live: "live", lost: "no connection; trying again", barred: "you may not see all of this", paused: "paused" };

let leave = new AbortController();

function place() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  const [key, name] = path.split(/\/(.*)/s);
  let decoded = "";
  try {
    decoded = decodeURIComponent(name ?? "");
  } catch {
    decoded = name; // not one of our links
  }
  return { key: key in VIEWS ? key : "", name: decoded, query: new URLSearchParams(query ?? "") };
}

function show() {
  leave.abort();
  leave = new AbortController();
  const here = place(), { view, title, under, twin } = VIEWS[here.key];
  for (const link of document.querySelectorAll("#nav a")) {
    if (link.dataset.key === (under ?? here.key)) {
      link.setAttribute("aria-current", "page");
      link.scrollIntoView({ block: "nearest", inline: "nearest" });
    } else link.removeAttribute("aria-current");
  }
  document.title = `${here.name || title || "SMB"} · SMB`;
  const main = document.getElementById("view");
  main.replaceChildren(view(here, leave.signal));
  main.scrollTop = 0;
  scrollTo(0, 0);
  const address = typeof twin === "function" ? twin(here) : twin;
  document.getElementById("twin").replaceChildren(
    ...(address ? ["As JSON: ", h("a", { href: address }, address)] : []),
  );
}

document.getElementById("nav").append(
  ...Object.entries(VIEWS)
    .filter(([, { title }]) => title)
    .map(([key, { title }]) => {
      const link = h("a", { href: `#/${key}` }, title);
      link.dataset.key = key;
      return link;
    }),
);
hearState((state) => {
  const element = document.getElementById("state");
  element.dataset.state = state;
  say(element, STATES[state]);
});

function enter() {
  leave.abort();
  document.getElementById("view").replaceChildren(loggingIn());
}

async function start() {
  const session = await ask("/v1/session").catch(() => ({ rights: false }));
  document.getElementById("session").replaceChildren(...whoLooks(session, enter));
  if (session.rights && !session.allowed) {
    enter();
    return;
  }
  addEventListener("hashchange", show);
  addEventListener("unknown", enter);
  show();
}
start();
