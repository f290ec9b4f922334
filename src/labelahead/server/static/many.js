// Bulk confirmation of confident predictions of one class: a click or a key marks an exception, Enter confirms the rest.

import { chance, count, dot, make, thumb, title } from "./items.js";
import { $, alone, drawTally, openItems, nameOf, announce, show, state, undo, undone } from "./label.js";
import { get, sendAnswer } from "./server.js";

const KEYS = "123456789abcdefghijklmnopqrstuvwxyz"; // keys of the items, in the order of display
const COLUMNS = 6; // of the grid, at most
const box = $("many");
let grid = null;
let exceptions = new Set(); // positions, of this grid
let left = []; // exceptions of earlier grids, to be queried afterwards
let saved = []; // numbers of the confirmed grids, the newest last
let number = 0;

async function open() {
  if (!box.open) { left = []; saved = []; box.showModal(); $("manytold").textContent = ""; }
  await load();
}

async function load(label) {
  grid = await get(`/api/confirmations?n=24${label === undefined ? "" : `&label=${label}`}`);
  exceptions = new Set();
  const known = new Set(left.map((item) => item.position)); // exceptions are not offered again
  grid.items = grid.items.filter((item) => !known.has(item.position));
  draw();
}

function draw() {
  const name = nameOf(grid.label);
  $("manytitle").replaceChildren(...(grid.items.length
    ? ["Are these all ", dot(grid.label), ` “${name}”? Click the exceptions`] : ["No prediction is confident enough yet"]));
  $("manywhich").replaceChildren(...grid.sure.map(({ label, items }) => make("option", { value: String(label), text: `${nameOf(label)} (${items})` })));
  $("manywhich").value = String(grid.label);
  $("manywhich").parentElement.hidden = grid.sure.length < 2;
  $("manyitems").replaceChildren(...grid.items.map((item, n) => {
    const button = make("button", {
      type: "button", "data-position": String(item.position), title: `${title(item)}: ${chance(item.p)}`, "aria-pressed": "false",
      on: { click: () => toggle(n) },
    }, KEYS[n] ? make("kbd", { text: KEYS[n] }) : null, thumb(item, 240, 12), item.url ? make("span", { className: "unseen", text: title(item) }) : null);
    return make("li", {}, button);
  }));
  $("manyleast").textContent = grid.items.length ? `Press an item's key, or click it, to mark an exception. Lowest probability: ${chance(grid.items.at(-1).p)}.`
    : "Items appear here once their predicted probability is 80 % or more.";
  $("manyitems").querySelector("button")?.focus({ preventScroll: true });
  drawRest();
}

function drawRest() {
  const rest = grid.items.length - exceptions.size;
  $("manyyes").hidden = !grid.items.length;
  $("manyyes").replaceChildren(rest ? `Confirm ${count(rest, "item", "items")} ` : "None of them ", make("kbd", { text: "Enter" }));
}

function toggle(n) {
  const item = grid.items[n];
  if (!item) return;
  if (!exceptions.delete(item.position)) exceptions.add(item.position);
  $("manyitems").children[n].firstElementChild.setAttribute("aria-pressed", String(exceptions.has(item.position)));
  drawRest();
}

async function confirm() {
  if (!grid?.items.length) return;
  const { label } = grid;
  const out = grid.items.filter((item) => exceptions.has(item.position));
  const positions = grid.items.filter((item) => !exceptions.has(item.position)).map((item) => item.position);
  const done = await alone(async () => {
    const answered = positions.length ? await sendAnswer({ positions, label }) : null;
    if (answered) { drawTally(answered.labels, state.budget, state.enough); show(answered.next); }
    return answered ?? { confirmed: [] };
  });
  if (!done) { $("manytold").textContent = $("said").textContent; return; }
  number += 1;
  if (positions.length) saved.push(number);
  left.push(...out.map((item) => ({ ...item, grid: number, kind: "exception", why: `You marked it as not “${nameOf(label)}”` })));
  $("manytold").textContent = `Saved: ${count(done.confirmed.length, "item", "items")} labelled “${nameOf(label)}”.`
    + (left.length ? ` ${count(left.length, "exception", "exceptions")} will be queried afterwards.` : "");
  announce($("manytold").textContent);
  await load();
}

async function takeBack() {
  const taken = await undo();
  $("manytold").textContent = undone(taken ?? null);
  const back = taken?.kind === "confirm" ? saved.pop() : null;
  left = left.filter((item) => item.grid !== back); // its exceptions are offered again
  await load();
}

function move(step) {
  const all = [...$("manyitems").querySelectorAll("button")];
  const at = all.indexOf(document.activeElement);
  all[Math.max(0, Math.min(all.length - 1, at < 0 ? 0 : at + step))]?.focus();
}

const columns = () => getComputedStyle($("manyitems")).gridTemplateColumns.split(" ").length || COLUMNS;
const MOVES = { ArrowLeft: () => -1, ArrowRight: () => 1, ArrowUp: () => -columns(), ArrowDown: () => columns() };

box.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || event.target.matches("select")) return;
  const known = event.key.length === 1 ? KEYS.indexOf(event.key.toLowerCase()) : -1;
  const act = event.key in MOVES ? () => move(MOVES[event.key]())
    : event.key === "Backspace" ? takeBack
      : event.key === "Enter" && !["manynot", "manyback"].includes(event.target.id) ? confirm : known >= 0 ? () => toggle(known) : null;
  if (!act) return;
  event.preventDefault();
  if (!event.repeat || event.key in MOVES) act();
});
box.addEventListener("close", () => {
  $("stage").focus({ preventScroll: true });
  if (left.length) openItems(left);
});
$("manyopen").addEventListener("click", open);
$("manyyes").addEventListener("click", confirm);
$("manyback").addEventListener("click", takeBack);
$("manynot").addEventListener("click", () => box.close());
$("manywhich").addEventListener("change", () => load($("manywhich").value));

export { open };
