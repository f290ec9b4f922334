// The progress panel: numbers, learning curve, class balance.

import { finishSteps } from "./finish.js";
import { showError, taskFigures } from "./tasks.js";
import { drawQuality } from "./quality.js";
import { getOnce } from "./server.js";
import { openView } from "./views.js";
import { count, dot, duration, make, bar, percent } from "./items.js";

const STATES = {
  idle: "The model is up to date.",
  waiting: "Waiting for more labels.",
  loading: "Loading …",
  features: "Computing the embeddings of the items …",
  scoring: "Scoring the whole pool …",
  map: "Computing the map …",
  training: "Training …",
  kernel: "Computing the kernel …",
};

const LOW_CONFIDENCE = 0.8;
const CLASSES_SHOWN = 12; // further classes are folded
let allClasses = false; // survives that the panel is redrawn with every answer
const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export function drawProgress(panel, found, context) {
  const old = panel.querySelector("#map"); // redrawn when its data arrive
  const scroll = panel.scrollTop;
  const curve = make("div", { id: "curve" });
  panel.replaceChildren(context.task ? taskFigures(found, figure) : figures(found), context.task ? "" : lowConfidence(), ...advice(found), ...guessers(found), training(found.training),
    make("section", {}, make("h2", { text: "Learning curve" }), curve),
    drawQuality(found), balance(found, context));
  if (old) panel.append(old);
  drawCurve(curve, found.curve, context.task);
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
  else if (estimated) all.append(figure(percent(estimated.value), estimated.low === undefined ? "estimated accuracy"
    : `estimated accuracy (${percent(estimated.low)} to ${percent(estimated.high)})`));
  const box = make("section", {}, all);
  const fall = found.curve.at(-1)?.fall, open = found.items - found.labels;
  if (typeof fall === "number" && open > 0) box.append(make("p", { id: "fall" }, "The next 20 labels are expected to correct ",
    make("strong", { text: `about ${Math.round(fall * open).toLocaleString("en")} of ${open.toLocaleString("en")}` }), " predictions."));
  if (!measured && estimated?.warning) box.append(make("p", { className: "faint", text: `About the estimate: ${estimated.warning}.` }));
  const aside = [found.none_of_these && `${found.none_of_these} none of these`, found.skipped && `${found.skipped} skipped`, found.unsure && `${found.unsure} not sure`].filter(Boolean).join(", ");
  if (aside) box.append(make("p", { className: "faint", text: `Also: ${aside}.` }));
  return box;
}

let shownLow = ""; // survives that the panel is redrawn
function lowConfidence() { // one click shows the predictions that are most probably wrong
  const button = make("button", { type: "button", id: "low-confidence", hidden: !shownLow, text: shownLow,
    on: { click: () => openView("gallery", { status: "unlabelled", below: LOW_CONFIDENCE, order: "least-certain" }) } });
  getOnce(`/api/gallery?status=unlabelled&below=${LOW_CONFIDENCE}`).then((view) => {
    shownLow = view.predicts && view.total ? `Show the ${count(view.total, "prediction", "predictions")} below ${percent(LOW_CONFIDENCE)}` : "";
    button.textContent = shownLow;
    button.hidden = !shownLow;
  }, () => null);
  return button;
}

function advice(found) {
  const { advice: text } = found;
  if (!text) return [];
  return [make("section", { id: "finish", className: "advice" }, make("p", { text: `${text[0].toUpperCase()}${text.slice(1).replace(/(\d)%/g, "$1\u00a0%")}.` }), finishSteps())];
}

function guessers(found) { // what is known without labels: how often it was right, what it is worth
  if (!found.guessers?.length) return [];
  const list = make("ul", { id: "guessers" });
  for (const text of found.guessers) list.append(make("li", { text: `${text.replace(/(\d)%/g, "$1\u00a0%")}.` }));
  return [make("section", {}, make("h2", { text: "Guesses" }), list)];
}

function training(status) {
  const box = make("section", {}, make("h2", { text: "The model" }));
  const busy = ["features", "scoring", "training", "kernel", "map"].includes(status.state);
  const left = typeof status.seconds_left === "number" ? ` About ${duration(status.seconds_left)} left.` : "";
  const among = status.state === "features" && status.in_play ? ` ${count(status.in_play, "item", "items")} can be queried so far.` : "";
  const later = status.labels_used - status.labels_at_last; // learnt without choosing the kernel, or training, again
  const last = status.round ? ` It uses ${count(status.labels_used, "label", "labels")}`
    + (later > 0 ? `, ${later} of them since the last refresh (round ${status.round}).` : ` (round ${status.round}).`) : "";
  const failed = status.state === "idle" && / failed: /.test(status.message);
  box.append(make("p", { text: (failed ? "The model could not be updated."
    : status.behind && status.state === "idle" ? "Including the newest labels …" : STATES[status.state] ?? "Working …") + among + left + last }));
  if (busy) box.append(make("progress", { max: 1, value: status.done ?? 0, "aria-label": "Training" }));
  if (status.model) box.append(make("p", { className: "faint", text: `Model: ${status.model}.` }));
  const { message } = status;
  if (message) box.append(make("p", { className: failed ? "" : "faint", text: `${message[0].toUpperCase()}${message.slice(1)}.` }));
  return box;
}

function drawCurve(box, curve, task) {
  const measured = curve.some((r) => r.accuracy !== null && r.accuracy !== undefined);
  const guess = (r) => (typeof r.error_rate === "number" ? (task ? r.error_rate : 1 - r.error_rate) : null);
  const value = (r) => (measured ? r.accuracy : guess(r)) ?? null;
  const rows = curve.filter((r) => value(r) !== null);
  if (rows.length < 2 || !globalThis.uPlot) {
    box.replaceChildren(make("p", { className: "faint", text: "The curve starts with the second training." }));
    return;
  }
  const ink = style("--ink"), line = style("--line"), accent = style("--accent");
  const axis = { stroke: ink, grid: { stroke: line, width: 1 }, ticks: { stroke: line }, font: "12px system-ui" };
  new uPlot({
    width: Math.max(240, box.clientWidth || 360), height: 170, legend: { show: false }, cursor: { show: false },
    scales: { x: { time: false }, y: { range: (u, low, high) => (task ? [0, high * 1.1] : [Math.max(0, low - 0.05), Math.min(1, high + 0.03)]) } },
    axes: [{ ...axis, size: 30 }, { ...axis, size: 58, values: (u, ticks) => ticks.map((t) => (task ? shortTick(t, task) : `${Math.round(100 * t)} %`)) }],
    series: [{}, { stroke: accent, width: 2, points: { show: true, size: 6, fill: accent } }],
  }, [rows.map((r) => r.labels), rows.map(value)], box);
  const first = rows[0], last = rows.at(-1);
  if (task) {
    box.append(make("p", { className: "faint", text: `Estimated ${task.error.name} by number of labels: `
      + `${showError(value(first))} with ${first.labels}, ${showError(value(last))} with ${last.labels}.` }));
    return;
  }
  box.append(make("p", { className: "faint", text: `${measured ? "Measured accuracy" : "Estimated accuracy"} by number of labels: `
    + `${percent(value(first))} with ${first.labels}, ${percent(value(last))} with ${last.labels}.` }));
}

const shortTick = (t, task) => (task.error.unit === "%" ? `${Math.round(100 * t)} %` : String(Number(t.toPrecision(3))));

function balance(found, context) {
  if (!context.classes.length) return ""; // numbers
  const sum = (all) => Math.max(1, all.reduce((a, b) => a + b, 0));
  const labels = sum(found.per_class), total = sum(found.predicted_per_class);
  const predicted = found.predicted_per_class.some(Boolean);
  const most = Math.max(...found.per_class.map((n) => n / labels), ...found.predicted_per_class.map((n) => n / total), 1e-9);
  const rows = context.classes.map(({ number: label, name }) => {
    const n = found.per_class[label] ?? 0, share = (found.predicted_per_class[label] ?? 0) / total;
    const drawn = bar(n / labels / most, label);
    if (predicted) {
      const tick = make("i");
      tick.style.left = `${(100 * share) / most}%`;
      drawn.append(tick);
    }
    return [Math.max(n / labels, share), make("li", {}, make("span", { className: "called" }, dot(label), name), drawn,
      make("span", { className: "number", text: predicted ? `${n} · ${percent(share)}` : String(n) }))];
  });
  const crowded = rows.length > CLASSES_SHOWN + 3; // of many classes show the largest, and fold the others
  if (crowded) rows.sort((a, b) => b[0] - a[0]);
  const list = (some) => make("ul", { className: "bars" }, ...some.map(([, row]) => row));
  return make("section", {}, make("h2", { text: "Labels of each class" }), list(crowded ? rows.slice(0, CLASSES_SHOWN) : rows),
    crowded ? make("details", { open: allClasses, on: { toggle: (event) => { allClasses = event.currentTarget.open; } } },
      make("summary", { text: `${rows.length - CLASSES_SHOWN} more classes` }), list(rows.slice(CLASSES_SHOWN))) : "",
    predicted ? make("p", { className: "faint", text: "The bar shows the class's share of the labels. The tick and the percentage show the share of the pool predicted to be in the class, on the same scale." }) : "");
}
