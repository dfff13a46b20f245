// Messages of the log, and then as they come: none between the two is missed, and none comes twice.
// The log is asked once the stream is open, and again whenever it had to be opened anew.

import { askLines } from "./ask.js";
import { figures, watch } from "./live.js";

const AGAIN = 2000; // milliseconds until the log is asked again
const MOST_WAITING = 1000; // messages that are heard while the log is asked; older ones go, and are counted

// `wanted`: filter or topic. onpast(messages, hole): the last ones, or those since the stream was cut; with a `hole` they
// do not go on with what was shown. onsample({seen, skipped, messages}). onfailed(error): there is no history, or not yet.
export function follow(wanted, signal, { page, onpast, onsample, onfailed, onfigures }) {
  let next = null, waiting = null, asked = 0, anew = false;

  async function load() {
    const mine = ++asked;
    waiting ??= [];
    let past = [], failed = null;
    try {
      past = await askLines("/v1/messages", { ...wanted, from: next ?? undefined, before: "latest", limit: page, short: 1 }, signal);
    } catch (error) {
      failed = error;
    }
    if (signal.aborted || mine !== asked) return;
    if (failed) {
      onfailed(failed);
      if (failed.code?.startsWith("bad_")) return watch({}, { onfigures }); // a bad filter does not get better
      if (failed.code !== "no_log") return setTimeout(() => { if (mine === asked && !signal.aborted) load(); }, AGAIN);
    } else if (next !== null && figures?.log?.next_offset < next) { // another log
      [next, anew] = [null, true];
      return load();
    } else {
      onpast(past, anew || (next !== null && past.length === page));
      anew = false;
    }
    if (past.length) next = past.at(-1).offset + 1;
    const heard = waiting;
    waiting = null;
    heard.forEach(take);
  }

  function take(sample) {
    const fresh = without(sample, next);
    if (!fresh.seen && !fresh.skipped) return;
    const last = fresh.messages.at(-1)?.offset;
    if (Number.isInteger(last)) next = last + 1;
    onsample(fresh);
  }

  function heard(sample) {
    if (signal.aborted) return;
    if (!waiting) return take(sample);
    waiting.push(sample);
    while (waiting.length > 1 && waiting.reduce((sum, one) => sum + one.messages.length, 0) > MOST_WAITING) {
      const { seen, skipped } = waiting.shift();
      waiting[0] = { ...waiting[0], seen: waiting[0].seen + seen, skipped: waiting[0].skipped + skipped };
    }
  }

  watch({ ...wanted, tail: 1 }, { onopen: load, onrefused: load, onmessages: heard, onfigures });
}

// What of a sample is new. Without a log there are no offsets.
function without(sample, next) {
  const messages = sample.messages.filter((one) => one.offset === null || next === null || one.offset >= next);
  return { ...sample, messages, seen: sample.seen - (sample.messages.length - messages.length) };
}
