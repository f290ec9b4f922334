// The pool in the plane of its two leading kernel components: what lies close together, the network
// treats alike.

import { colour, count, dot, make, percent, thumb, title } from "./items.js";
import { getOnce } from "./server.js";

const SIZE = 360; // in CSS pixels; the picture scales with the panel

export function drawMap(panel, found, context) {
  panel.querySelector("#map")?.remove();
  const box = make("section", { id: "map" }, make("h2", { text: "Map of the pool" }));
  panel.append(box);
  if (!found.points.length && !found.labelled.length) {
    box.append(make("p", { className: "faint", text: "It is drawn once the kernel is known." }));
    return;
  }
  const canvas = make("canvas", { role: "img", "aria-label": summary(found, context) });
  const told = make("p", { className: "hover" });
  const spots = place(found);
  box.append(canvas, told, make("p", { className: "faint", text: summary(found, context) }));
  paint(canvas, spots, context.onStage?.position ?? found.current);
  tell(told, null);
  canvas.addEventListener("pointermove", (event) => tell(told, nearest(canvas, spots, event), context));
  canvas.addEventListener("pointerleave", () => tell(told, null));
}

function place(found) { // all points, scaled into the square
  const all = [
    ...found.points.map(([position, x, y, label, p]) => ({ position, x, y, label, p, known: false })),
    ...found.labelled.map(([position, x, y, label]) => ({ position, x, y, label, known: true })),
  ];
  // A few far ones would press all others together: the outermost hundredth stands at the edge.
  const range = (key) => {
    const sorted = all.map((s) => s[key]).sort((a, b) => a - b);
    const cut = Math.floor(sorted.length / 100);
    return [sorted[cut], sorted[sorted.length - 1 - cut] - sorted[cut] || 1];
  };
  const inside = (share) => Math.max(0, Math.min(1, share));
  const [left, width] = range("x"), [top, height] = range("y");
  for (const s of all) {
    s.px = 14 + inside((s.x - left) / width) * (SIZE - 28);
    s.py = SIZE - 14 - inside((s.y - top) / height) * (SIZE - 28);
  }
  return all;
}

function paint(canvas, spots, here) {
  const dense = globalThis.devicePixelRatio || 1;
  canvas.width = canvas.height = Math.round(SIZE * dense);
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

function nearest(canvas, spots, event) {
  const box = canvas.getBoundingClientRect();
  const x = ((event.clientX - box.left) / box.width) * SIZE, y = ((event.clientY - box.top) / box.height) * SIZE;
  let best = null, least = 144;
  for (const s of spots) {
    const far = (s.px - x) ** 2 + (s.py - y) ** 2;
    if (far < least) { least = far; best = s; }
  }
  return best;
}

const items = new Map(); // position -> what the server says of it, asked for when pointed at
let pointed = null;

async function tell(told, spot, context) {
  if (pointed === spot && spot) return;
  pointed = spot;
  if (!spot) { told.replaceChildren("Point at an item to see it."); return; }
  if (!items.has(spot.position)) {
    try { items.set(spot.position, await getOnce(`/api/items/${spot.position}`)); } catch { return; }
    if (pointed !== spot) return; // the pointer is elsewhere by now
  }
  const item = items.get(spot.position);
  const words = spot.label === null ? "no guess yet" : spot.known ? context.nameOf(spot.label) : `${context.nameOf(spot.label)}? ${percent(spot.p ?? 0)}`;
  told.replaceChildren(thumb(item), make("span", {}, `${title(item)}: `, dot(spot.label), words));
}

function summary(found, context) {
  const predicted = new Map();
  for (const [, , , label] of found.points) if (label !== null) predicted.set(label, (predicted.get(label) ?? 0) + 1);
  const parts = [...predicted].sort((a, b) => b[1] - a[1]).slice(0, 6).map(([label, n]) => `${n} × “${context.nameOf(label)}”`);
  const guess = parts.length ? ` Predicted: ${parts.join(", ")}${predicted.size > 6 ? " and others" : ""}.` : "";
  return `${count(found.points.length, "open item", "open items")}, coloured by prediction, and `
    + `${count(found.labelled.length, "labelled one", "labelled ones")}, ringed; a cross marks the one that is asked about. `
    + `What lies close together, the model treats alike.${guess}`;
}
