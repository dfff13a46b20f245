// Numbers, times and texts for people.

const plain = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

export const whole = (number) => plain.format(Math.round(number));

export const some = (number, what) => `${whole(number)} ${what}${number === 1 ? "" : "s"}`;

export function rate(number) {
  if (number >= 100) return whole(number);
  return number && number < 0.05 ? "<0.1" : plain.format(Math.round(number * 10) / 10);
}

export function bytes(number) {
  let unit = 0;
  while (number >= 1024 && unit < UNITS.length - 1) { number /= 1024; unit += 1; }
  return `${short.format(number)} ${UNITS[unit]}`;
}

export const millis = (seconds) => (seconds < 1 ? `${short.format(seconds * 1000)} ms` : `${short.format(seconds)} s`);

export function span(seconds) {
  if (seconds < 60) return `${Math.max(0, Math.floor(seconds))} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86400)} d ${Math.floor((seconds % 86400) / 3600)} h`;
}

export const seconds = (iso) => Date.parse(iso) / 1000;
export const ago = (iso) => `${span(Date.now() / 1000 - seconds(iso))} ago`;

const pad = (number, places) => String(number).padStart(places, "0");

export function clock(iso) {
  const when = new Date(iso);
  return `${pad(when.getHours(), 2)}:${pad(when.getMinutes(), 2)}:${pad(when.getSeconds(), 2)}.${pad(when.getMilliseconds(), 3)}`;
}

// Control characters, and those that turn the direction of writing, are shown as signs.
export function visible(text) {
  return text
    .replace(/[\x00-\x1f]/g, (sign) => String.fromCharCode(0x2400 + sign.charCodeAt(0)))
    .replace(/\x7f/g, "\u2421")
    .replace(/[\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, "\ufffd");
}

const lines = (text) => text.replace(/[^\n]+/g, visible);

// --- payloads ---

export const FORMATS = ["text", "json", "hex"];

function octets(message) {
  if (message.text !== undefined) return new TextEncoder().encode(message.text);
  return Uint8Array.from(atob(message.payload_base64 ?? ""), (sign) => sign.charCodeAt(0));
}

// Of what of the payload is there; `size` is all of it.
export const held = (message) => octets(message).length;

const hex = (message) => Array.from(octets(message), (octet) => octet.toString(16).padStart(2, "0")).join(" ");

export function payload(message, format) {
  if (format === "hex" || message.text === undefined) return hex(message);
  if (format === "json") {
    try {
      return lines(JSON.stringify(JSON.parse(message.text), null, 2));
    } catch {
      return visible(message.text); // not JSON: as it is
    }
  }
  return lines(message.text);
}
