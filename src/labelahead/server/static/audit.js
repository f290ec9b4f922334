// The audit as a full view: random items without their predictions, an interval that narrows, the certificate.
// Answers go to the journal of the audit and teach the model only after the certificate.

import { count, dot, large, make, title } from "./items.js";
import { $, state } from "./label.js";
import { getFile, getOnce, send } from "./server.js";
import { player } from "./sound.js";
import { addView, currentView } from "./views.js";

const room = $("audit");
let audit = null; // as the server describes it
let asked = null; // the item that is shown
let before = null; // the item that was answered last, to correct it
let busy = false;

const points = (share) => `${(100 * share).toFixed(1)}\u00a0%`;
const button = (id, text, act, className = "") => make("button", { type: "button", id: `audit-${id}`, text, className, on: { click: act } });
const note = make("p", { id: "audit-note", role: "status", className: "faint" });
const heading = () => make("h2", { id: "audit-title", text: "How good is this, really?" });

async function guarded(act) {
  if (busy) return;
  busy = true;
  room.classList.add("busy");
  try { await act(); } catch (error) { note.textContent = error.message; } finally { busy = false; room.classList.remove("busy"); }
}

async function open() {
  try {
    audit = await getOnce("/api/audit");
    if (audit.running && !asked) await ask();
    draw();
  } catch (error) { note.textContent = error.message; room.replaceChildren(heading(), note); }
}

async function ask() {
  asked = (await getOnce("/api/audit/question")).item;
}

const start = () => guarded(async () => {
  note.textContent = "Fitting the model on all labels and freezing its predictions …";
  audit = await send("/api/audit", { target: Number($("audit-target").value) / 100 });
  note.textContent = "";
  await ask();
  draw();
});

const answer = (label) => guarded(async () => {
  const item = asked;
  audit = await send("/api/audit/answers", { position: item.position, label });
  before = item;
  await ask();
  draw();
});

const back = () => { if (before && !busy) { [asked, before] = [before, null]; draw(); } };

const issue = () => guarded(async () => {
  audit = await send("/api/audit/certificate", {});
  await download();
  draw();
});

async function download() {
  const { blob } = await getFile("/api/audit/certificate.html");
  const url = URL.createObjectURL(blob);
  const link = make("a", { href: url, download: "certificate.html" });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
  note.textContent = "The certificate is in your downloads, and with its JSON in the folder of the session.";
}

const teach = () => guarded(async () => {
  const done = await send("/api/audit/teach", {});
  [audit, asked, before] = [done, null, null];
  note.textContent = `${count(done.added, "answer has", "answers have")} become labels.`;
  draw();
});

function drawStart() {
  const choices = [[1, "±1 point"], [2, "±2 points"], [3, "±3 points"], [5, "±5 points"]];
  const select = make("select", { id: "audit-target" }, ...choices.map(([value, text]) => make("option", { value, text, selected: value === 2 })));
  const begin = button("start", "Start the audit", start, "strong");
  begin.disabled = !audit.ready;
  room.replaceChildren(make("div", { className: "audit-start" }, heading(),
    make("p", { text: "The accuracy on the Progress tab is the model’s own estimate. An audit measures the accuracy: you label items drawn at random, without seeing the predictions. An interval for the accuracy narrows with each answer. It stays valid however often you look, so you can stop at any time." }),
    make("p", { text: "The predictions are frozen when the audit begins. Your answers are kept apart from the labels. After the certificate is issued, you can use them as labels." }),
    make("p", { className: "row" }, make("label", {}, "Goal: the accuracy within ", select), begin),
    audit.ready ? null : make("p", { role: "note", text: "The audit needs a model: label items of at least two classes first." }),
    audit.finished ? make("p", {}, button("last", "Download the last certificate", () => guarded(download), "quiet")) : null, note));
}

function drawInterval() {
  const { value, low, high } = audit.accuracy;
  const floor = Math.max(0, Math.min(0.9, Math.floor(10 * low) / 10));
  const at = (share) => `${100 * Math.max(0, (share - floor) / (1 - floor))}`;
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 100 6");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", `Accuracy between ${points(low)} and ${points(high)}`);
  const rectangle = (x, width, name) => {
    const node = document.createElementNS(svg.namespaceURI, "rect");
    for (const [key, given] of Object.entries({ x, y: 0, width, height: 6, class: name })) node.setAttribute(key, given);
    svg.append(node);
  };
  rectangle(0, 100, "audit-all");
  rectangle(at(low), at(high) - at(low), "audit-range");
  rectangle(at(value) - 0.25, 0.5, "audit-value");
  return make("div", { className: "audit-interval" },
    make("p", { className: "audit-big", id: "audit-value", text: audit.labels ? points(value) : "–" }),
    make("p", { id: "audit-between", text: audit.labels ? `between ${points(low)} and ${points(high)}` : "The interval appears with the first answer." }), svg,
    make("p", { className: "audit-ends faint" }, make("span", { text: points(floor) }), make("span", { text: points(1) })),
    make("p", { className: "faint", id: "audit-count", text: `${count(audit.labels, "answer", "answers")} of ${count(audit.items, "unlabelled item", "unlabelled items")}; confidence ${100 * audit.confidence}\u00a0%, whenever you stop` }));
}

function drawAllocation() {
  const rows = audit.strata.map((row) => make("tr", {}, make("td", { text: `${points(row.low)} to ${points(row.high)}` }), make("td", { text: row.items.toLocaleString("en") }), make("td", { text: `${Math.round(100 * row.share)}\u00a0%` })));
  return make("details", {}, make("summary", { text: "How the items are drawn" }),
    make("table", {}, make("thead", {}, make("tr", {}, ...["Predicted error", "Items", "Share of draws"].map((text) => make("th", { text, scope: "col" })))), make("tbody", {}, ...rows)));
}

function drawClasses() {
  const none = state.session?.none_of_these;
  const one = (number, name, key) => make("button", { type: "button", "data-label": String(number), on: { click: () => answer(number) } }, dot(number), ` ${name} `, key ? make("kbd", { text: key }) : null);
  return make("div", { className: "audit-classes", role: "group", "aria-label": "Classes" },
    ...state.classes.map((c) => one(c.number, c.name, c.key)), none ? one(none.number, "None of these", none.key) : null);
}

function draw() {
  if (!audit.running) { drawStart(); return; }
  const half = (audit.accuracy.high - audit.accuracy.low) / 2;
  const reached = half <= audit.target;
  const question = asked
    ? make("section", { className: "audit-item", "aria-label": "Item" }, make("h2", { text: "Which class is it?" }), make("div", { className: "audit-shown", tabindex: asked.url ? null : "0" }, asked.sound ? player(asked) : large(asked)),
      make("p", { className: "caption", text: title(asked) }), drawClasses())
    : make("section", { className: "audit-item" }, make("p", { text: "Every item of the audit has an answer. Issue the certificate." }));
  const undo = button("back", "Correct the last answer", back, "quiet");
  undo.disabled = !before;
  const finish = button("issue", audit.issued ? "Issue it again" : "Stop and issue the certificate", issue, reached ? "strong" : "");
  finish.disabled = !audit.labels;
  const lessons = audit.issued ? button("teach", "Use the answers as labels and close the audit", teach) : null;
  room.replaceChildren(make("div", { className: "audit-columns" }, question, make("aside", { "aria-label": "Result" }, heading(), drawInterval(),
    make("p", { id: "audit-advice", text: reached ? `The goal of ±${(100 * audit.target).toFixed(0)} points is reached. Issue the certificate, or go on for a narrower interval.` : `Goal: ±${(100 * audit.target).toFixed(0)} points; now ±${(100 * half).toFixed(1)}.` }),
    make("p", { className: "row" }, finish, lessons), make("p", {}, undo), drawAllocation(), note)));
}

addEventListener("keydown", (event) => {
  if (currentView() !== "audit" || event.ctrlKey || event.metaKey || event.altKey || event.repeat || document.querySelector("dialog[open]")) return;
  if (!audit?.running || !asked || event.target.matches?.("select, input")) return;
  if (event.key === "Backspace") { event.preventDefault(); back(); return; }
  const none = state.session?.none_of_these;
  const known = event.key === none?.key ? none : event.key.length === 1 && state.classes.find((c) => c.key === event.key.toLowerCase());
  if (!known) return;
  event.preventDefault();
  answer(known.number);
});

addView("audit", open);
