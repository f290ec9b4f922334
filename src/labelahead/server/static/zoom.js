// Zoom and pan: the wheel, two fingers or + and - zoom; dragging or the arrow keys pan.

const MAX_SCALE = 16; // relative to the size that fits
const STEP = 1.25;
const views = new WeakMap(); // container -> scale

function size(room, scale, x = room.clientWidth / 2, y = room.clientHeight / 2) { // x, y: the fixed point
  const before = views.get(room) ?? 1, now = Math.max(1, Math.min(MAX_SCALE, scale));
  const inner = room.firstElementChild;
  if (!inner) return;
  const left = (room.scrollLeft + x) / before, top = (room.scrollTop + y) / before;
  views.set(room, now);
  if (inner.matches("img, canvas")) {
    inner.style.width = inner.style.height = `${100 * now}%`;
  } else inner.style.fontSize = `${100 * now}%`;
  room.scrollTo({ left: left * now - x, top: top * now - y, behavior: "instant" });
}

export function shrink(room) { views.set(room, 1); size(room, 1); }

export function zoomable(room, nearer, farther) {
  const times = (factor, event) => {
    const box = room.getBoundingClientRect();
    const at = event ? [event.clientX - box.left, event.clientY - box.top] : [];
    size(room, (views.get(room) ?? 1) * factor, ...at);
  };
  nearer.addEventListener("click", () => times(STEP ** 2));
  farther.addEventListener("click", () => times(STEP ** -2));
  room.parentElement.addEventListener("keydown", (event) => {
    const factor = { "+": STEP, "=": STEP, "-": 1 / STEP }[event.key];
    const [dx, dy] = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key] ?? [0, 0];
    if (!factor && !dx && !dy) return;
    event.preventDefault();
    if (factor) times(factor); else room.scrollBy({ left: 80 * dx, top: 80 * dy });
  });
  room.addEventListener("wheel", (event) => {
    if (!room.firstElementChild?.matches("img, canvas")) return; // the wheel scrolls a text
    event.preventDefault();
    times(event.deltaY < 0 ? STEP : 1 / STEP, event);
  }, { passive: false });
  const fingers = new Map();
  let distance = 0;
  const spread = () => { const [a, b] = [...fingers.values()]; return b ? Math.hypot(a.clientX - b.clientX, a.clientY - b.clientY) : 0; };
  room.addEventListener("pointerdown", (event) => { fingers.set(event.pointerId, event); room.setPointerCapture(event.pointerId); distance = spread(); });
  for (const type of ["pointerup", "pointercancel"]) room.addEventListener(type, (event) => { fingers.delete(event.pointerId); distance = spread(); });
  room.addEventListener("pointermove", (event) => {
    const last = fingers.get(event.pointerId);
    if (!last) return;
    fingers.set(event.pointerId, event);
    const now = spread();
    if (now && distance) { times(now / distance, event); distance = now; } else if (!now) {
      room.scrollBy({ left: last.clientX - event.clientX, top: last.clientY - event.clientY, behavior: "instant" });
    }
  });
}
