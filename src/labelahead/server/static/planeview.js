// The map as a full view: zoom by the wheel, + and -, or two fingers; pan by dragging or the arrow keys; a lasso
// (shift and drag, or the Lasso button) opens the items inside it in the gallery.

import { chance, colour, count, dot, make, percent, thumb, title } from "./items.js";
import { $, nameOf, openItems, state } from "./label.js";
import { name as drawNames } from "./map.js";
import { getOnce } from "./server.js";
import { addView, currentView, openView } from "./views.js";
import { openChosen } from "./gallery.js";

const MAX_SCALE = 60, STEP = 1.3, REACH = 14; // pixels around the pointer
const EDGE = 26;
const room = $("plane");
const canvas = make("canvas", { tabindex: "0", role: "img", id: "plane-canvas", "aria-label": "Map of the pool" });
const caption = make("p", { className: "hover", role: "status" });
const legend = make("div", { className: "legend", role: "group", "aria-label": "Highlight a class" });
const about = make("p", { className: "faint", id: "plane-about" });
const empty = make("p", { className: "empty", text: "Loading the map …" });
const HOW = matchMedia("(pointer: coarse)").matches ? "Tap an item to open it. Drag to move, spread two fingers to zoom. “Lasso” selects a group for the gallery."
  : "Point at an item to see it; click to open it. Drag to move, turn the wheel to zoom. Shift and drag selects a group for the gallery.";
let spots = [];
let found = null;
let camera = { scale: 1, x: 0, y: 0 };
let lassoing = false; // whether a drag draws a lasso
let path = null; // of the lasso, in pixels
let only = null; // the class that is highlighted
let pointed = null;
let timer = null;

const tool = (id, text, act, key) => make("button", { type: "button", id: `plane-${id}`, className: "quiet", on: { click: act } }, `${text} `, key ? make("kbd", { text: key }) : null);
const lassoButton = tool("lasso", "Lasso", () => toggleLasso(), "l");
lassoButton.setAttribute("aria-pressed", "false");
room.append(make("div", { className: "filters" }, make("h2", { id: "plane-title", className: "unseen", text: "Map" }), lassoButton,
  tool("nearer", "Zoom in", () => zoom(STEP), "+"), tool("farther", "Zoom out", () => zoom(1 / STEP), "-"), tool("whole", "Whole map", () => reset(), "h"),
  tool("again", "Update", () => load(true)), about), make("div", { className: "frame" }, canvas, empty), make("div", { className: "row" }, caption), legend);

function toggleLasso(on = !lassoing) {
  lassoing = on;
  lassoButton.setAttribute("aria-pressed", String(on));
  canvas.classList.toggle("lassoing", on);
}

async function load(again = false) {
  clearTimeout(timer);
  let map;
  try { map = await getOnce(`/api/map?layout=neighbours${again ? "&refresh=1" : ""}`); } catch { about.textContent = "The map could not be loaded; retrying …"; timer = setTimeout(load, 2000); return; }
  const kind = map.layout;
  const moved = found && found.layout !== kind;
  found = map;
  spots = [...map.points.map(([position, x, y, label, p]) => ({ position, x, y, label, p, known: false })),
    ...map.labelled.map(([position, x, y, label]) => ({ position, x, y, label, known: true }))];
  if (moved) camera = { scale: 1, x: 0, y: 0 };
  describe();
  drawLegend();
  draw();
  if (map.state === "computing" && currentView() === "map") timer = setTimeout(load, 1500);
}

function describe() {
  empty.hidden = spots.length > 0;
  if (!spots.length) {
    empty.textContent = "The map shows all items; similar ones are near each other. It appears once the embeddings of the items are computed.";
    about.textContent = "";
    return;
  }
  const how = found.layout === "neighbours" ? "Neighbours are similar to the model (t-SNE); distances between groups mean little."
    : found.state === "computing" ? "A first map by the two leading components; a better one is being computed." : "The two leading components of the kernel.";
  about.textContent = `${count(spots.length, "item", "items")}. ${how} Labelled items have a ring.`;
  canvas.setAttribute("aria-label", `Map of the pool: ${count(found.points.length, "unlabelled item", "unlabelled items")}, ${count(found.labelled.length, "labelled item", "labelled items")}`);
}

function drawLegend() {
  const sizes = new Map();
  for (const s of spots) if (s.label !== null) sizes.set(s.label, (sizes.get(s.label) ?? 0) + 1);
  legend.replaceChildren(...[...sizes].sort((a, b) => b[1] - a[1]).map(([label, n]) => make("button", {
    type: "button", className: "pick", "aria-pressed": String(only === label), on: { click: () => { only = only === label ? null : label; drawLegend(); draw(); } },
  }, dot(label), `${nameOf(label)} `, make("span", { className: "number", text: percent(n / spots.length) }))));
}

// ---- drawing ------------------------------------------------------------------------------------

let waiting = false;
function draw() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => { waiting = false; if (currentView() === "map") paint(); });
}

function paint() {
  const wide = canvas.parentElement.clientWidth, high = canvas.parentElement.clientHeight, dense = globalThis.devicePixelRatio || 1;
  if (canvas.width !== Math.round(wide * dense) || canvas.height !== Math.round(high * dense)) {
    canvas.width = Math.round(wide * dense);
    canvas.height = Math.round(high * dense);
    Object.assign(canvas.style, { width: `${wide}px`, height: `${high}px` });
  }
  const side = [(wide - 2 * EDGE) / 2, (high - 2 * EDGE) / 2];
  for (const s of spots) {
    s.px = wide / 2 + (s.x * side[0] + camera.x) * camera.scale;
    s.py = high / 2 + (-s.y * side[1] + camera.y) * camera.scale;
  }
  const pen = canvas.getContext("2d"), ink = getComputedStyle(document.documentElement).getPropertyValue("--ink").trim();
  pen.setTransform(dense, 0, 0, dense, 0, 0);
  pen.clearRect(0, 0, wide, high);
  const radius = Math.min(9, 3.2 * camera.scale ** 0.4);
  const visible = spots.filter((s) => s.px > -20 && s.px < wide + 20 && s.py > -20 && s.py < high + 20);
  const disc = (s, r) => { pen.beginPath(); pen.arc(s.px, s.py, r, 0, 2 * Math.PI); };
  for (const known of [false, true]) {
    for (const s of visible) {
      if (s.known !== known) continue;
      pen.globalAlpha = only !== null && s.label !== only ? 0.1 : known ? 1 : 0.3 + 0.6 * (s.p ?? 0.3);
      pen.fillStyle = colour(s.label);
      disc(s, known ? radius + 1.6 : radius);
      pen.fill();
      if (known) { pen.strokeStyle = ink; pen.lineWidth = 1.5; pen.stroke(); }
    }
  }
  pen.globalAlpha = 1;
  if (only === null) drawNames(pen, wide, high, visible, ink, { nameOf });
  const here = (state.again ?? state.query)?.position;
  for (const s of spots) if (s.position === here) { pen.strokeStyle = ink; pen.lineWidth = 2.5; disc(s, radius + 7); pen.stroke(); }
  if (pointed) { pen.strokeStyle = ink; pen.lineWidth = 2; disc(pointed, radius + 4); pen.stroke(); }
  if (path) {
    const accent = getComputedStyle(document.documentElement).getPropertyValue("--accent").trim();
    pen.beginPath();
    path.forEach(([x, y], n) => (n ? pen.lineTo(x, y) : pen.moveTo(x, y)));
    pen.closePath();
    pen.globalAlpha = 0.15; pen.fillStyle = accent; pen.fill();
    pen.globalAlpha = 1; pen.strokeStyle = accent; pen.lineWidth = 1.5; pen.stroke();
  }
}

// ---- zoom, pan, lasso -----------------------------------------------------------------------------

function zoom(factor, event) {
  const box = canvas.getBoundingClientRect();
  const x = event ? event.clientX - box.left - box.width / 2 : 0, y = event ? event.clientY - box.top - box.height / 2 : 0;
  const scale = Math.max(1, Math.min(MAX_SCALE, camera.scale * factor));
  // The point under the pointer stays where it is.
  camera = { scale, x: camera.x + x / scale - x / camera.scale, y: camera.y + y / scale - y / camera.scale };
  if (scale === 1) camera = { scale, x: 0, y: 0 };
  draw();
}
const pan = (dx, dy) => { camera.x += dx / camera.scale; camera.y += dy / camera.scale; draw(); };
const reset = () => { camera = { scale: 1, x: 0, y: 0 }; only = null; drawLegend(); draw(); };

const fingers = new Map();
let moved = false;
const spread = () => { const [a, b] = [...fingers.values()]; return b ? Math.hypot(a.clientX - b.clientX, a.clientY - b.clientY) : 0; };
const at = (event) => { const box = canvas.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };

canvas.addEventListener("wheel", (event) => { event.preventDefault(); zoom(event.deltaY < 0 ? STEP : 1 / STEP, event); }, { passive: false });
canvas.addEventListener("pointerdown", (event) => {
  fingers.set(event.pointerId, event);
  canvas.setPointerCapture(event.pointerId);
  moved = false;
  if ((lassoing || event.shiftKey) && fingers.size === 1) path = [at(event)];
});
canvas.addEventListener("pointermove", (event) => {
  const last = fingers.get(event.pointerId);
  if (!last) { point(event); return; }
  if (Math.hypot(event.clientX - last.clientX, event.clientY - last.clientY) > 3 || path?.length > 1) moved = true;
  if (path) { path.push(at(event)); draw(); return; }
  if (!moved) return;
  const before = spread();
  fingers.set(event.pointerId, event);
  if (before) zoom(spread() / before, event); else pan(event.clientX - last.clientX, event.clientY - last.clientY);
});
for (const type of ["pointerup", "pointercancel"]) {
  canvas.addEventListener(type, (event) => {
    if (!fingers.delete(event.pointerId)) return;
    const drawn = path;
    path = null;
    draw();
    if (type === "pointercancel") return;
    if (drawn && drawn.length > 2) { finishLasso(drawn); return; }
    if (!moved) openSpot(nearest(at(event)));
  });
}
canvas.addEventListener("pointerleave", () => { pointed = null; showCaption(); draw(); });

function inside([x, y], polygon) { // the even-odd rule
  let odd = false;
  for (let i = 0, j = polygon.length - 1; i < polygon.length; j = i++) {
    const [xi, yi] = polygon[i], [xj, yj] = polygon[j];
    if ((yi > y) !== (yj > y) && x < ((xj - xi) * (y - yi)) / (yj - yi) + xi) odd = !odd;
  }
  return odd;
}

function finishLasso(polygon) {
  const positions = spots.filter((s) => inside([s.px, s.py], polygon)).map((s) => s.position);
  toggleLasso(false);
  if (positions.length) openChosen(positions); else caption.textContent = "No item is inside the lasso.";
}

function nearest([x, y]) {
  let best = null, least = REACH ** 2;
  for (const s of spots) {
    const far = (s.px - x) ** 2 + (s.py - y) ** 2;
    if (far < least) { least = far; best = s; }
  }
  return best;
}

const items = new Map();
async function point(event) {
  const spot = nearest(at(event));
  if (spot === pointed) return;
  pointed = spot;
  draw();
  if (spot && !items.has(spot.position)) {
    try { items.set(spot.position, await getOnce(`/api/items/${spot.position}`)); } catch { return; }
  }
  if (pointed === spot) showCaption();
}

function showCaption() {
  const item = pointed && items.get(pointed.position);
  if (!item) { caption.textContent = HOW; return; }
  const words = pointed.label === null ? "no prediction yet" : pointed.known ? nameOf(pointed.label) : `${nameOf(pointed.label)}? ${chance(pointed.p ?? 0)}`;
  caption.replaceChildren(thumb(item), make("span", {}, `${title(item)}: `, dot(pointed.label), words));
}

async function openSpot(spot) {
  if (!spot) return;
  const item = await getOnce(`/api/items/${spot.position}`).catch(() => null);
  if (!item) return;
  const status = spot.label === null ? "no prediction yet" : `${spot.known ? "labelled" : "predicted"} “${nameOf(spot.label)}”`;
  openView("label");
  openItems([{ ...item, kind: "label", label: spot.known ? spot.label : null, why: `Opened from the map, ${status}` }]);
}

const KEYS = {
  "+": () => zoom(STEP), "=": () => zoom(STEP), "-": () => zoom(1 / STEP), h: reset, l: () => toggleLasso(), "?": () => $("keys").showModal(),
  ArrowLeft: () => pan(60, 0), ArrowRight: () => pan(-60, 0), ArrowUp: () => pan(0, 60), ArrowDown: () => pan(0, -60),
  Escape: () => { if (lassoing) toggleLasso(false); else openView("label"); },
};
addEventListener("keydown", (event) => {
  if (currentView() !== "map" || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const act = KEYS[event.key];
  if (!act) return;
  event.preventDefault();
  act();
});

new ResizeObserver(draw).observe(room);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
addView("map", () => { showCaption(); draw(); load(); canvas.focus({ preventScroll: true }); });
