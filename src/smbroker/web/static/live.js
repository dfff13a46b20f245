// The one stream of a page: figures every second, and a sample of the messages that the view wants.
// It is closed while the page cannot be seen. Figures are remembered for some minutes, whatever view is open.

const KEPT = 300; // seconds of rates
const AGAIN = 2000; // milliseconds until a stream that was refused is tried again

export const history = []; // {time, in: {dialect: rate}, out: {dialect: rate}, bytesIn, bytesOut}
export let figures = null; // the last ones

const nothing = () => {};

let source = null, query = "", again = 0, hear = {}, onState = nothing;

export const hearState = (callback) => { onState = callback; };

// What a view wants to hear; `wanted` are the parameters of /v1/live. After `onopen` no message is missed, until the next one.
export function watch(wanted, { onfigures = nothing, onmessages = nothing, onopen = nothing, onrefused = nothing }) {
  hear = { onfigures, onmessages, onopen, onrefused };
  const asked = new URLSearchParams(wanted).toString();
  if (asked !== query || !source) open(asked);
  else if (source.readyState === EventSource.OPEN) onopen();
}

function open(asked) {
  close();
  query = asked;
  if (document.hidden) return;
  const made = source = new EventSource(`/v1/live?${query}`);
  const listen = (kind, heard) => made.addEventListener(kind, (event) => { if (made === source) heard(event); });
  listen("open", () => { onState("live"); hear.onopen(); });
  listen("figures", (event) => take(JSON.parse(event.data)));
  listen("messages", (event) => hear.onmessages(JSON.parse(event.data)));
  listen("error", async () => {
    if (made.readyState !== EventSource.CLOSED) return onState("lost"); // the browser tries again by itself
    const barred = await isBarred(made.url);
    if (made !== source) return; // another view meanwhile
    onState(barred ? "barred" : "lost");
    again = setTimeout(() => open(query), AGAIN);
    hear.onrefused(barred);
  });
}

// An EventSource does not tell why it was refused.
async function isBarred(address) {
  const { status } = await fetch(address, { method: "HEAD" }).catch(() => ({}));
  return status === 401 || status === 403;
}

function close() {
  clearTimeout(again);
  if (source) source.close();
  source = null;
}

document.addEventListener("visibilitychange", () => {
  if (!document.hidden) open(query);
  else { close(); onState("paused"); }
});

function take(found) {
  onState("live");
  const before = figures;
  figures = found;
  const passed = before ? found.uptime - before.uptime : 0;
  if (passed < 0) history.length = 0; // another broker
  if (passed > 0.2) {
    history.push({
      time: Date.now() / 1000,
      in: rates(before.received, found.received, passed),
      out: rates(before.delivered, found.delivered, passed),
      bytesIn: (found.bytes_in - before.bytes_in) / passed,
      bytesOut: (found.bytes_out - before.bytes_out) / passed,
    });
    if (history.length > KEPT) history.shift();
  }
  hear.onfigures(found);
}

function rates(before, now, passed) {
  return Object.fromEntries(Object.entries(now).map(([name, count]) => [name, (count - (before[name] ?? 0)) / passed]));
}

export const total = (parts) => Object.values(parts).reduce((sum, part) => sum + part, 0);
