// Answers to other tasks than one class per item: sets of classes, numbers, ratings.

import { chance, colour, count, dot, guessesHidden, make, percent } from "./items.js";
import { $, announce, answerFor, onStage, state, undo } from "./label.js";

const TICK_KEY = "labelahead-tick"; // whether predicted classes are ticked beforehand
const USE_KEY = ";"; // takes the prediction over

export const task = () => state.session?.task ?? null;
export const isTask = (...names) => names.includes(task()?.name);
export const ticksBeforehand = () => { try { return localStorage.getItem(TICK_KEY) === "1"; } catch { return false; } };
const setTicksBeforehand = (yes) => { try { localStorage.setItem(TICK_KEY, yes ? "1" : "0"); } catch { /* storage is forbidden: the setting lasts until the page is closed */ } };

// A written answer for people: "cat;?fox" -> "cat, fox not reviewed".
export function nameAnswer(written) {
  if (written === null || written === undefined) return "–";
  if (isTask("multilabel")) {
    if (written === "[]") return "no class";
    return written.split(";").map((name) => (name.startsWith("?") ? `${name.slice(1)} not reviewed` : name)).join(", ");
  }
  if (!isTask("number")) return written;
  const { unit, outputs } = task();
  const parts = written.split(";").map((part) => (part === "?" ? "–" : `${part}${unit ? ` ${unit}` : ""}`));
  return parts.length > 1 ? parts.map((part, d) => `${outputs[d]} ${part}`).join(", ") : parts[0];
}

// ---- predictions ----------------------------------------------------------------------------

export const prediction = () => (guessesHidden() || state.again ? null : state.query?.prediction ?? null);

const withUnit = (x) => `${x}${task().unit ? ` ${task().unit}` : ""}`;
const interval = (out) => `${withUnit(out.mean)} (${out.low} to ${out.high}, 90\u00a0%)`;

export function namePrediction(found) {
  if (isTask("number")) return found.outputs.map((out) => (found.outputs.length > 1 ? `${out.name} ${interval(out)}` : interval(out))).join(", ");
  return found.text.split("; ").join(", ");
}

export function drawTaskGuess(line) {
  const found = prediction();
  line.hidden = !found;
  if (!found) return;
  const rating = isTask("rating");
  const p = rating ? found.outputs[found.label].p : null;
  line.replaceChildren(make("span", { text: "Prediction:" }), make("strong", { text: namePrediction(found) }),
    make("span", { text: p === null ? "" : `(${chance(p)})` }),
    make("button", { type: "button", id: rating ? "agree" : "use", className: "quiet", on: { click: rating ? () => submit() : usePrediction } },
      rating ? "accept " : "use it ", make("kbd", { text: rating ? "Enter" : USE_KEY })));
}

export function predictionSection(why, section, note) { // of the panel Why
  const found = why.prediction;
  if (why.learnt) return note("The item is labelled and the model is fitted on that label, so its prediction is not informative here.");
  if (!found) return note("The model has no prediction yet; it needs two answers.");
  if (isTask("number")) {
    return section("Prediction", make("p", {}, make("strong", { text: namePrediction(found) })),
      note("The interval contains the answer in about nine of ten cases."));
  }
  const rows = found.outputs.map(({ label, p, chosen }) => make("li", {},
    make("span", { className: "called" }, chosen ? make("strong", { text: nameOfOutput(label) }) : nameOfOutput(label)),
    meter(p, label), make("span", { className: "number", text: chance(p) })));
  const title = isTask("rating") ? `Predicted rating: ${found.text}` : `Predicted: ${namePrediction(found)}`;
  return section(title, make("ul", { className: "bars" }, ...rows));
}

const nameOfOutput = (label) => state.classes.find((c) => c.number === label)?.name ?? String(label);

function meter(share, label) {
  const inner = make("span");
  inner.style.width = `${100 * share}%`;
  inner.style.backgroundColor = colour(label);
  return make("span", { className: "meter", "aria-hidden": "true" }, inner);
}

// ---- the form -------------------------------------------------------------------------------

let chosen = new Set(); // class numbers that are ticked
let drawnFor = null; // the item that the form is for

const KEYS = {
  multilabel: [["the key of a class", "tick or untick it"], ["Enter", "submit; nothing ticked is an answer, too: no class"], [USE_KEY, "tick the predicted classes"]],
  number: [["digits", "type the number, with a decimal point or comma, perhaps with the unit"], ["Enter", "submit"], [USE_KEY, "enter the prediction"],
    ["s", "skip"], ["u", "not sure"], ["Esc", "leave the field; then the other keys of this list work"]],
  rating: [["the key of a level", "give this rating"], ["Enter", "accept the prediction"]],
};
const FIRST_MESSAGE = document.getElementById("said").textContent; // of the page, about classes
const STARTS = { multilabel: "Tick the classes by their keys, then press Enter.", number: "Type the number, then press Enter.", rating: "Press the key of a level, or click it." };
const QUESTIONS = { multilabel: "Which classes does it have?", number: "What is the number?", rating: "Which rating?" };

export function drawTask() {
  const current = task();
  document.body.dataset.task = current?.name ?? "";
  $("task").hidden = !isTask("multilabel", "number");
  $("tick-row").hidden = !isTask("multilabel");
  $("views").hidden = Boolean(current);
  if (!current) return;
  $("question").textContent = QUESTIONS[current.name];
  if ($("said").textContent === FIRST_MESSAGE) $("said").textContent = STARTS[current.name];
  document.querySelector(".finder").hidden = !isTask("multilabel");
  $("manyopen").hidden = true;
  $("task-keys").replaceChildren(...KEYS[current.name].flatMap(([key, words]) => [
    make("dt", {}, key.length < 7 && key !== "digits" ? make("kbd", { text: key }) : key), make("dd", { text: words })]));
  for (const [id, key] of [["skip", isTask("number") ? "s" : "-"], ["unsure", isTask("number") ? "u" : "."]]) {
    $(id).setAttribute("aria-keyshortcuts", key);
    $(id).querySelector("kbd").textContent = key;
  }
  const found = onStage();
  const mark = found && !found.done ? `${found.position} ${state.again ? state.again.seq ?? "again" : ""}` : "";
  if (drawnFor === mark) return;
  drawnFor = mark;
  fill(found);
}

export const forgetAnswer = () => { drawnFor = null; }; // of an item that comes again

function fill(found) { // an earlier answer is there to be changed
  const before = state.again && found?.answer ? found.answer : null;
  if (isTask("multilabel")) {
    const names = (before ?? "").split(";");
    chosen = new Set(state.classes.filter((c) => names.includes(c.name)).map((c) => c.number));
    if (!state.again && ticksBeforehand()) tickPredicted();
    drawSet();
  } else if (isTask("number")) drawNumbers((before ?? "").split(";"));
}

export const isChosen = (label) => chosen.has(label);

export function toggle(label) {
  if (!chosen.delete(label)) chosen.add(label);
  for (const b of document.querySelectorAll("button.class")) b.setAttribute("aria-pressed", String(chosen.has(Number(b.dataset.label))));
  drawSet();
  announce(`${nameOfOutput(label)} ${chosen.has(label) ? "ticked" : "not ticked"}.`);
}

function tickPredicted() {
  for (const { label, chosen: yes } of prediction()?.outputs ?? []) if (yes) chosen.add(label);
}

function drawSet() {
  const names = state.classes.filter((c) => chosen.has(c.number)).map((c) => c.name);
  $("task").replaceChildren(
    make("p", { id: "chosen" }, ...(names.length ? state.classes.filter((c) => chosen.has(c.number)).map((c) => make("span", { className: "chip" }, dot(c.number), c.name))
      : [make("span", { className: "faint", text: "No class is ticked." })])),
    make("button", { type: "button", id: "submit", className: "strong", "aria-keyshortcuts": "Enter", on: { click: () => submit() } },
      names.length ? `Submit ${count(names.length, "class", "classes")} ` : "Submit “no class” ", make("kbd", { text: "Enter" })));
}

const range = () => {
  const { low, high, unit } = task();
  const of = unit ? ` ${unit}` : "";
  if (low !== null && high !== null) return `${low} to ${high}${of}`;
  if (low !== null) return `${low}${of} or more`;
  return high !== null ? `at most ${high}${of}` : unit;
};

function drawNumbers(values) {
  const { outputs, low, high, unit } = task();
  const alone = outputs.length === 1;
  const bounded = low !== null && high !== null;
  const fields = outputs.map((name, d) => {
    const field = make("input", { id: `number-${d}`, type: "text", inputMode: "decimal", autocomplete: "off", maxLength: 40,
      value: values[d] && values[d] !== "?" ? values[d] : "", "aria-describedby": "number-range number-wrong" });
    const label = make("label", { htmlFor: `number-${d}`, text: alone ? "Number" : name, className: alone ? "unseen" : "" });
    const row = make("div", { className: "number-row" }, label, field, unit ? make("span", { text: unit }) : null);
    if (bounded) {
      const slider = make("input", { type: "range", min: String(low), max: String(high), step: "any", tabIndex: -1,
        "aria-label": `${alone ? "Number" : name}, as a slider` });
      const digits = Math.max(0, 2 - Math.floor(Math.log10(high - low)));
      const follow = () => { const x = readNumber(field.value); slider.value = String(typeof x === "number" ? x : (low + high) / 2); };
      slider.addEventListener("input", () => { field.value = String(Number(Number(slider.value).toFixed(digits))); complain(""); });
      field.addEventListener("input", follow);
      follow();
      row.append(make("span", { className: "slide" }, make("span", { className: "faint", text: String(low) }), slider, make("span", { className: "faint", text: String(high) })));
    }
    field.addEventListener("input", () => complain(""));
    field.addEventListener("keydown", numberKey);
    return row;
  });
  const hint = [range() && `Expected: ${range()}.`, alone ? "" : "Leave a field empty if it is not known."].filter(Boolean).join(" ");
  $("task").replaceChildren(...fields, make("p", { id: "number-range", className: "faint", text: hint }),
    make("p", { id: "number-wrong", className: "lost", role: "alert" }),
    make("button", { type: "button", id: "submit", className: "strong", "aria-keyshortcuts": "Enter", on: { click: () => submit() } }, "Submit ", make("kbd", { text: "Enter" })));
}

// Keys in a number's field: letters are commands, since no number has them.
function numberKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
  const empty = event.currentTarget.value === "";
  const commands = { Escape: () => $("stage").focus(), Enter: () => submit(), [USE_KEY]: usePrediction, s: () => $("skip").click(), u: () => $("unsure").click(), "?": () => $("keys").showModal() };
  if (empty) commands.Backspace = () => undo();
  const command = commands[event.key];
  if (!command) return;
  event.preventDefault();
  if (!event.repeat) command();
}

// The number in a text, with a decimal point or comma, perhaps with the unit; null if empty, undefined if it is none.
export function readNumber(text) {
  let plain = text.trim();
  const { unit } = task();
  if (unit && plain.endsWith(unit)) plain = plain.slice(0, -unit.length).trim();
  plain = plain.replaceAll(/[\s\u00a0\u202f’']/g, "").replaceAll("−", "-");
  if (!plain) return null;
  const comma = plain.lastIndexOf(","), point = plain.lastIndexOf(".");
  if (comma > point) plain = plain.replaceAll(".", "").replace(",", "."); // 1.234,5
  else if (comma >= 0) plain = plain.replaceAll(",", ""); // 1,234.5
  return /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(plain) ? Number(plain) : undefined;
}

function complain(text) {
  const line = $("number-wrong");
  if (line) line.textContent = text;
  for (const field of document.querySelectorAll("#task input[type=text]")) field.setAttribute("aria-invalid", String(Boolean(text)));
}

function readNumbers() { // the answer, or undefined after a message
  const fields = [...document.querySelectorAll("#task input[type=text]")];
  const values = fields.map((field) => readNumber(field.value));
  const { low, high } = task();
  const wrong = values.findIndex((x) => x === undefined || (x !== null && ((low !== null && x < low) || (high !== null && x > high))));
  const empty = values.every((x) => x === null);
  if (wrong >= 0 || empty) {
    const field = fields[Math.max(wrong, 0)];
    complain(empty ? "Type a number, or skip the item."
      : values[wrong] === undefined ? `“${field.value.trim()}” is not a number; type one such as 3.5.` : `${field.value.trim()} is out of range; expected ${range()}.`);
    field.focus();
    return undefined;
  }
  return values.length === 1 ? values[0] : values;
}

// ---- actions --------------------------------------------------------------------------------

export function usePrediction() {
  const found = prediction();
  if (!found) return;
  if (isTask("multilabel")) {
    chosen = new Set();
    tickPredicted();
    for (const b of document.querySelectorAll("button.class")) b.setAttribute("aria-pressed", String(chosen.has(Number(b.dataset.label))));
    drawSet();
  } else if (isTask("number")) {
    found.outputs.forEach((out, d) => {
      const field = $(`number-${d}`);
      field.value = String(out.mean);
      field.dispatchEvent(new Event("input"));
    });
    $("number-0").focus();
  }
  announce(`Prediction taken over: ${namePrediction(found)}. Press Enter to submit.`);
}

export async function submit() {
  const found = onStage();
  if (!found || found.done || found.position === undefined) return;
  let value;
  if (isTask("multilabel")) value = state.classes.filter((c) => chosen.has(c.number)).map((c) => c.name);
  else if (isTask("number")) value = readNumbers();
  else value = prediction()?.value; // a rating that is accepted
  if (value === undefined) return;
  const saved = await answerFor(found, "label", null, value);
  if (!saved && isTask("number")) complain($("said").textContent); // why the server refused it
  else focusForm();
}

export function focusForm() { // so that the next key applies to the item that is visible
  if (isTask("number") && !onStage()?.done) $("number-0")?.focus({ preventScroll: true });
  else $("stage").focus({ preventScroll: true });
}

// Keys of a task outside its fields; returns whether the key was one.
export function taskKey(event, resting) {
  if (!isTask("multilabel", "number")) return false;
  const known = event.key.length === 1 && isTask("multilabel") && state.classes.find((c) => c.key === event.key.toLowerCase());
  const typed = isTask("number") && resting && /^[\d+.,]$/.test(event.key);
  if (typed && $("number-0")) { $("number-0").focus(); return true; } // the key goes into the field
  const act = known ? () => toggle(known.number)
    : event.key === USE_KEY ? usePrediction
      : event.key === "Enter" && resting ? () => submit()
        : isTask("number") && event.key === "s" ? () => $("skip").click() : isTask("number") && event.key === "u" ? () => $("unsure").click() : null;
  if (!act) return ["*", ","].includes(event.key); // the gallery and bulk confirmation are for single classes
  event.preventDefault();
  if (!event.repeat) act();
  return true;
}

export function startTask() {
  const tick = $("tick");
  tick.checked = ticksBeforehand();
  tick.addEventListener("change", () => {
    setTicksBeforehand(tick.checked);
    forgetAnswer();
    drawTask();
    for (const b of document.querySelectorAll("button.class")) b.setAttribute("aria-pressed", String(chosen.has(Number(b.dataset.label))));
  });
}

// ---- progress -------------------------------------------------------------------------------

const MEASURES = { hamming_loss: "Hamming loss", micro_f1: "micro F1", macro_f1: "macro F1", average_precision: "average precision",
  rmse: "root mean square error", r2: "R²", coverage: "coverage of 90\u00a0% intervals", interval_width: "mean width of intervals",
  mae: "mean absolute error", quadratic_kappa: "quadratic kappa", accuracy: "accuracy" };

export function showError(x) {
  const { unit } = task().error;
  if (unit === "%") return percent(x);
  return `${x < 0.1 ? x.toPrecision(2) : x >= 100 ? Math.round(x).toLocaleString("en") : x.toFixed(2)}${unit ? ` ${unit}` : ""}`;
}

export function taskFigures(found, figure) {
  const { error } = found;
  const all = make("div", { className: "figures" },
    figure(String(found.labels), found.budget ? `of ${found.budget} labels` : found.labels === 1 ? "label" : "labels"));
  const box = make("section", {}, all);
  if (!error) return box;
  if (typeof error.value === "number") {
    all.append(figure(showError(error.value), `estimated ${task().error.name} (${showError(error.low)} to ${showError(error.high)})`));
    if (error.fall > 0) box.append(make("p", { id: "fall" }, "The next 20 labels are expected to lower it by ", make("strong", { text: `about ${showError(error.fall)}` }), "."));
    if (error.few) box.append(make("p", { className: "faint", text: "With fewer than 50 labels the estimate may be inaccurate." }));
  }
  const measured = Object.entries(error.measures);
  if (measured.length) {
    box.append(make("dl", { className: "pairs", id: "measures" }, ...measured.flatMap(([name, x]) => [
      make("dt", { text: MEASURES[name] ?? name }), make("dd", { text: name === task().error.measure ? showError(x) : x === null ? "–" : x.toFixed(2) })])),
    make("p", { className: "faint", text: "Measured on the test items." }));
  }
  return box;
}
