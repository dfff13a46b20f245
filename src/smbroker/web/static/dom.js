// Elements without markup: text is always text. Topics, names and payloads are strangers' words.

const SVG = "http://www.w3.org/2000/svg";

function filled(element, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name in element && name !== "list" && !(element instanceof SVGElement)) element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export const h = (tag, props = {}, ...children) => filled(document.createElement(tag), props, children);
export const svg = (tag, props = {}, ...children) => filled(document.createElementNS(SVG, tag), props, children);

// Sets an element's text only where it has changed: what stays need not be laid out again.
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function table(heads, rows, props = {}) {
  const head = h("tr", {}, heads.map(([name, kind]) => h("th", { className: kind ?? "", scope: "col" }, name)));
  return h("table", props, h("thead", {}, head), h("tbody", {}, rows));
}

export const cell = (content, kind = "", props = {}) => h("td", { className: kind, ...props }, content);

// A small curve of numbers; nothing for fewer than two.
export function sparkline(values, width = 90, height = 20) {
  const found = svg("svg", { class: "spark", viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true" });
  if (values.length > 1) found.append(svg("path", { d: curve(values, width, height) }));
  return found;
}

export function curve(values, width, height) {
  const low = Math.min(...values), span = Math.max(...values) - low || 1;
  const step = width / (values.length - 1);
  const y = (value) => (height - 2 - ((value - low) / span) * (height - 4)).toFixed(1);
  return values.map((value, place) => `${place ? "L" : "M"}${(place * step).toFixed(1)} ${y(value)}`).join("");
}
