// The pool projected onto its two leading kernel components: items that are close to each other are
// similar to the model.

import { chance, colour, count, dot, make, thumb, title } from "./items.js";
import { getOnce } from "./server.js";
import { openView } from "./views.js";

const NAMES = "12px system-ui"; // font of the class names on the map

export function drawMap(panel, found, context) {
  panel.querySelector("#map")?.remove();
  const box = make("section", { id: "map" }, make("h2", { text: "Map of the pool" }));
  panel.append(box);
  if (!found.points.length && !found.labelled.length) {
    box.append(make("p", { className: "faint", text: "The map appears once the kernel is computed." }));
    return;
  }
  const caption = make("p", { className: "hover" });
  const canvas = chart(found, context, caption);
  box.append(canvas, caption, make("p", {}, context.task ? null : make("button", { type: "button", id: "map-large", text: "Open the map", on: { click: () => openView("map") } })),
    make("p", { className: "faint", text: summary(found, context) }));
  const wide = Math.max(240, Math.min(box.clientWidth || 360, 640));
  canvas.paint(wide, wide);
}

function chart(found, context, caption) {
  const canvas = make("canvas", { role: "img", "aria-label": summary(found, context) });
  let spots = [];
  canvas.paint = (wide, high) => {
    Object.assign(canvas.style, { width: `${wide}px`, height: `${high}px` });
    spots = place(found, wide, high);
    paint(canvas, wide, high, spots, context.onStage?.position ?? found.current, context);
  };
  showCaption(caption, null);
  canvas.addEventListener("pointermove", (event) => showCaption(caption, nearest(canvas, spots, event), context));
  canvas.addEventListener("pointerleave", () => showCaption(caption, null));
  canvas.addEventListener("click", (event) => open(nearest(canvas, spots, event), context));
  return canvas;
}

async function open(spot, context) {
  if (!spot) return;
  const item = await getOnce(`/api/items/${spot.position}`).catch(() => null);
  if (!item) return;
  const status = spot.label === null ? (spot.known ? "labelled" : "no prediction yet") : `${spot.known ? "labelled" : "predicted"} “${context.nameOf(spot.label)}”`;
  context.openItems([{ ...item, kind: "label", label: spot.known ? spot.label : null, why: `Opened from the map, ${status}` }]);
}

function place(found, wide, high) { // all points, scaled to the canvas
  const all = [
    ...found.points.map(([position, x, y, label, p]) => ({ position, x, y, label, p, known: false })),
    ...found.labelled.map(([position, x, y, label]) => ({ position, x, y, label, known: true })),
  ];
  // Outliers would squeeze all other points together: the outermost 1 % is drawn at the edge.
  const range = (key) => {
    const sorted = all.map((s) => s[key]).sort((a, b) => a - b);
    const cut = Math.floor(sorted.length / 100);
    return [sorted[cut], sorted[sorted.length - 1 - cut] - sorted[cut] || 1];
  };
  const inside = (share) => Math.max(0, Math.min(1, share));
  // Average of position and rank: crowded regions get the space that sparse regions leave empty.
  const shares = (key) => {
    const [from, size] = range(key), ranks = new Map();
    [...all].sort((a, b) => a[key] - b[key]).forEach((s, n) => ranks.set(s, n / Math.max(1, all.length - 1)));
    return (s) => (inside((s[key] - from) / size) + ranks.get(s)) / 2;
  };
  const across = shares("x"), up = shares("y");
  for (const s of all) {
    s.px = 14 + across(s) * (wide - 28);
    s.py = high - 14 - up(s) * (high - 28);
  }
  return all;
}

function paint(canvas, wide, high, spots, here, context) {
  const dense = globalThis.devicePixelRatio || 1;
  canvas.width = Math.round(wide * dense);
  canvas.height = Math.round(high * dense);
  const pen = canvas.getContext("2d");
  const ink = getComputedStyle(document.documentElement).getPropertyValue("--ink").trim();
  pen.scale(dense, dense);
  const disc = (s, radius) => { pen.beginPath(); pen.arc(s.px, s.py, radius, 0, 2 * Math.PI); };
  for (const s of spots.filter((q) => !q.known)) {
    pen.globalAlpha = 0.25 + 0.6 * (s.p ?? 0.3);
    pen.fillStyle = colour(s.label);
    disc(s, 2.4);
    pen.fill();
  }
  pen.globalAlpha = 1;
  for (const s of spots.filter((q) => q.known)) {
    pen.fillStyle = colour(s.label);
    pen.strokeStyle = ink;
    pen.lineWidth = 1.5;
    disc(s, 4.5);
    pen.fill();
    pen.stroke();
  }
  name(pen, wide, high, spots, ink, context);
  const now = spots.find((s) => s.position === here);
  if (!now) return;
  pen.strokeStyle = ink;
  pen.lineWidth = 2;
  disc(now, 9);
  pen.stroke();
  for (const [dx, dy] of [[1, 0], [-1, 0], [0, 1], [0, -1]]) {
    pen.beginPath();
    pen.moveTo(now.px + 9 * dx, now.py + 9 * dy);
    pen.lineTo(now.px + 14 * dx, now.py + 14 * dy);
    pen.stroke();
  }
}

// Offsets to try for a class name, starting at the median of its items.
const ASIDE = [0, -1, 1, -2, 2, -3, 3].flatMap((down) => [0, -0.5, 0.5, -1, 1].map((along) => [along, down]))
  .sort((a, b) => Math.hypot(2 * a[0], a[1]) - Math.hypot(2 * b[0], b[1]));

// Draw class names near their items, largest class first; a name without room is left out.
export function name(pen, room, high, spots, ink, context) {
  const of = new Map();
  for (const s of spots) if (s.label !== null) of.set(s.label, [...(of.get(s.label) ?? []), s]);
  const paper = getComputedStyle(document.documentElement).getPropertyValue("--card").trim();
  const taken = [];
  const middle = (values) => values.sort((a, b) => a - b)[Math.floor(values.length / 2)];
  pen.font = NAMES;
  pen.textBaseline = "middle";
  for (const [label, all] of [...of].sort((a, b) => b[1].length - a[1].length)) {
    const text = context.nameOf(label), wide = pen.measureText(text).width + 16;
    const cx = middle(all.map((s) => s.px)), cy = middle(all.map((s) => s.py));
    const free = ASIDE.map(([along, down]) => [
      Math.max(2, Math.min(room - wide - 2, cx + (along - 0.5) * wide)), Math.max(10, Math.min(high - 10, cy + 18 * down)),
    ]).find(([x, y]) => !taken.some((t) => Math.abs(t.y - y) < 18 && x < t.x + t.wide && t.x < x + wide));
    if (!free) continue;
    const [x, y] = free;
    taken.push({ x, y, wide });
    pen.globalAlpha = 0.85;
    pen.fillStyle = paper;
    pen.fillRect(x, y - 9, wide, 18);
    pen.globalAlpha = 1;
    pen.fillStyle = colour(label);
    pen.beginPath();
    pen.arc(x + 6, y, 4, 0, 2 * Math.PI);
    pen.fill();
    pen.fillStyle = ink;
    pen.fillText(text, x + 13, y);
  }
}

function nearest(canvas, spots, event) {
  const box = canvas.getBoundingClientRect();
  const x = event.clientX - box.left, y = event.clientY - box.top;
  let best = null, least = 144;
  for (const s of spots) {
    const far = (s.px - x) ** 2 + (s.py - y) ** 2;
    if (far < least) { least = far; best = s; }
  }
  return best;
}

const items = new Map(); // position -> item, fetched when the pointer is on it
let pointed = null;

async function showCaption(caption, spot, context) {
  if (pointed === spot && spot) return;
  pointed = spot;
  if (!spot) { caption.replaceChildren("Point at an item to see it; click to open it."); return; }
  if (!items.has(spot.position)) {
    try { items.set(spot.position, await getOnce(`/api/items/${spot.position}`)); } catch { return; }
    if (pointed !== spot) return; // the pointer has moved on
  }
  const item = items.get(spot.position);
  const words = spot.label === null ? (spot.known ? "labelled" : context.task ? "not labelled" : "no prediction yet") : spot.known ? context.nameOf(spot.label) : `${context.nameOf(spot.label)}? ${chance(spot.p ?? 0)}`;
  caption.replaceChildren(thumb(item), make("span", {}, `${title(item)}: `, dot(spot.label), words));
}

function summary(found, context) {
  const predicted = new Map();
  for (const [, , , label] of found.points) if (label !== null) predicted.set(label, (predicted.get(label) ?? 0) + 1);
  const parts = [...predicted].sort((a, b) => b[1] - a[1]).slice(0, 6).map(([label, n]) => `${n} × “${context.nameOf(label)}”`);
  const guess = parts.length ? ` Predicted: ${parts.join(", ")}${predicted.size > 6 ? " and others" : ""}.` : "";
  return `${count(found.points.length, "unlabelled item", "unlabelled items")}${context.task && !predicted.size ? "" : ", coloured by prediction"}, and `
    + `${count(found.labelled.length, "labelled item", "labelled items")}, with a ring; a cross marks the current query. `
    + `Items close to each other are similar to the model (crowded regions are stretched).${guess}`;
}
