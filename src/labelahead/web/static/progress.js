// How it goes: numbers, learning curve, class balance.

import { count, dot, duration, make, bar, percent } from "./items.js";

const STATES = {
  idle: "The model is up to date.",
  waiting: "The model waits for more labels.",
  loading: "Getting ready …",
  features: "Looking at every item for the first time …",
  map: "Drawing the map …",
  training: "Training …",
  kernel: "Working out who influences whom …",
};

const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export function drawProgress(panel, found, context) {
  const old = panel.querySelector("#map"); // drawn anew when its data are there
  const scroll = panel.scrollTop;
  const curve = make("div", { id: "curve" });
  panel.replaceChildren(figures(found), ...advice(found), training(found.training),
    make("section", {}, make("h2", { text: "Learning curve" }), curve),
    balance(found, context));
  if (old) panel.append(old);
  drawCurve(curve, found.curve);
  panel.scrollTop = scroll;
}

function figure(value, words) {
  return make("div", { className: "figure" }, make("strong", { text: value }), make("span", { text: words }));
}

function figures(found) {
  const { measured, estimated } = found.accuracy;
  const all = make("div", { className: "figures" },
    figure(String(found.labels), found.budget ? `of ${found.budget} labels` : found.labels === 1 ? "label" : "labels"));
  if (measured) all.append(figure(percent(measured.value), "measured accuracy"));
  else if (estimated) all.append(figure(percent(estimated.value), estimated.low === undefined ? "accuracy, estimated"
    : `accuracy, estimated (${percent(estimated.low)} to ${percent(estimated.high)})`));
  if (found.gain !== null && found.gain !== undefined) all.append(figure(found.gain.toPrecision(2), "expected gain of the next label"));
  const box = make("section", {}, all);
  if (!measured && estimated?.warning) box.append(make("p", { className: "faint", text: `Estimated: ${estimated.warning}.` }));
  const aside = [found.skipped && `${found.skipped} skipped`, found.unsure && `${found.unsure} not sure`].filter(Boolean).join(", ");
  if (aside) box.append(make("p", { className: "faint", text: `Besides: ${aside}.` }));
  return box;
}

function advice(found) {
  return found.advice ? [make("p", { className: "advice", text: found.advice })] : [];
}

function training(status) {
  const box = make("section", {}, make("h2", { text: "The model" }));
  const busy = ["features", "training", "kernel"].includes(status.state);
  const left = typeof status.seconds_left === "number" ? ` About ${duration(status.seconds_left)} left.` : "";
  const among = status.state === "features" && status.in_play ? ` ${count(status.in_play, "item is", "items are")} in play.` : "";
  const last = status.round ? ` Round ${status.round}, learnt from ${count(status.labels_at_last, "label", "labels")}.` : "";
  box.append(make("p", { text: (STATES[status.state] ?? status.state) + among + left + last }));
  if (busy) box.append(make("progress", { max: 1, value: status.done ?? 0, "aria-label": "Training" }));
  if (status.model) box.append(make("p", { className: "faint", text: `Learns by: ${status.model}.` }));
  if (status.message) box.append(make("p", { className: "faint", text: status.message }));
  return box;
}

function drawCurve(box, curve) {
  const measured = curve.some((r) => r.accuracy !== null && r.accuracy !== undefined);
  const guess = (r) => (typeof r.error_rate === "number" ? 1 - r.error_rate : r.loo ?? r.loo_all);
  const value = (r) => (measured ? r.accuracy : guess(r)) ?? null;
  const rows = curve.filter((r) => value(r) !== null);
  if (rows.length < 2 || !globalThis.uPlot) {
    box.replaceChildren(make("p", { className: "faint", text: "It begins with the second training." }));
    return;
  }
  const ink = style("--ink"), line = style("--line"), accent = style("--accent");
  const axis = { stroke: ink, grid: { stroke: line, width: 1 }, ticks: { stroke: line }, font: "12px system-ui" };
  new uPlot({
    width: Math.max(240, box.clientWidth || 360), height: 170, legend: { show: false }, cursor: { show: false },
    scales: { x: { time: false }, y: { range: (u, low, high) => [Math.max(0, low - 0.05), Math.min(1, high + 0.03)] } },
    axes: [{ ...axis, size: 30 }, { ...axis, size: 46, values: (u, ticks) => ticks.map((t) => `${Math.round(100 * t)} %`) }],
    series: [{}, { stroke: accent, width: 2, points: { show: true, size: 6, fill: accent } }],
  }, [rows.map((r) => r.labels), rows.map(value)], box);
  const first = rows[0], last = rows.at(-1);
  box.append(make("p", { className: "faint", text: `${measured ? "Measured accuracy" : "Estimated accuracy"} by number of labels: `
    + `${percent(value(first))} with ${first.labels}, ${percent(value(last))} with ${last.labels}.` }));
}

function balance(found, context) {
  const most = Math.max(1, ...found.per_class);
  const total = found.predicted_per_class.reduce((a, b) => a + b, 0);
  const rows = found.per_class.map((n, label) => make("li", {},
    make("span", { className: "called" }, dot(label), context.nameOf(label)), bar(n / most, label),
    make("span", { className: "number", text: total ? `${n} · ${percent(found.predicted_per_class[label] / total)}` : String(n) })));
  return make("section", {}, make("h2", { text: "Labels of each class" }),
    make("ul", { className: "bars" }, ...rows),
    total ? make("p", { className: "faint", text: "Beside the number of labels: the share of the pool that is predicted to be of the class." }) : "");
}
