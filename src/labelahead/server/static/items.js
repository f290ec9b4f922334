// Drawing items and classes. Data are inserted as text only, never as markup.

export function make(tag, options = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (value === null || value === undefined || (value === false && name !== "draggable")) continue; // draggable is true by default for images
    if (name === "text") node.textContent = value;
    else if (name === "on") for (const [type, act] of Object.entries(value)) node.addEventListener(type, act);
    else if (name in node && !name.includes("-") && name !== "role") node[name] = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

export const title = (found) => (/^\d*$/.test(String(found.item ?? "")) ? `item ${found.item || found.position}` : String(found.shown ?? found.item));
export const percent = (p) => { // 0 % and 100 % are shown only for exact values
  const digits = (p > 0.99 && p < 1) || (p < 0.01 && p > 0) ? 1 : 0;
  const shown = Math.max(p > 0 ? 0.1 ** digits : 0, Math.min(p < 1 ? 100 - 0.1 ** digits : 100, 100 * p));
  return `${shown.toFixed(digits)}\u00a0%`;
};
// A predicted probability. With some fifty labels, probabilities beyond 99 % are not reliable.
export const chance = (p) => (p > 0.99 ? "over 99\u00a0%" : p < 0.01 ? "under 1\u00a0%" : percent(p));
export const guessesHidden = () => { try { return localStorage.getItem("labelahead-hide") === "1"; } catch { return false; } };
export const hideGuesses = (yes) => { try { localStorage.setItem("labelahead-hide", yes ? "1" : "0"); } catch { /* storage is forbidden: the setting lasts until the page is closed */ } };
export const count = (n, one, many) => `${n.toLocaleString("en")} ${n === 1 ? one : many}`;

export const duration = (seconds) => (seconds < 90 ? `${Math.max(1, Math.round(seconds))} s` : `${Math.round(seconds / 60)} min`);
export const REASONS = {
  "random start": "chosen at random for the seed set",
  "covers the pool": "chosen because it is representative of the pool",
  "look-ahead": "chosen because its label is expected to improve the other predictions most",
  "second opinion": "queried again: another annotator has labelled it",
  "taken back": "queried again: you undid your answer",
};

// Ten colours that colour-blind people can tell apart; further classes cycle through the hues.
const PALETTE = ["#4477aa", "#ee7733", "#228833", "#cc3366", "#aa7744", "#66aacc", "#aa4499",
  "#999933", "#dd9999", "#777788"];
export function colour(label) {
  if (label === null || label === undefined || label < 0) return "#888888"; // below 0: none of these
  return PALETTE[label] ?? `hsl(${(label * 137.5) % 360} 45% ${label % 2 ? 42 : 58}%)`;
}

export function dot(label) {
  const node = make("span", { className: "dot" });
  node.style.backgroundColor = colour(label);
  return node;
}

// Tiny images are shown with sharp pixels, because blurring adds no information. Photographs are never that small.
const TINY = 32;
function crisp(image) {
  const decide = () => image.classList.toggle("crisp", image.naturalWidth > 0 && Math.max(image.naturalWidth, image.naturalHeight) <= TINY);
  if (image.complete) decide();
  image.addEventListener("load", decide);
}

// Prefetch and decode the pictures that are likely to be queried soon.
const MAX_PREFETCHED = 24;
const ahead = new Map(); // address -> image
export function fetchAhead(urls) {
  for (const url of urls) {
    const image = ahead.get(url) ?? make("img", { alt: "", decoding: "sync", draggable: false, fetchPriority: "low" });
    if (!image.src) {
      image.addEventListener("error", () => ahead.delete(url), { once: true }); // the next request tries again
      image.src = url;
      image.decode().catch(() => null);
    }
    ahead.delete(url);
    ahead.set(url, image); // move it to the end: the oldest are dropped
  }
  for (const url of [...ahead.keys()].slice(0, -MAX_PREFETCHED)) ahead.delete(url);
}

function picture(found, alt) {
  const held = ahead.get(found.url);
  ahead.delete(found.url); // an element can be in one place only
  const image = held ?? make("img", { decoding: "sync", draggable: false, fetchPriority: "high" });
  image.alt = alt;
  image.addEventListener("error", () => image.replaceWith(
    make("p", { className: "lost", text: "This picture could not be loaded." })));
  crisp(image);
  if (!held) image.src = found.url;
  return image;
}

const WIDE = 12; // columns of a table, above which the pairs are set in several columns
const HEADLINE = /^(title|headline|heading|subject|name)$/i;

function table(row) {
  return make("dl", { className: row.length > WIDE ? "pairs wide" : "pairs" }, ...row.map(({ name, value }) => make("div", {},
    make("dt", { text: name }), make("dd", { text: value === null || value === "" ? "–" : String(value) }))));
}

export function large(found) { // the queried item
  if (found.url) return picture(found, "The item to label");
  const box = make("div", { className: "words" });
  const heading = found.text ? found.row?.find((cell) => HEADLINE.test(cell.name) && cell.value) : null;
  if (heading) box.append(make("h3", { className: "headline", text: String(heading.value) }));
  if (found.text || !found.row?.length) box.append(make("div", { className: "prose", text: found.text || title(found) }));
  const rest = found.row?.filter((cell) => cell !== heading);
  if (rest?.length) box.append(table(rest));
  return box;
}

function gist(found, cells) {
  if (found.text) return found.text;
  if (found.row?.length) return found.row.slice(0, cells).map((cell) => `${cell.name} ${cell.value}`).join(", ");
  return title(found);
}

const sized = (url, size) => `${url}${url.includes("?") ? "&" : "?"}${size}=1`;
export const small = (url) => sized(url, "small");
export const full = (url) => sized(url, "full");

export function thumb(found, letters = 90, cells = 4) { // a small version of the item
  if (found.url) {
    const image = make("img", { alt: "", className: "thumb", loading: "lazy", draggable: false });
    crisp(image);
    image.src = small(found.url);
    return image;
  }
  const text = gist(found, cells);
  return make("span", { className: "thumb words", text: text.length > letters ? `${text.slice(0, letters)} …` : text });
}

export function bar(share, label) { // a horizontal bar of this fraction
  const inner = make("span");
  inner.style.width = `${Math.max(0, Math.min(1, share)) * 100}%`;
  if (label !== undefined) inner.style.backgroundColor = colour(label);
  return make("span", { className: "meter", "aria-hidden": "true" }, inner);
}
