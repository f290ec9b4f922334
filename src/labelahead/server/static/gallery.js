// The gallery: all items in a grid. Only the visible cells exist, and items are fetched in pages, so that a
// hundred thousand of them scroll smoothly. Selected items are labelled together, with one undo.

import { chance, colour, count, dot, full, guessesHidden, large, make, percent, thumb, title } from "./items.js";
import { $, alone, announce, drawTally, nameOf, openItems, show, state, undo, undone } from "./label.js";
import { Refused, get, getOnce, newKey, send } from "./server.js";
import { addView, currentView, openView } from "./views.js";
import { shrink } from "./zoom.js";

const PAGE = 60; // items of one request
const SPARE_ROWS = 2; // drawn above and below the visible ones
const MAX_BULK = 5000; // labelled with one request
const MAX_POSITIONS = 20_000; // of one request
const LASSO_PIXELS = 6; // that the pointer moves before a click becomes a lasso
const SIZES = { small: [104, 128], medium: [150, 178], big: [230, 262] }; // pixels of a cell with a picture
const TEXT_SIZES = { small: [210, 120], medium: [290, 178], big: [420, 262] };
const STATUSES = [["all", "All"], ["unlabelled", "Unlabelled"], ["labelled", "Labelled"], ["doubtful", "Doubtful"], ["unlike", "Unlike anything"]];
const ORDERS = [["name", "by name"], ["least-certain", "least certain first"], ["most-certain", "most certain first"],
  ["gain", "largest expected gain first"]];
const RANGES = [["", "any probability"], ["below=0.5", "below 50 %"], ["below=0.8", "below 80 %"], ["below=0.95", "below 95 %"],
  ["least=0.8", "80 % or more"], ["least=0.95", "95 % or more"]];
const EMPTY = {
  doubtful: "No label contradicts its leave-one-out prediction. Labels to check appear here as soon as there are some.",
  unlike: "Every item resembles a labelled one. Items that do not appear here: their predictions are guesses.",
  labelled: "Nothing is labelled yet. Select items and press the key of a class.",
};

const room = $("gallery");
let wanted = new URLSearchParams(); // the filter, as in the address
let view = null; // what the server says about the filter
let size = matchMedia("(max-width: 34rem)").matches ? "small" : "medium";
let pages = new Map(); // number of a page -> its items, or null while they are fetched
let turn = 0; // pages of an earlier view are not drawn
let cells = new Map(); // index -> element
let chosen = new Map(); // selected position -> whether it is labelled
let active = 0; // index of the item that the keyboard is on
let anchor = 0; // index where a range begins

// ---- the elements -----------------------------------------------------------------------------

const select = (id, label, options = []) => make("select", { id, "aria-label": label, on: { change: () => filterBy() } },
  ...options.map(([value, text]) => make("option", { value, text })));
const text = make("input", { id: "gallery-text", type: "search", placeholder: "Search names and texts", "aria-label": "Search names and texts", autocomplete: "off" });
const meaning = make("button", { type: "button", id: "gallery-meaning", hidden: true, "aria-pressed": "false", text: "by meaning",
  title: "Compare the text with the items through their encoder, instead of searching for it", on: { click: () => {
    meaning.setAttribute("aria-pressed", String(meaning.getAttribute("aria-pressed") !== "true"));
    filterBy();
  } } });
const statuses = make("div", { className: "chips", role: "group", "aria-label": "Which items" });
const label = select("gallery-label", "Label");
const predicted = select("gallery-predicted", "Prediction");
const range = select("gallery-range", "Probability of the prediction", RANGES);
const source = select("gallery-source", "Source of the label");
const order = select("gallery-order", "Order", ORDERS);
const sought = select("gallery-sought", "Find all items of a class");
const scale = make("div", { className: "chips", role: "group", "aria-label": "Size" }, ...Object.keys(SIZES).map((name) => make("button", {
  type: "button", text: { small: "S", medium: "M", big: "L" }[name], title: `${name} cells`, "aria-pressed": String(name === size), "data-size": name,
  on: { click: () => resize(name) },
})));
const about = make("p", { id: "gallery-about", role: "status" });
const space = make("div", { className: "space", role: "presentation" });
const grid = make("div", { id: "gallery-grid", role: "listbox", "aria-multiselectable": "true", "aria-label": "Items", tabindex: "0" }, space);
const empty = make("div", { className: "empty", hidden: true });
const lasso = make("div", { className: "lasso", hidden: true });
const told = make("p", { id: "gallery-told", role: "status" });
const bar = make("div", { id: "gallery-bar", role: "region", "aria-label": "Selection" });
const picks = make("div", { className: "picks", role: "group", "aria-label": "Label the selection" });
const chosenCount = make("strong", { id: "gallery-count" });
const replace = make("input", { type: "checkbox", id: "gallery-replace", on: { change: () => drawBar() } });
const replaceLabel = make("label", { className: "check" }, replace, make("span"));
const tools = make("div", { className: "row" });

room.append(make("form", { className: "filters", role: "search", on: { submit: (event) => { event.preventDefault(); filterBy(); } } },
  make("h2", { id: "gallery-title", className: "unseen", text: "Gallery" }), statuses, text, meaning, label, predicted, range, source, sought, order, scale, about),
make("div", { className: "frame" }, grid, empty, lasso), bar);
bar.append(make("div", { className: "row" }, chosenCount, replaceLabel, tools), picks, told);

let typing = null;
text.addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(filterBy, 250); });

// ---- filter -------------------------------------------------------------------------------------

function fill(list, options, value) {
  list.replaceChildren(...options.map(([v, t]) => make("option", { value: v, text: t })));
  list.value = options.some(([v]) => v === value) ? value : options[0][0];
}

function drawFilter() {
  const classes = state.classes.map((c) => [String(c.number), c.name]);
  const status = wanted.get("status") ?? "all";
  statuses.replaceChildren(...STATUSES.map(([value, name]) => make("button", {
    type: "button", "aria-pressed": String(value === status), "data-status": value, on: { click: () => filterBy({ status: value }) },
  }, name, view ? make("span", { className: "number", text: view.counts[value].toLocaleString("en") }) : null)));
  fill(label, [["", "any label"], ...classes, ["-2", "none of these"]], wanted.get("label") ?? "");
  fill(predicted, [["", "any prediction"], ...classes], wanted.get("predicted") ?? "");
  range.value = wanted.get("below") ? `below=${wanted.get("below")}` : wanted.get("least") ? `least=${wanted.get("least")}` : "";
  fill(source, [["", "any annotator"], ...(view?.sources ?? []).map((s) => [s.source, `${s.source || "unknown"} (${s.items})`])], wanted.get("source") ?? "");
  fill(sought, [["", "Find all …"], ...classes.map(([v, t]) => [v, `Find all “${t}”`])], wanted.get("sought") ?? "");
  const special = wanted.get("order");
  fill(order, [...ORDERS, ...(special === "similar" ? [["similar", "most similar first"]] : []),
    ...(special === "meaning" ? [["meaning", "closest in meaning first"]] : []), ...(special === "probability" ? [["probability", "most probable first"]] : [])], special ?? "name");
  if (document.activeElement !== text) text.value = wanted.get("text") ?? wanted.get("meaning") ?? "";
  meaning.hidden = !view?.meaning;
  meaning.setAttribute("aria-pressed", String(special === "meaning" || (meaning.getAttribute("aria-pressed") === "true" && !wanted.get("text"))));
  const hidden = guessesHidden();
  for (const list of [predicted, range, sought]) list.hidden = hidden || !view?.predicts;
  label.hidden = Boolean(state.session?.task);
  source.hidden = (view?.sources.length ?? 0) < 2;
}

function filterBy(change = {}) {
  const [bound, value] = range.value ? range.value.split("=") : [];
  const finding = sought.value;
  const was = wanted.get("order");
  let sorted = order.value;
  if (finding && finding !== wanted.get("sought")) sorted = "probability";
  if (!finding && sorted === "probability") sorted = "name";
  if (was === "similar" && sorted !== "similar") wanted.delete("like");
  const typed = text.value.trim(), meant = meaning.getAttribute("aria-pressed") === "true" && !meaning.hidden;
  if (meant && typed) sorted = "meaning"; else if (sorted === "meaning") sorted = "name";
  openView("gallery", {
    status: wanted.get("status"), label: label.value, predicted: predicted.value, [bound ?? "below"]: value, source: source.value, sought: finding,
    chosen: picked.length ? wanted.get("chosen") : null, text: meant ? null : typed, meaning: meant ? typed : null, like: sorted === "similar" ? wanted.get("like") : null, order: sorted === "name" ? null : sorted, ...change,
  });
}

async function open(query) {
  wanted = query;
  await load();
  grid.focus({ preventScroll: true });
}

async function fetchView() {
  const { chosen: some, ...rest } = Object.fromEntries(wanted);
  if (!some || !picked.length) return get(`/api/gallery?${new URLSearchParams(rest)}`);
  const numbers = Object.fromEntries(["label", "predicted", "least", "below", "like", "sought"].filter((name) => name in rest).map((name) => [name, Number(rest[name])]));
  return send("/api/gallery", { ...rest, ...numbers, positions: picked.slice(0, MAX_BULK) });
}

async function load({ keep = false } = {}) { // keep: the place and the selection
  const mine = ++turn;
  about.textContent = about.textContent || "Loading …";
  try {
    const found = await fetchView();
    if (mine !== turn) return;
    view = found;
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    if (mine === turn) { view = null; about.textContent = error.message; }
    return;
  }
  pages = new Map();
  if (!keep) { chosen = new Map(); grid.scrollTop = 0; active = 0; anchor = 0; }
  clearCells();
  drawFilter();
  drawAbout();
  drawBar();
  draw();
}

function drawAbout() {
  const words = [count(view.total, "item", "items")];
  if (wanted.get("order") === "similar") words.push(`most similar to item ${wanted.get("like")} first`);
  const e = view.expected;
  const parts = [make("span", { text: `${words.join(", ")}. ` })];
  if (e) {
    parts.push(make("span", { id: "gallery-expected" }, "Probably ", make("strong", { text: Math.round(e.expected).toLocaleString("en") }),
      ` more ${Math.round(e.expected) === 1 ? "item is" : "items are"} “${nameOf(e.label)}” (${percent(e.level)} interval: ${e.low.toLocaleString("en")} to ${e.high.toLocaleString("en")}), `
      + `as far as the probabilities are right; ${count(e.found, "is", "are")} labelled so far.`));
  }
  if (!view.predicts) parts.push(make("span", { className: "faint", text: "Predictions appear after the first training." }));
  if ([...wanted].some(([name]) => name !== "order")) parts.push(make("button", { type: "button", className: "quiet", text: "Clear the filters", on: { click: () => openView("gallery") } }));
  about.replaceChildren(...parts);
  empty.hidden = view.total > 0;
  empty.replaceChildren(make("p", { text: EMPTY[wanted.get("status")] ?? "No item matches these filters." }));
}

// ---- the grid -----------------------------------------------------------------------------------

const shape = () => {
  const [least, high] = (["image", "sound"].includes(state.session?.kind) ? SIZES : TEXT_SIZES)[size];
  const columns = Math.max(1, Math.floor((grid.clientWidth - 4) / least));
  return { columns, wide: (grid.clientWidth - 4) / columns, high, rows: Math.ceil((view?.total ?? 0) / columns) };
};

function clearCells() {
  for (const cell of cells.values()) cell.remove();
  cells = new Map();
}

let waiting = false;
function draw() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => { waiting = false; if (view && currentView() === "gallery") drawCells(); });
}

function drawCells() {
  const { columns, wide, high, rows } = shape();
  space.style.height = `${rows * high}px`;
  const from = Math.max(0, Math.floor(grid.scrollTop / high) - SPARE_ROWS) * columns;
  const to = Math.min(view.total, (Math.ceil((grid.scrollTop + grid.clientHeight) / high) + SPARE_ROWS) * columns);
  for (const [index, cell] of cells) if (index < from || index >= to) { cell.remove(); cells.delete(index); }
  for (let index = from; index < to; index++) {
    let cell = cells.get(index);
    if (!cell) {
      cell = make("div", { role: "option", id: `cell-${index}`, className: "cell", "aria-posinset": String(index + 1), "aria-setsize": String(view.total) });
      cells.set(index, cell);
      space.append(cell);
    }
    cell.style.transform = `translate(${(index % columns) * wide}px, ${Math.floor(index / columns) * high}px)`;
    cell.style.width = `${wide - 8}px`;
    cell.style.height = `${high - 8}px`;
    fillCell(cell, index);
  }
  for (let page = Math.floor(from / PAGE); page * PAGE < to; page++) fetchPage(page);
  const on = cells.get(active);
  if (on) grid.setAttribute("aria-activedescendant", on.id); else grid.removeAttribute("aria-activedescendant");
}

const itemAt = (index) => pages.get(Math.floor(index / PAGE))?.[index % PAGE];

function fillCell(cell, index) {
  const item = itemAt(index);
  cell.classList.toggle("active", index === active);
  if (!item) { cell.setAttribute("aria-selected", "false"); cell.setAttribute("aria-label", "Loading"); return; }
  const on = chosen.has(item.position);
  cell.setAttribute("aria-selected", String(on));
  if (cell.item === item) return;
  cell.item = item;
  cell.dataset.position = String(item.position);
  cell.title = title(item);
  const known = item.label !== null;
  const guess = !known && item.predicted !== null && !guessesHidden();
  const words = known ? item.answer : guess ? `${nameOf(item.predicted)}? ${chance(item.p)}` : "";
  const mark = (known && !state.session?.task) || guess ? dot(known ? item.label : item.predicted) : null;
  if (mark && !known) { mark.classList.add("open"); mark.style.borderColor = mark.style.backgroundColor; }
  cell.setAttribute("aria-label", `${title(item)}: ${known ? `labelled ${words}` : guess ? `predicted ${words}` : "unlabelled"}${item.doubtful ? ", doubtful" : ""}`);
  cell.replaceChildren(thumb(item, 400, 8), make("span", { className: "called" }, mark, make("span", { text: words }),
    item.doubtful ? make("span", { className: "mark", title: "The label contradicts its leave-one-out prediction", text: "!" }) : null));
}

async function fetchPage(page) {
  if (pages.has(page)) return;
  pages.set(page, null);
  const mine = turn;
  // A page that was scrolled past in the meantime is not fetched.
  await new Promise((done) => setTimeout(done, 40));
  if (mine !== turn) return;
  const visible = [...cells.keys()].some((index) => Math.floor(index / PAGE) === page);
  if (!visible) { pages.delete(page); return; }
  try {
    const found = await getOnce(`/api/gallery/${view.view}?offset=${page * PAGE}&n=${PAGE}`);
    if (mine !== turn) return;
    pages.set(page, found.items);
  } catch (error) {
    if (mine !== turn) return;
    pages.delete(page);
    if (error instanceof Refused && error.status === 404) { await load({ keep: true }); return; } // the server was restarted
    setTimeout(draw, 1500);
    return;
  }
  draw();
}

function refreshPages() { // labels have changed, and the order stays
  pages = new Map([...pages].filter(([, items]) => items === null)); // those on their way are new enough
  turn += 1;
  pages.clear();
  draw();
}

function resize(name) {
  const index = Math.floor(grid.scrollTop / shape().high) * shape().columns;
  size = name;
  for (const button of scale.children) button.setAttribute("aria-pressed", String(button.dataset.size === size));
  clearCells();
  space.style.height = `${shape().rows * shape().high}px`;
  grid.scrollTop = Math.floor(index / shape().columns) * shape().high;
  draw();
}

grid.addEventListener("scroll", draw, { passive: true });
new ResizeObserver(draw).observe(grid);

// ---- selection ----------------------------------------------------------------------------------

async function positionsOf(from, to) { // [position, whether it is labelled] of the indices from .. to - 1
  const out = [];
  for (let at = from; at < to; at += MAX_POSITIONS) {
    const found = await get(`/api/gallery/${view.view}/positions?offset=${at}&n=${Math.min(MAX_POSITIONS, to - at)}`);
    const labelled = new Set(found.labelled);
    out.push(...found.positions.map((p) => [p, labelled.has(p)]));
  }
  return out;
}

function toggle(index) {
  const item = itemAt(index);
  if (!item) return;
  if (!chosen.delete(item.position)) chosen.set(item.position, item.label !== null);
  anchor = index;
  changed();
}

async function selectRange(from, to, fits = () => true) { // both ends included
  const first = Math.min(from, to), last = Math.max(from, to);
  const found = await positionsOf(first, last + 1);
  found.forEach(([position, labelled], n) => { if (fits(first + n)) chosen.set(position, labelled); });
  changed();
}

function changed() { drawBar(); draw(); }

function moveTo(index, event) {
  active = Math.max(0, Math.min(view.total - 1, index));
  const { columns, high } = shape(), top = Math.floor(active / columns) * high;
  if (top < grid.scrollTop) grid.scrollTop = top;
  else if (top + high > grid.scrollTop + grid.clientHeight) grid.scrollTop = top + high - grid.clientHeight;
  if (event?.shiftKey) selectRange(anchor, active); else anchor = active;
  draw();
}

// A drag over the grid selects the cells that it touches; a click selects one, with shift a range.
let drag = null;
const indexUnder = (event) => { const cell = event.target.closest?.(".cell"); return cell ? [...cells].find(([, node]) => node === cell)?.[0] : undefined; };

grid.addEventListener("pointerdown", (event) => {
  if (event.button !== 0 || event.pointerType === "touch" || event.offsetX > grid.clientWidth && event.target === grid) return;
  const box = grid.getBoundingClientRect();
  drag = { x: event.clientX - box.left, y: event.clientY - box.top + grid.scrollTop, id: event.pointerId, on: false };
});
grid.addEventListener("pointermove", (event) => {
  if (!drag || event.pointerId !== drag.id) return;
  const box = grid.getBoundingClientRect(), x = event.clientX - box.left;
  if (event.clientY > box.bottom - 24) grid.scrollTop += 18; else if (event.clientY < box.top + 24) grid.scrollTop -= 18;
  const y = event.clientY - box.top + grid.scrollTop;
  if (!drag.on && Math.hypot(x - drag.x, y - drag.y) < LASSO_PIXELS) return;
  if (!drag.on) { drag.on = true; grid.setPointerCapture(drag.id); }
  drag.to = [x, y];
  const left = Math.min(x, drag.x), top = Math.min(y, drag.y) - grid.scrollTop;
  lasso.hidden = false;
  Object.assign(lasso.style, { left: `${left}px`, top: `${Math.max(0, top)}px`, width: `${Math.abs(x - drag.x)}px`,
    height: `${Math.min(box.height, Math.max(y, drag.y) - grid.scrollTop) - Math.max(0, top)}px` });
});
let dragged = false; // the click at the end of a drag selects nothing more
for (const type of ["pointerup", "pointercancel"]) {
  grid.addEventListener(type, (event) => {
    const done = drag;
    drag = null;
    lasso.hidden = true;
    if (!done?.on || !view?.total || type === "pointercancel") return;
    dragged = true;
    setTimeout(() => { dragged = false; });
    const { columns, wide, high, rows } = shape(), [x, y] = done.to;
    const column = (at) => Math.max(0, Math.min(columns - 1, Math.floor(at / wide)));
    const row = (at) => Math.max(0, Math.min(rows - 1, Math.floor(at / high)));
    const left = column(Math.min(x, done.x)), right = column(Math.max(x, done.x));
    const first = row(Math.min(y, done.y)) * columns + left;
    const last = Math.min(view.total - 1, row(Math.max(y, done.y)) * columns + right);
    if (!event.shiftKey && !event.ctrlKey && !event.metaKey) chosen = new Map();
    if (first <= last) selectRange(first, last, (index) => index % columns >= left && index % columns <= right);
  });
}
grid.addEventListener("click", (event) => {
  if (dragged) return;
  const index = indexUnder(event);
  if (index === undefined) return;
  active = index;
  if (event.shiftKey) selectRange(anchor, index); else toggle(index);
});
grid.addEventListener("dblclick", (event) => { const index = indexUnder(event); if (index !== undefined) enlarge(index); });

// ---- what to do with the selection ----------------------------------------------------------------

const bulk = () => !state.session?.labelled_at && !state.session?.task; // otherwise an answer is more than one class

function drawBar() {
  const labelled = [...chosen.values()].filter(Boolean).length;
  bar.classList.toggle("idle", !chosen.size);
  chosenCount.textContent = chosen.size ? `${count(chosen.size, "item", "items")} selected` : "Select items to label them together";
  replaceLabel.hidden = !labelled;
  replaceLabel.lastElementChild.textContent = `also change the ${labelled.toLocaleString("en")} labelled`;
  const act = (id, words, run, key) => make("button", { type: "button", id: `gallery-${id}`, className: "quiet", on: { click: run } }, `${words} `, key ? make("kbd", { text: key }) : null);
  tools.replaceChildren(...[
    chosen.size === 1 ? act("like", "More like this", () => showSimilar([...chosen.keys()][0])) : null,
    chosen.size ? act("single", "Label one by one", oneByOne) : null,
    chosen.size ? act("none", "Deselect", () => { chosen = new Map(); changed(); }, "Esc") : null,
    view && chosen.size < view.total ? act("every", "Select all", () => selectRange(0, view.total - 1), "Ctrl A") : null,
    act("undo", "Undo", takeBack, "⌫"),
  ].filter(Boolean));
  const many = chosen.size > MAX_BULK;
  picks.replaceChildren(...(bulk() ? state.classes : []).map((c) => {
    const button = make("button", { type: "button", className: "pick", disabled: !chosen.size || many, "data-label": String(c.number), title: c.name,
      on: { click: () => labelChosen(c.number) } }, c.key ? make("kbd", { text: c.key }) : null, make("span", { text: c.name }));
    button.style.setProperty("--class", colour(c.number));
    return button;
  }));
  if (many) told.textContent = `At most ${MAX_BULK.toLocaleString("en")} items can be labelled at once.`;
}

async function labelChosen(number) {
  if (!chosen.size || chosen.size > MAX_BULK || !bulk()) return;
  const positions = [...chosen].filter(([, labelled]) => replace.checked || !labelled).map(([position]) => position);
  if (!positions.length) { told.textContent = "All selected items are labelled; tick “also change” to change them."; return; }
  const done = await alone(async () => {
    const answered = await send("/api/gallery/labels", { positions, label: number, replace: replace.checked, key: newKey() });
    drawTally(answered.labels, state.budget, state.enough);
    show(answered.next);
    return answered;
  });
  if (!done) { told.textContent = $("said").textContent; return; }
  told.textContent = `Saved: ${count(done.confirmed.length, "item", "items")} labelled “${nameOf(number)}”.`;
  announce(told.textContent);
  chosen = new Map();
  replace.checked = false;
  changed();
  refreshPages();
}

async function takeBack() {
  const taken = await undo();
  told.textContent = undone(taken ?? null);
  refreshPages();
}

async function oneByOne() {
  const positions = [...chosen.keys()].slice(0, 200);
  const items = await Promise.all(positions.map((p) => get(`/api/items/${p}`)));
  openView("label");
  openItems(items.map((item) => ({ ...item, kind: "label", label: null, why: "Opened from the gallery" })));
}

let picked = []; // positions of a lasso on the map; the address only says how many
export function openChosen(positions) {
  picked = positions;
  openView("gallery", { chosen: positions.length });
}

export function showSimilar(position) { openView("gallery", { like: position, order: "similar" }); }

async function enlarge(index) {
  const item = itemAt(index);
  if (!item) return;
  active = index;
  const whole = await get(`/api/items/${item.position}`);
  const inner = $("large").firstElementChild;
  inner.replaceChildren(large(whole.url ? { ...whole, url: full(whole.url) } : whole));
  shrink(inner);
  if (!$("large").open) $("large").showModal();
  inner.focus();
}

// ---- keys -----------------------------------------------------------------------------------------

const steps = (key) => ({ ArrowLeft: -1, ArrowRight: 1, ArrowUp: -shape().columns, ArrowDown: shape().columns,
  PageUp: -shape().columns * Math.max(1, Math.floor(grid.clientHeight / shape().high)), PageDown: shape().columns * Math.max(1, Math.floor(grid.clientHeight / shape().high)),
  Home: -Infinity, End: Infinity })[key];

const KEYS = {
  " ": () => toggle(active),
  Enter: () => enlarge(active),
  "+": () => enlarge(active),
  Backspace: takeBack,
  "/": () => { text.focus(); text.select(); },
  "?": () => $("keys").showModal(),
  Escape: () => { if (chosen.size) { chosen = new Map(); changed(); } else openView("label"); },
};

addEventListener("keydown", (event) => {
  if (currentView() !== "gallery" || event.altKey || event.isComposing || event.defaultPrevented || document.querySelector("dialog[open]")) return;
  if (event.target.matches?.("input:not([type=checkbox]), select")) {
    if (event.key === "Escape") { event.preventDefault(); grid.focus(); }
    return;
  }
  if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "a" && view) { event.preventDefault(); selectRange(0, view.total - 1); return; }
  if (event.ctrlKey || event.metaKey) return;
  if (event.target.matches?.("button, a") && [" ", "Enter"].includes(event.key)) return; // a focused button has keys of its own
  const step = steps(event.key);
  const known = event.key.length === 1 && state.classes.find((c) => c.key === event.key.toLowerCase());
  const act = step !== undefined ? () => moveTo(step === -Infinity ? 0 : step === Infinity ? view.total - 1 : active + step, event)
    : KEYS[event.key] ?? (known ? () => labelChosen(known.number) : null);
  if (!act || !view) return;
  event.preventDefault();
  if (event.repeat && step === undefined) return;
  if (known && !KEYS[event.key] && step === undefined && !chosen.size) { told.textContent = "Select items first: click them, drag over them, or press Space."; return; }
  act();
});

addView("gallery", open);
$("more-like").addEventListener("click", () => showSimilar((state.again ?? state.query).position));
