// The labelling page: it shows one queried item, takes one keystroke, and shows the next item.

import { REASONS, chance, colour, count, dot, duration, fetchAhead, guessesHidden, large, make, percent, thumb, title } from "./items.js";
import { finishSteps } from "./finish.js";
import { choose, openPanels, refresh } from "./panels.js";
import { Refused, get, readPending, newKey, send, sendAnswer } from "./server.js";
import { player } from "./sound.js";
import { drawTask, drawTaskGuess, focusForm, forgetAnswer, isChosen, isTask, nameAnswer, prediction, startTask, task, toggle } from "./tasks.js";
import { openView, startViews } from "./views.js";

const $ = (id) => document.getElementById(id);
const state = {
  session: null,
  classes: [],
  query: null, // the current query
  again: null, // an item shown instead of the query: an earlier answer, an item of the map or of a list
  queue: [], // the items to show after it
  history: [],
  busy: false,
};

const LETTERS = 18; // of the longest word that a button of a class shows on one line
const NONE_OF_THESE = -2; // the label of an item that belongs to none of the classes
const nameOf = (label) => (label === null || label === undefined ? "–" : label === NONE_OF_THESE ? "none of these" : state.classes.find((c) => c.number === label)?.name ?? `class ${label}`);
const hasLabel = (a) => ["label", "confirm", "settle"].includes(a.kind);
const labelOf = (a) => (a.answer === undefined ? nameOf(a.label) : nameAnswer(a.answer)); // of a task, the written answer
const currentOf = (h) => (h.current_answer === undefined ? nameOf(h.current) : nameAnswer(h.current_answer));
const describeAnswer = (a) => (hasLabel(a) ? labelOf(a)
  : { skip: "skipped", keep: `${labelOf(a)} kept`, doubt: "open for review again" }[a.kind] ?? "not sure");
const onStage = () => state.again ?? state.query;
const watching = () => Boolean(state.session?.labelled_at); // labelling happens in Label Studio: there are no queries here
const announce = (text) => { $("said").textContent = text; };

const needsClasses = () => !task() && state.classes.length < 2;

// ---- drawing --------------------------------------------------------------------------------

function drawItem() {
  const found = onStage();
  const done = !state.again && state.query?.done;
  const start = needsClasses();
  if (start && $("first").hidden && state.classes.length) $("first").elements.names.value = `${state.classes[0].name}\n`;
  $("first").hidden = !start || watching();
  $("answering").hidden = start || watching();
  if (!found) return;
  $("mode").hidden = !state.again;
  $("answering").classList.toggle("done", Boolean(done));
  if (state.again) {
    const more = state.queue.length ? ` ${count(state.queue.length, "more follows", "more follow")}.` : "";
    $("mode").replaceChildren(make("span", { text: `${explainItem(state.again)}.${more}${watching() ? "" : " Choose a class, or"}` }),
      make("button", { type: "button", className: "quiet", on: { click: leaveAgain } }, watching() ? "Back " : "go back ", make("kbd", { text: "Esc" })));
  }
  if (done && watching()) drawElsewhere(); else if (done) drawDone(); else $("item").replaceChildren(found.sound ? player(found) : large(found));
  $("item").className = done ? "rest" : found.sound ? "sound" : found.url ? "picture" : "words";
  $("zoom").hidden = Boolean(found.sound);
  // A scrollable item must be focusable, so that the keyboard can scroll it.
  if ($("item").scrollHeight > $("item").clientHeight + 1 && !found.url) $("item").tabIndex = 0;
  else $("item").removeAttribute("tabindex");
  $("asked").textContent = done ? "" : title(found);
  $("more-like").hidden = Boolean(done) || !found.guess?.length; // without a model nothing is similar, and tasks have no gallery
  drawTask();
  $("reason").textContent = done || state.again ? "" : REASONS[found.reason] ?? found.reason ?? "";
  $("stage").dataset.position = done ? "" : String(found.position);
  const none = state.session?.none_of_these;
  $("none").hidden = !none;
  if (none) {
    $("none").setAttribute("aria-keyshortcuts", none.key);
    $("none").querySelector("kbd").textContent = none.key;
    $("none").classList.toggle("was", state.again?.label === NONE_OF_THESE);
  }
  drawGuess();
  drawClasses();
}

function explainItem(item) { // why an item other than the query is shown
  if (item.why) return item.why;
  if (watching()) return `${item.who}: ${hasLabel(item) ? `“${describeAnswer(item)}”` : describeAnswer(item)}`;
  return `Changing an earlier answer: ${hasLabel(item) ? `“${describeAnswer(item)}”` : describeAnswer(item)}`;
}

function drawElsewhere() {
  const at = new URL(state.session.labelled_at);
  $("item").replaceChildren(
    make("h2", { text: "Labelling happens in Label Studio" }),
    make("p", {}, make("a", { href: at.href, text: `${at.host}${at.pathname}` })),
    make("p", { className: "faint", text: "Annotations made there appear here. Click an answer below, or an item of the map, to open it." }));
}

function drawDone() {
  const { reason } = state.query;
  const sentence = reason ? reason[0].toUpperCase() + reason.slice(1) : "Every item has an answer, thank you";
  const summary = make("p", { id: "summary" });
  const doubtful = make("button", { type: "button", id: "doubtful", hidden: true, text: "Review suspect labels", on: { click: reviewDoubts } });
  const button = (text, act) => make("button", { type: "button", text, on: { click: act } });
  $("item").replaceChildren(
    make("h2", { text: "Nothing left to label" }), make("p", { text: `${sentence}.` }), summary, finishSteps(),
    make("p", { className: "row" }, button("Summary", () => choose("progress")), doubtful, button("Check again", requestQuery)));
  get("/api/progress").then((found) => {
    const { measured, estimated } = found.accuracy;
    const open = found.items > found.labels; // otherwise nothing is predicted
    const good = measured ? `; measured accuracy ${percent(measured.value)}` : estimated && open ? `; estimated accuracy ${percent(estimated.value)}` : "";
    const of = state.classes.filter((c) => found.per_class[c.number]).map((c) => `${found.per_class[c.number]} × ${c.name}`);
    if (!of.length) { summary.textContent = `${count(found.labels, "label", "labels")}.`; doubtful.hidden = !found.doubts; return; }
    summary.textContent = `${count(found.labels, "label", "labels")}: ${of.slice(0, 12).join(", ")}${of.length > 12 ? " and others" : ""}${good}.`;
    doubtful.hidden = !found.doubts;
  }, () => null);
}

async function reviewDoubts() {
  const { doubts } = await get("/api/doubts?n=100");
  const suggested = (d) => (task() ? nameAnswer(d.suggested) : nameOf(d.suggested));
  openItems(doubts.map((d) => ({ ...d, kind: "label", why: `Labelled “${labelOf(d)}”; leave-one-out prediction: “${suggested(d)}”` })));
}

function guesses() { // label -> probability, for the item on the stage
  if (task()) return new Map(isTask("number") ? [] : (prediction()?.outputs ?? []).map((out) => [out.label, out.p]));
  if (guessesHidden() || state.again || !state.query?.guess) return new Map();
  return new Map(state.query.guess.map((g) => [g.label, g.p]));
}

function drawGuess() {
  if (task()) { drawTaskGuess($("guess")); return; }
  const best = [...guesses()].sort((a, b) => b[1] - a[1])[0];
  const line = $("guess");
  line.hidden = !best;
  if (!best) return;
  line.replaceChildren(make("span", { text: "Prediction:" }), dot(best[0]), make("strong", { text: nameOf(best[0]) }),
    make("span", { text: `(${chance(best[1])})` }), make("button", {
      type: "button", id: "agree", className: "quiet", on: { click: (event) => agree(event) },
    }, "accept ", make("kbd", { text: "Enter" })));
}

function drawClasses() {
  const wanted = $("find").value.trim().toLowerCase();
  const known = guesses();
  const best = [...known].sort((a, b) => b[1] - a[1])[0]?.[0];
  const found = matches(wanted);
  const buttons = found.map((c, n) => {
    const button = make("button", {
      type: "button", className: "class", title: c.name, "data-label": String(c.number), "aria-keyshortcuts": c.key,
      "aria-pressed": isTask("multilabel") ? String(isChosen(c.number)) : null,
      on: { click: (event) => (isTask("multilabel") ? toggle(c.number) : answer("label", c.number, event)) },
    }, c.key ? make("kbd", { text: c.key }) : null,
    make("span", { className: "called", text: c.name }));
    button.style.setProperty("--class", colour(c.number));
    button.style.setProperty("--p", String(known.get(c.number) ?? 0));
    button.classList.toggle("likely", task() ? Boolean(prediction()?.outputs[c.number]?.chosen) : c.number === best);
    button.classList.toggle("first", Boolean(wanted) && n === 0);
    button.classList.toggle("was", c.number === state.again?.label);
    return button;
  });
  $("classes").classList.toggle("many", state.classes.length > 12);
  const longest = Math.max(0, ...state.classes.map((c) => c.name.length));
  const words = state.classes.flatMap((c) => c.name.split(/[\s/-]+/)).map((word) => word.length);
  document.body.style.setProperty("--letters", String(Math.min(LETTERS, Math.max(1, ...words)))); // a word is not broken
  $("classes").classList.toggle("long", longest > 11);
  $("classes").replaceChildren(...buttons);
  const likely = buttons.find((b) => b.classList.contains("likely"));
  // Scroll to the most probable class: it may be one of a hundred.
  if (likely && !wanted) $("classes").scrollTop = likely.offsetTop - $("classes").offsetTop - ($("classes").clientHeight - likely.clientHeight) / 2;
  drawHint(wanted, found);
}

// Update the prediction beside the query. The predicted class never changes while an annotator is about to accept it.
function updateGuess(position, now) {
  const { query } = state;
  if (state.again || query?.position !== position || query.guess?.[0]?.label !== now[0]?.label) return;
  query.guess = now.slice(0, 5);
  drawGuess();
  const known = guesses();
  for (const b of document.querySelectorAll("button.class")) b.style.setProperty("--p", String(known.get(Number(b.dataset.label)) ?? 0));
}

function matches(wanted) {
  if (!wanted) return state.classes;
  const at = (c) => c.name.toLowerCase().indexOf(wanted);
  const rank = (c) => (c.name.toLowerCase() === wanted ? -1 : at(c) === 0 ? 0 : 1);
  return state.classes.filter((c) => at(c) >= 0).sort((a, b) => rank(a) - rank(b));
}

function drawHint(wanted, found) {
  const typed = $("find").value.trim();
  let text = "";
  if (wanted && found.length) text = isTask("multilabel") ? `Press Enter to tick or untick “${found[0].name}”.` : `Press Enter to label it “${found[0].name}”.`;
  else if (wanted) text = `New class: “${typed}” does not exist yet. Press Enter to add it.`;
  const exact = found.some((c) => c.name.toLowerCase() === wanted);
  $("hint").replaceChildren(text);
  if (wanted && found.length && !exact) {
    $("hint").append(" ", make("button", {
      type: "button", className: "quiet", text: `Add “${typed}” as a new class`, on: { click: () => addClass(typed) },
    }));
  }
}

function drawHistory() {
  const focused = document.activeElement?.closest?.("#history [data-seq]")?.dataset.position;
  const before = drawn;
  drawn = new Map();
  $("history").replaceChildren(...state.history.map((h) => {
    const what = describeAnswer(h);
    const as = JSON.stringify([h, what, currentOf(h), state.again?.position === h.position, watching()]);
    drawn.set(as, before.get(as) ?? drawAnswer(h, what));
    return drawn.get(as);
  }));
  if (focused) $("history").querySelector(`[data-position="${focused}"]`)?.focus();
  if (!state.history.length) $("history").append(make("li", { className: "faint", text: "Each answer appears here; click it to change it." }));
}

let drawn = new Map(); // content of an answer -> its element: each new answer adds one element, the others are reused

function drawAnswer(h, what) {
  const other = h.current !== null && h.current !== h.label && hasLabel(h);
  const button = make("button", {
    type: "button", "data-seq": String(h.seq), "data-position": String(h.position),
    title: `${title(h)}: ${what}${other ? `, but the current label is ${currentOf(h)}` : ""}`,
    // A name in place of visible words would hide them from screen readers.
    "aria-label": !h.url ? null : watching() ? `${title(h)}: ${what}, ${h.who}` : `${title(h)}: ${what}. Change it`,
    on: { click: () => startAgain(h) },
  }, thumb(h), make("span", { className: "called" }, hasLabel(h) && !isTask("multilabel", "number") ? dot(h.label) : "", what),
  h.url ? null : make("span", { className: "unseen", text: watching() ? `, ${h.who}` : ". Change it" }));
  button.classList.toggle("current", state.again?.position === h.position);
  return make("li", {}, button);
}

// Show progress towards the budget, or towards the point where more labels bring little: few people label a whole pool.
function drawMe() {
  const { account, who } = state.session;
  $("me").textContent = who ? `You: ${who}` : "Your name";
  for (const button of document.querySelectorAll(".log-out")) button.hidden = !account?.can_log_out;
}

function drawTally(labels, budget, enough) {
  const { items } = state.session;
  state.budget = budget;
  state.enough = enough ?? null;
  const all = items <= labels;
  const wide = (text) => make("span", { className: "wide", text }); // left out on a phone
  const given = labels.toLocaleString("en"), among = ` of ${items.toLocaleString("en")}`;
  $("tally").replaceChildren(...(budget ? [`${given} of ${budget.toLocaleString("en")}`, wide(" labels (budget)")]
    : items < 10_000 ? [given, wide(" labelled"), among, wide(" items")] : [`${given} labelled`, wide(`${among} items`)]));
  $("bar").value = Math.min(1, all ? 1 : budget ? labels / budget : task() ? labels / items : state.enough ?? 0);
  $("bar").title = task() && !budget ? "Items labelled, as a share of all" : budget ? "Labels given, as a share of the budget" : state.enough === null && !all
    ? "Progress towards enough labels: available after the first rounds of training"
    : `${percent($("bar").value)} of the way to the point where more labels bring little improvement`;
  $("bar").setAttribute("aria-label", $("bar").title);
  drawMe();
}

// Embeddings of a pool are computed step by step; show which items can be queried so far.
function drawLooking({ state: doing, done, in_play: among, seconds_left: seconds, first } = {}) {
  const line = $("looking");
  line.hidden = watching() || !["loading", "features"].includes(doing);
  if (line.hidden) return;
  const left = typeof seconds === "number" ? `, about ${duration(seconds)} left` : "";
  if (among) line.textContent = `Querying from ${among.toLocaleString("en")} items so far; computing the embeddings of the others (${percent(done)}${left}).`;
  else if (doing === "loading" || !first || first.seen >= first.of) line.textContent = "Items are in random order until the model is ready.";
  else {
    const soon = typeof first.seconds_left === "number" ? `, about ${duration(first.seconds_left)} left` : "";
    line.textContent = `Items are in random order until the embeddings of ${first.of.toLocaleString("en")} items are computed (${first.seen} so far${soon}).`;
  }
}

// ---- queries and answers --------------------------------------------------------------------

function show(query) {
  state.query = query;
  state.again = null;
  drawItem();
  afterPaint(() => { fetchAhead(query.prefetch ?? []); refreshHistory(); refresh(context()); });
}

// Secondary information is fetched after the item, including its picture, is on the screen.
function afterPaint(act) {
  const image = $("item").querySelector("img");
  const painted = () => requestAnimationFrame(() => setTimeout(act, 60));
  if (!image || image.complete) { painted(); return; }
  for (const type of ["load", "error"]) image.addEventListener(type, painted, { once: true });
}
const context = () => ({
  ...state, nameOf, labelOf, nameAnswer, task: task(), answerFor, startAgain, openItems, requestQuery, reload, changeClass, onStage: onStage(), drawTally, drawLooking, updateGuess,
  refreshHistory, makeClass, watching: watching(),
});

async function refreshHistory() {
  const before = JSON.stringify(state.history);
  try { state.history = await get(`/api/history?n=40${watching() ? "" : "&mine=1"}`); } catch { return; }
  if (!watching() || JSON.stringify(state.history) !== before) drawHistory();
}

function setBusy(busy, label) {
  state.busy = busy;
  document.body.classList.toggle("busy", busy);
  for (const b of document.querySelectorAll("#answering button")) b.setAttribute("aria-disabled", String(busy));
  for (const b of document.querySelectorAll("button.class")) b.classList.toggle("sent", busy && b.dataset.label === String(label));
}

// One request at a time: a second key press before the first answer is saved is ignored.
async function alone(act, label) {
  if (state.busy) return null;
  setBusy(true, label);
  try { return await act(); } catch (error) {
    if (!(error instanceof Refused)) throw error;
    announce(error.message);
    if (error.status === 409) await showQuery(); // another annotator was faster: request the next query
    return null;
  } finally { setBusy(false); }
}

function saved(answered) {
  const { event, changed, labels } = answered;
  forgetAnswer();
  const moved = changed === null || changed === undefined ? "" : ` · ${count(changed, "prediction", "predictions")} changed`;
  drawTally(labels, state.budget, state.enough);
  show(answered.next);
  if (state.queue.length) nextOfQueue();
  const next = answered.next.done ? "Nothing left to label." : `Next: ${title(answered.next)}.`;
  $("said").replaceChildren(make("span", { text: `Saved: ${describeAnswer(event)}${moved}. ` }), make("span", { className: "unseen", text: next }));
}

async function answerFor(found, kind, label, value) {
  return alone(async () => {
    const given = value === undefined ? {} : { value }; // the answer to a task in place of a label
    const answered = await sendAnswer({ position: found.position, kind, label: label ?? null, ...given });
    $("find").value = "";
    saved(answered);
    return answered;
  }, label);
}

async function answer(kind, label, event) {
  const found = focusedAnswer() ?? onStage();
  if (!found || found.done || found.position === undefined) return;
  const stay = event?.detail === 0 && ["skip", "unsure", "none"].includes(event.currentTarget?.id);
  await answerFor(found, kind, label);
  // A command reached by keyboard keeps the focus; otherwise the item gets it, so that the next key
  // applies to the item that is visible.
  if (!stay) focusForm();
}

const focusedAnswer = () => {
  const node = document.activeElement?.closest?.("#history [data-seq]");
  return node && state.history.find((h) => String(h.seq) === node.dataset.seq);
};

function agree(event) {
  const best = [...guesses()].sort((a, b) => b[1] - a[1])[0];
  if (best) answer("label", best[0], event);
}

async function undo() {
  return alone(async () => {
    const found = await send("/api/undo", { seq: null, key: newKey() }); // the key makes a repeated request undo only once
    state.queue = [];
    forgetAnswer();
    drawTally(found.labels, state.budget, state.enough);
    if (found.undone && ["rename", "merge", "remove"].includes(found.undone.kind)) await reload();
    show(found.next);
    announce(undone(found.undone));
    return found.undone;
  });
}

function undone(taken) {
  if (!taken) return "You have no answer to undo.";
  if (taken.kind === "keep") return "Undone: the label is open for review again.";
  if (taken.kind === "confirm") return `Undone: ${count(taken.together, "confirmation", "confirmations")} of “${nameOf(taken.label)}”.`;
  if (["rename", "merge", "remove"].includes(taken.kind)) return "Undone: the change of classes is reverted.";
  return "Undone. Please label the item again.";
}

function startAgain(h) {
  if (state.busy) return;
  openView("label");
  state.again = h;
  drawItem();
  drawHistory();
  if (isTask("number")) focusForm(); else $("stage").focus(); // keys apply to the visible item
  afterPaint(() => refresh(context()));
}

// Show items one after the other, each with the reason for it.
function openItems(items) {
  state.queue = [...items];
  nextOfQueue();
}

function nextOfQueue() {
  const next = state.queue.shift();
  if (!next) return;
  state.again = next;
  drawItem();
  drawHistory();
  $("stage").focus({ preventScroll: true });
  afterPaint(() => refresh(context()));
}

function leaveAgain() {
  state.again = null;
  state.queue = [];
  drawItem();
  drawHistory();
  $("stage").focus({ preventScroll: true });
  afterPaint(() => refresh(context()));
}

const showQuery = async () => show(await get("/api/question"));
const requestQuery = () => alone(showQuery);

async function addClass(name) {
  await alone(async () => {
    const made = await send("/api/classes", { name });
    await reload();
    announce(`New class “${made.name}” added. Press Enter to ${isTask("multilabel") ? "tick it" : "label the item with it"}.`);
    $("find").value = made.name;
    drawItem();
    $("find").focus();
  });
}

// Make a class of items that belong to none of the others, in one step; undo reverts their labels.
async function makeClass(name, positions) {
  return alone(async () => {
    const made = await send("/api/classes", { name, positions, key: newKey() });
    await reload();
    await showQuery();
    announce(`${count(made.confirmed.length, "item is", "items are")} now labelled “${made.name}”.`);
    return made;
  });
}

async function changeClass(number, kind, name) {
  return alone(async () => {
    const done = await send(`/api/classes/${number}`, { kind, name: name ?? null, key: newKey() });
    const was = nameOf(number);
    await reload();
    await showQuery();
    announce(kind === "rename" ? `Renamed “${was}” to “${nameOf(number)}”.`
      : kind === "merge" ? `Merged “${was}” into “${name}”.` : `Removed “${was}”; its items are unlabelled again.`);
    return done;
  });
}

async function reload() { // fetch name, classes and annotator: other people may have changed them
  state.session = await get("/api/session");
  state.classes = state.session.classes;
  state.classesSeq = state.session.classes_seq;
  $("name").textContent = state.session.name;
  document.body.classList.toggle("watching", watching());
  drawMe();
  if (state.query) drawItem();
  drawHistory();
}

export {
  $, NONE_OF_THESE, answerFor, labelOf, needsClasses, onStage, addClass, agree, alone, answer, showQuery, context, drawClasses, drawItem, drawTally, leaveAgain, openItems, matches, nameOf, reload, announce, show, state,
  undo, undone,
};

// ---- start ----------------------------------------------------------------------------------

function watch() {
  $("answers-title").textContent = "Recent answers";
  $("stage").parentElement.setAttribute("aria-label", "Labels");
  choose("progress");
  show({ done: true });
}

async function start() {
  await import("./keys.js");
  await import("./many.js");
  await import("./gallery.js");
  await import("./planeview.js");
  await import("./audit.js");
  openPanels(context);
  try {
    await reload();
    startTask();
    startViews();
    if (watching()) { watch(); return; }
    const left = readPending();
    if (left) await sendAnswer(left).catch(() => null); // an answer whose sending was interrupted by a reload
    await showQuery();
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    state.query = null;
    $("item").replaceChildren(make("p", { className: "lost", text: error.message }));
  }
}

start();
