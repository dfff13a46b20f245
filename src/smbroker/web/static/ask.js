// Calls of the broker. Each gives what it answers, or throws an Error whose message is the broker's own.

async function asked(path, options) {
  let answer;
  try {
    answer = await fetch(path, options);
  } catch {
    throw new Error("the broker does not answer");
  }
  if (answer.ok) return answer;
  const said = await answer.json().catch(() => null);
  if (answer.status === 401) dispatchEvent(new CustomEvent("unknown")); // nobody is logged in, or not any more
  const error = new Error(said?.error?.text ?? `the broker answered ${answer.status}`);
  error.code = said?.error?.code;
  throw error;
}

const path = (call, parameters) => {
  const given = Object.entries(parameters ?? {}).filter(([, value]) => value !== undefined && value !== "");
  return given.length ? `${call}?${new URLSearchParams(given)}` : call;
};

export const ask = async (call, parameters, signal) => (await asked(path(call, parameters), { signal })).json();

export async function askLines(call, parameters, signal) {
  const text = await (await asked(path(call, parameters), { signal })).text();
  return text.split("\n").filter(Boolean).map((line) => JSON.parse(line));
}

// `/` is encoded too: of levels that are `.` or `..` the browser would make another address.
export async function publish(topic, body, retain) {
  const answer = await asked(path(`/v1/publish/${encodeURIComponent(topic)}`, { retain: retain ? 1 : undefined }), { method: "POST", body });
  return answer.json();
}

const post = async (call, body) => (await asked(call, { method: "POST", body: JSON.stringify(body) })).json();

export const login = (user, password) => post("/v1/login", { user, password });
export const logout = () => post("/v1/logout", {});

// Asks again and again, never twice at once, until the view goes (`signal`).
export async function poll(signal, milliseconds, once) {
  while (!signal.aborted) {
    if (!document.hidden) await once();
    await new Promise((resolve) => {
      const timer = setTimeout(resolve, milliseconds);
      signal.addEventListener("abort", () => { clearTimeout(timer); resolve(); }, { once: true });
    });
  }
}
