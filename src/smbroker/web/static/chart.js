// Lines over time, by uPlot. A chart is made anew when its series change, otherwise it only gets new data.

import { h } from "./dom.js";
import { rate } from "./words.js";

const DARK = matchMedia("(prefers-color-scheme: dark)");
const LEAST = 30; // seconds that a moving chart shows at least
const COLOURS = ["soh", "pipe", "semicolon", "padded", "typed", "mqtt", "http"];

const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export const colour = (name, place = 0) => style(COLOURS.includes(name) ? `--${name}` : `--line${place % 4}`);

export class Chart {
  constructor(signal, { height = 190, shown = rate, points = false, seconds = 0 } = {}) {
    this.element = h("div", { className: "chart" });
    this.legend = h("div", { className: "legend" });
    this.options = { height, shown, points, seconds };
    this.names = null;
    this.data = null;
    const resize = new ResizeObserver(() => this.plot?.setSize({ width: this.width(), height }));
    resize.observe(this.element);
    const recolour = () => this.data && this.make();
    DARK.addEventListener("change", recolour);
    signal.addEventListener("abort", () => {
      resize.disconnect();
      DARK.removeEventListener("change", recolour);
      this.plot?.destroy();
      this.plot = null;
    });
    this.signal = signal;
  }

  width() {
    return Math.max(this.element.clientWidth, 120);
  }

  // times, and for each name its values (null: none).
  set(times, series) {
    if (this.signal.aborted) return;
    const names = Object.keys(series).join("\n");
    this.data = [times, ...Object.values(series)];
    if (names !== this.names || !this.plot) {
      this.names = names;
      this.make();
    } else this.plot.setData(this.data);
  }

  make() {
    this.plot?.destroy();
    const names = this.names.split("\n");
    const grid = { stroke: style("--grid"), width: 1 }, stroke = style("--soft");
    const font = "12px system-ui, sans-serif";
    const { height, shown, points, seconds } = this.options;
    this.plot = new window.uPlot(
      {
        width: this.width(),
        height,
        legend: { show: false },
        cursor: { y: false, drag: { x: true, y: false } },
        scales: { x: { range: (_, low, high) => (seconds ? [Math.max(high - seconds, Math.min(low, high - LEAST)), high] : low === high ? [low - 1, high + 1] : [low, high]) } },
        axes: [
          { stroke, grid: { show: false }, ticks: grid, font, space: 90, size: 32, values: (_, times) => times.map(hour) },
          { stroke, grid, ticks: { show: false }, font, size: 56, values: (_, values) => values.map((value) => shown(value)) },
        ],
        series: [
          {},
          ...names.map((name, place) => ({
            label: name,
            stroke: colour(name, place),
            width: 1.7,
            spanGaps: true,
            points: { show: points && this.data[0].length < 60, size: 5 },
          })),
        ],
      },
      this.data,
      this.element,
    );
    this.legend.replaceChildren(
      ...names.map((name, place) => {
        const mark = h("i");
        mark.style.background = colour(name, place);
        return h("span", {}, mark, name);
      }),
    );
  }
}

function hour(time) {
  const when = new Date(time * 1000);
  return [when.getHours(), when.getMinutes(), when.getSeconds()].map((part) => String(part).padStart(2, "0")).join(":");
}
