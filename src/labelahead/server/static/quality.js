// The quality of every class on the progress panel: precision, recall, F1, the confusion matrix.

import { count, dot, make, percent } from "./items.js";

let shown = { matrix: false, every: false }; // survives that the panel is redrawn with every answer
const ROWS_SHOWN = 12; // further classes are folded

function estimate(found) { // [value, low, high]
  if (!found) return make("td", { className: "number", text: "–", title: "no item is predicted to be of this class" });
  const [value, low, high] = found;
  return make("td", { className: "number" }, percent(value), make("span", { className: "faint", text: `${percent(low)} to ${percent(high)}` }));
}

function line(row) {
  const name = make("th", { scope: "row" }, make("span", { className: "called" }, dot(row.number), row.name));
  const note = row.warning ? [make("tr", { className: "note" }, make("td", { colSpan: 5, text: `${row.name}: ${row.warning}` }))] : [];
  return [make("tr", {}, name, make("td", { className: "number", text: String(row.labels) }), estimate(row.precision), estimate(row.recall), estimate(row.f1)), ...note];
}

const heads = (texts) => make("thead", {}, make("tr", {}, ...texts.map((text) => make("th", { scope: "col", text }))));
const table = (rows) => make("table", { className: "quality" }, heads(["class", "labels", "precision", "recall", "F1"]), make("tbody", {}, ...rows.flatMap(line)));

function matrix({ classes, confusion }) {
  const rows = classes.map((row, i) => make("tr", {}, make("th", { scope: "row", text: row.name }), ...confusion[i].map((value, j) => {
    const share = value / Math.max(row.expected, 1e-9);
    const cell = make("td", { className: i === j ? "number right" : "number", text: String(Math.round(value)),
      title: `${row.name}, predicted as ${classes[j].name}: ${value}` });
    cell.style.setProperty("--share", `${Math.round(100 * Math.min(1, share))}%`);
    return cell;
  })));
  return make("table", { className: "confusion" }, heads(["true class", ...classes.map((row) => row.name)]), make("tbody", {}, ...rows));
}

function fold(key, words, content) {
  return make("details", { open: shown[key], on: { toggle: (event) => { shown = { ...shown, [key]: event.currentTarget.open }; } } },
    make("summary", { text: words }), make("div", { className: "wide", tabIndex: 0, role: "region", "aria-label": words }, content));
}

export function drawQuality(found) {
  const quality = found.class_quality;
  if (!quality?.classes.length) return "";
  const rows = [...quality.classes];
  const crowded = rows.length > ROWS_SHOWN + 3; // of many classes show the worst, and fold the others
  if (crowded) rows.sort((a, b) => a.f1[0] - b.f1[0]);
  const few = rows.filter((row) => row.warning).length;
  const items = quality.classes.reduce((sum, row) => sum + row.predicted, 0);
  return make("section", { id: "quality" }, make("h2", { text: "Quality of each class" }),
    few ? make("p", { className: "few", text: `${count(few, "class has", "classes have")} too few labels for a reliable estimate.` }) : "",
    make("div", { className: "wide", tabIndex: 0, role: "region", "aria-label": "Quality of each class" }, table(crowded ? rows.slice(0, ROWS_SHOWN) : rows)),
    crowded ? fold("every", `${rows.length - ROWS_SHOWN} classes with a higher F1`, table(rows.slice(ROWS_SHOWN))) : "",
    quality.confusion ? fold("matrix", "Estimated confusion matrix", matrix(quality)) : "",
    make("p", { className: "faint", text: `Estimated from ${count(quality.labels, "label", "labels")} for ${count(items, "item", "items")} without a label, with 90\u00a0% intervals for each number. `
      + `The mean F1 is ${percent(quality.macro_f1)}. The Audit measures the same on random items.` }));
}
