// The views of the page: labelling, gallery, map. The address says which one is open, so that the browser's
// back button works and a view can be linked: #gallery?status=unlabelled&below=0.8

const openers = new Map(); // name -> what draws the view
const LABELLING = "label";

const parse = () => {
  const [name, query = ""] = location.hash.slice(1).split("?");
  return openers.has(name) ? [name, new URLSearchParams(query)] : [LABELLING, new URLSearchParams()];
};

export const currentView = () => document.body.dataset.view ?? LABELLING;

export function addView(name, open) { openers.set(name, open); }

export function openView(name, wanted = {}) {
  const query = new URLSearchParams(Object.entries(wanted).filter(([, value]) => value !== null && value !== undefined && value !== "")).toString();
  const hash = name === LABELLING ? "" : `#${name}${query ? `?${query}` : ""}`;
  if (location.hash === hash) show();
  else if (hash) location.hash = hash;
  else { history.pushState(null, "", location.pathname + location.search); show(); }
}

function show() {
  const [name, wanted] = parse();
  const before = currentView();
  document.body.dataset.view = name;
  for (const button of document.querySelectorAll("#views [data-view]")) {
    if (button.dataset.view === name) button.setAttribute("aria-current", "page"); else button.removeAttribute("aria-current");
  }
  for (const room of document.querySelectorAll("[data-room]")) room.hidden = room.dataset.room !== name;
  openers.get(name)?.(wanted);
  if (name === LABELLING && before !== LABELLING) document.getElementById("stage").focus({ preventScroll: true });
}

export function startViews() {
  for (const button of document.querySelectorAll("#views [data-view]")) button.addEventListener("click", () => openView(button.dataset.view));
  addEventListener("hashchange", show);
  addEventListener("popstate", show);
  show();
}
