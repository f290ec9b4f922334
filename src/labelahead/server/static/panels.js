// The panels beside the query. They never delay labelling: they are fetched after the item is on the
// screen, and may fail silently.

import { bar, chance, count, dot, guessesHidden, make, percent, thumb, title } from "./items.js";
import { drawMap } from "./map.js";
import { openNewClass } from "./newclass.js";
import { drawProgress } from "./progress.js";
import { reviewSection } from "./review.js";
import { predictionSection } from "./tasks.js";
import { Refused, Unable, getFile, getOnce, sendFile, showProblem, troubleWith } from "./server.js";

const TABS = [
  ["why", "Why"], ["progress", "Progress"], ["doubts", "Review"],
  ["people", "People"], ["data", "Data"],
];
const tabs = document.getElementById("tabs");
const panel = document.getElementById("panel");
let open = "why";
let current = null; // () -> context
let turn = 0; // a response that arrives after a newer request is not drawn
let round = null;
let timer = null;

const section = (heading, ...children) => make("section", {}, make("h2", { text: heading }), ...children);
const note = (text) => make("p", { className: "faint", text });
const teach = (text) => make("p", { className: "teach", text }); // of an empty panel: what will be here, and how it gets here
const mayActAs = (context, ...roles) => !context.session?.account || roles.includes(context.session.account.role);
const needsRole = (what, role, context) => teach(`${what} needs the role ${role}; yours is ${context.session.account.role}.`);

export function openPanels(context) {
  current = context;
  for (const [id, name] of TABS) {
    tabs.append(make("button", {
      type: "button", role: "tab", id: `tab-${id}`, "aria-controls": "panel", text: name,
      on: { click: () => choose(id), keydown: (event) => arrow(event, id) },
    }));
  }
  choose("why", false);
  document.addEventListener("visibilitychange", () => { if (!document.hidden) poll(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => refresh(current()));
  timer = setTimeout(poll, 500);
}

function arrow(event, id) {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step) return;
  event.preventDefault();
  const at = TABS.findIndex((t) => t[0] === id);
  const next = TABS[(at + step + TABS.length) % TABS.length][0];
  choose(next);
  document.getElementById(`tab-${next}`).focus();
}

// A badge on a tab is visible from every other tab.
function badge(id, text, words) {
  const tab = document.getElementById(`tab-${id}`);
  tab.querySelector(".badge")?.remove();
  if (text) tab.append(make("span", { className: "badge", title: words }, text, make("span", { className: "unseen", text: ` ${words}` })));
}

export function choose(id, fetchNow = true) {
  open = id;
  for (const [name] of TABS) {
    const tab = document.getElementById(`tab-${name}`);
    tab.setAttribute("aria-selected", String(name === id));
    tab.tabIndex = name === id ? 0 : -1;
  }
  panel.setAttribute("aria-labelledby", `tab-${id}`);
  panel.replaceChildren(note("Loading …"));
  panel.dataset.open = id;
  if (fetchNow) refresh(current());
}

// Update the numbers in the header, and the open panel after a training.
async function poll() {
  clearTimeout(timer);
  let state = "idle";
  if (!document.hidden) {
    try {
      const found = await getOnce("/api/progress");
      showProblem("poll", null);
      let context = current();
      state = found.training?.state ?? "idle";
      if (context.session) { context.drawTally(found.labels, found.budget, found.enough); context.drawLooking(found.training); }
      const changed = context.session && found.classes_seq !== context.classesSeq;
      if (changed) await context.reload();
      context = current(); // with the current classes
      if (context.watching) context.refreshHistory();
      badge("progress", found.advice ? "✓" : "", "stopping is recommended");
      badge("doubts", found.doubts ? String(found.doubts) : "", found.doubts === 1 ? "label to review" : "labels to review");
      const fresh = found.training?.round !== round;
      round = found.training?.round;
      if (open === "progress") refresh(context, found); else if (fresh || (changed && open === "data")) refresh(context);
    } catch (error) {
      if (!(error instanceof Refused)) { showProblem("poll", troubleWith(error)); state = "training"; } // poll again soon
    }
  }
  timer = setTimeout(poll, state === "idle" || state === "waiting" ? 5000 : 1500);
}

export async function refresh(context, progress) {
  const mine = ++turn;
  const late = () => mine !== turn;
  try {
    if (open === "why") await showWhy(context, late);
    else if (open === "progress") await showProgress(context, late, progress);
    else if (open === "doubts") await showDoubts(context, late);
    else if (open === "people") await showPeople(context, late);
    else showData(context);
    if (!late()) panel.classList.remove("stale");
  } catch (error) {
    if (!late() && error instanceof Refused) panel.replaceChildren(note(error.message));
  }
}

// ---- why ------------------------------------------------------------------------------------

async function showWhy(context, late) {
  const item = context.onStage;
  if (!item || item.done) {
    panel.replaceChildren(note(context.watching ? "Open an item to see its prediction and the reasons for it." : "There is no item to explain."));
    return;
  }
  if (guessesHidden()) {
    panel.replaceChildren(note("Predictions are hidden; you can show them again in the help window (?)."));
    return;
  }
  const learnt = { "second opinion": "Another annotator has labelled this item", "taken back": "You undid your answer" }[item.reason];
  if (learnt) {
    panel.replaceChildren(note(`${learnt}. The prediction is hidden until you answer, because the model is fitted on that label.`));
    return;
  }
  panel.classList.add("stale"); // the panel still shows the previous item
  const why = await getOnce(`/api/why/${item.position}`);
  if (late()) return;
  if (context.task) { showTaskWhy(context, why); return; }
  const { nameOf } = context;
  const said = why.guesses.length ? section("Said before labelling", ...why.guesses.map((g) =>
    make("p", { text: `${g.guesser}: ${nameOf(g.label)} (${chance(g.p)})` }))) : null;
  if (!why.now.length) {
    panel.replaceChildren(...[note("There are no predictions yet. After the first training, this panel shows the predicted class "
      + "and how many other predictions each answer would change."), said].filter(Boolean));
    return;
  }
  context.updateGuess(item.position, why.now);
  const best = why.now[0].label;
  const more = [
    why.if.some((answer) => answer.changes) ? section("Other predictions that change class", ifLines(why.if, nameOf)) : null,
    why.affected.length ? section(`Predictions most affected if it is “${nameOf(best)}”`, cards(why.affected, (a) => (a.before === a.after
      ? [dot(a.after), `stays ${nameOf(a.after)}`]
      : [dot(a.before), `${nameOf(a.before)} → `, dot(a.after), nameOf(a.after)]))) : null,
    why.because.length ? section(`Labels in favour of “${nameOf(best)}”`, cards(why.because, (b) => [dot(b.label), nameOf(b.label)])) : null,
    why.against.length ? section(`Labels against “${nameOf(best)}”`, cards(why.against, (b) => [dot(b.label), nameOf(b.label)])) : null,
  ].filter(Boolean);
  panel.replaceChildren(...[
    why.effect ? make("p", { id: "effect", text: why.effect }) : null,
    why.learnt ? note("The item is labelled and the model is fitted on that label, so its prediction is not informative here.")
      : section("Predicted class", lines(why.now.slice(0, 5).map((g) => [g.label, g.p, chance(g.p)]), nameOf)),
    said,
    more.length ? make("details", { open: reasonsOpen, on: { toggle: (event) => { reasonsOpen = event.currentTarget.open; } } },
      make("summary", { text: "What it changes, and the labels behind it" }), ...more) : null,
  ].filter(Boolean));
}

function showTaskWhy(context, why) {
  panel.replaceChildren(...[
    why.effect ? make("p", { id: "effect", text: why.effect }) : null,
    predictionSection(why, section, note),
    why.similar?.length ? section("The most similar labelled items", cards(why.similar, (s) => [context.nameAnswer(s.answer)])) : null,
  ].filter(Boolean));
}

let reasonsOpen = true; // survives that the panel is redrawn with every query

function ifLines(found, nameOf) {
  const rows = [...found].sort((a, b) => b.changes - a.changes).slice(0, 8);
  const most = Math.max(10, ...rows.map((r) => r.changes)); // a single change does not fill the bar
  return lines(rows.map((r) => [r.label, r.changes / most, String(r.changes), "if "]), nameOf);
}

export function lines(rows, nameOf) { // [label, share of the bar, words, words before the name]
  return make("ul", { className: "bars" }, ...rows.map(([label, share, words, before]) => make("li", {},
    make("span", { className: "called" }, before ?? "", nameOf(label)), bar(share, label),
    make("span", { className: "number", text: words }))));
}

function cards(found, words) {
  return make("ul", { className: "cards" }, ...found.map((f) => make("li", { title: title(f) }, thumb(f),
    make("span", { className: "called" }, ...words(f)))));
}

// ---- progress -------------------------------------------------------------------------------

async function showProgress(context, late, given) {
  const found = given ?? await getOnce("/api/progress");
  if (late()) return;
  drawProgress(panel, found, context);
  const map = await getOnce("/api/map");
  if (late()) return;
  drawMap(panel, map, context);
}

// ---- review ---------------------------------------------------------------------------------

async function showDoubts(context, late) {
  const { doubts: found, enough, per_class: least, ...rest } = await getOnce("/api/doubts?n=24");
  const none = await getOnce("/api/none-of-these?n=48");
  const queue = await reviewSection(context);
  if (late()) return;
  const kept = make("div", {}, ...[queue, keptLabels(context, rest.kept, rest.kept_count), noneOfThese(context, none)].filter(Boolean));
  const { nameOf } = context;
  const suggested = (d) => (context.task ? context.nameAnswer(d.suggested) : nameOf(d.suggested));
  const intro = note(found.length ? "These labels may be wrong: fitted without them, the model clearly predicts another answer. The most suspicious come first."
    : "Each training also predicts every label from all other labels. A label that clearly differs from its prediction may be wrong and is listed here; one click keeps or changes it.");
  if (!found.length) {
    const none = enough ? "No label needs a review."
      : `Too few labels yet: a review needs a training with ${least} labels${context.task ? "" : ` per class on average, ${least * Math.max(2, context.classes.length)} in all`}.`;
    panel.replaceChildren(section("Review", intro, make("p", { text: none }), kept));
    return;
  }
  panel.replaceChildren(section("Review", intro, make("ul", { className: "looks" }, ...found.map((d) => make("li", {},
    thumb(d), make("div", {},
      make("p", {}, make("strong", { text: title(d) }), ` is labelled “${context.labelOf(d)}”${d.who ? ` by ${d.who}` : ""}; `
        + `without this label, the model predicts “${suggested(d)}”.`),
      context.watching ? null : make("p", { className: "row" },
        act(context, d, d.label, `Keep ${context.labelOf(d)}`, "keep"),
        !context.task ? act(context, d, d.suggested, `Change to ${suggested(d)}`)
          : context.task.name === "number" ? null : act(context, d, null, `Change to ${suggested(d)}`, "label", d.suggested),
        make("button", { type: "button", className: "quiet", text: "Other …", "aria-label": `Other …: ${title(d)}`,
          on: { click: () => context.startAgain({ ...d, kind: "label" }) } })))))), kept));
}

// The items that belong to none of the classes; a new class can be made of them.
function noneOfThese(context, found) {
  if (!found.count) return null;
  const shown = found.count > found.items.length ? `; the newest ${found.items.length} are listed here` : "";
  const box = section("None of these", note(`${count(found.count, "item belongs", "items belong")} to none of the classes${shown}.`),
    context.watching ? null : make("p", { className: "row" }, make("button", {
      type: "button", id: "make-class", text: "Make a new class …", on: { click: () => openNewClass(context, found) } })),
    make("ul", { className: "looks" }, ...found.items.map((item) => make("li", {}, thumb(item), make("div", {},
      make("p", {}, make("strong", { text: title(item) }), `: ${item.who}, ${new Date(item.at).toLocaleString()}.`),
      context.watching ? null : make("p", { className: "row" }, make("button", { type: "button", className: "quiet", text: "Change …",
        "aria-label": `Change …: ${title(item)}`, on: { click: () => context.startAgain({ ...item, kind: "label", label: -2 }) } })))))));
  box.id = "none-of-these";
  return box;
}

let keptOpen = false; // survives that the panel is redrawn with every query
function keptLabels(context, found, all) {
  if (!all) return null;
  const shown = all > found.length ? `; the newest ${found.length} are listed here` : "";
  return make("details", { open: keptOpen, on: { toggle: (event) => { keptOpen = event.currentTarget.open; } } },
    make("summary", { text: `${all.toLocaleString("en")} kept` }),
    note(`Excluded from the review until the label changes${shown}.`),
    make("ul", { className: "looks" }, ...found.map((k) => make("li", {}, thumb(k), make("div", {},
      make("p", {}, make("strong", { text: title(k) }), ` is labelled “${context.labelOf(k)}”; kept by ${k.who}, ${new Date(k.at).toLocaleString()}.`),
      context.watching ? null : make("p", { className: "row" }, act(context, k, null, "Review again", "doubt")))))));
}

function act(context, item, label, text, kind = "label", value = undefined) {
  return make("button", { type: "button", text, "aria-label": `${text}: ${title(item)}`, on: { click: async (event) => {
    const row = event.currentTarget.closest("li");
    const answered = await context.answerFor(item, kind, label, value);
    if (answered) row.classList.add("settled"); else refresh(current()); // the label may have been changed in the meantime
  } } });
}

// ---- people ---------------------------------------------------------------------------------

async function showPeople(context, late) {
  const found = await getOnce("/api/people");
  if (late()) return;
  const { nameOf } = context;
  const rows = found.people.map((p) => make("tr", {},
    make("td", {}, p.who, p.who === context.session.who ? " (you)" : "", p.active ? make("span", { className: "faint", text: "active now" }) : null),
    make("td", { className: "number", text: String(p.labels) }), make("td", { className: "number", text: String(p.skips) }),
    make("td", { className: "number", text: p.seconds >= 0.05 ? `${p.seconds < 10 ? p.seconds.toFixed(1) : Math.round(p.seconds)} s` : "–" })));
  const known = found.people.some((p) => p.reliability);
  const reliability = found.people.filter((p) => p.reliability).map(({ who, reliability: r }) => make("tr", {},
    make("td", { text: who }), make("td", { className: "number", text: `${percent(r.accuracy)} (${percent(r.low)} to ${percent(r.high)})` }),
    make("td", { text: r.few ? "too few labels" : r.confusions.map(([is, said, share]) => `“${nameOf(said)}” for “${nameOf(is)}” (${percent(share)})`).join(", ") })));
  const table = (heads, body) => make("div", { className: "sheet" }, make("table", {}, make("thead", {}, make("tr", {}, ...heads.map(([text, className = ""]) =>
    make("th", { scope: "col", text, className })))), make("tbody", {}, ...body)));
  const pairs = found.pairs.map((p) => make("tr", {}, make("td", { text: `${p.who}, ${p.other}` }),
    make("td", { className: "number", text: String(p.items) }), make("td", { className: "number", text: String(p.agreeing) }),
    make("td", { className: "number", text: p.kappa === null ? "–" : p.kappa.toFixed(2) })));
  const agreement = found.compared
    ? `${count(found.compared, "item is", "items are")} labelled by two or more annotators; they agree on ${found.agree} of them (${percent(found.agree / found.compared)}).`
    : "No item is labelled by two annotators yet. Some queries repeat an item of another annotator, so that this panel can show how often they agree.";
  panel.replaceChildren(
    section("People", found.people.length > 1 ? null : teach(context.session.account
      ? "You are alone so far. Other users open the same address and log in with their account."
      : "You are alone so far. Start “labelahead label” with --host 0.0.0.0, so that others can open the page from their machines; each enters a name at the top right."),
    rows.length ? table([["Annotator"], ["Labels", "number"], ["Skipped", "number"], ["Time", "number"]], rows) : null,
      rows.length ? note("Time: the median per item.") : null),
    ...(known ? [section("Reliability", note("How often each annotator is right, estimated by the model from all labels at its last refresh, with a 90 % interval. Labels of less reliable annotators count less."),
      table([["Annotator"], ["Accuracy", "number"], ["Confusions"]], reliability))] : []),
    section("Agreement", make("p", { text: agreement + (found.alpha === null ? "" : ` Krippendorff’s alpha is ${found.alpha.toFixed(2)}.`) }),
      ...(pairs.length ? [table([["Pair"], ["Items in common", "number"], ["Agreeing", "number"], ["Cohen’s kappa", "number"]], pairs)] : [])));
  if (found.conflicts.length) panel.append(section("Conflicts",
    note((known ? "The model uses all labels of an item, weighted by reliability. The newest one is its current label" : "The newest label is used")
      + (context.watching ? "." : " until somebody resolves the conflict by clicking the right class.")),
    make("ul", { className: "looks" }, ...found.conflicts.map((c) => conflict(context, c, nameOf)))));
}

function conflict(context, found, nameOf) {
  const labels = [...new Set([...found.answers.map((a) => a.label), found.counts])];
  const written = new Map([...found.answers.map((a) => [a.label, a.answer]), [found.counts, found.counts_answer]]);
  const name = (label) => (context.task ? context.nameAnswer(written.get(label)) : nameOf(label));
  return make("li", {}, thumb(found), make("div", {},
    make("p", {}, make("strong", { text: title(found) }), `: ${found.answers.map((a) => `${a.who} labelled it ${context.labelOf(a)}`).join(", ")}. `
      + `Current label: “${name(found.counts)}”.`),
    context.watching ? null : make("p", { className: "row" }, ...labels.map((label) => act(context, found, label, `It is ${name(label)}`, "settle")))));
}

// ---- data -----------------------------------------------------------------------------------

const FORMS = [["csv", "CSV table"], ["jsonl", "JSON lines"], ["parquet", "Parquet"], ["hf", "Hugging Face data set (zip)"],
  ["label-studio", "Label Studio tasks"], ["label-studio-config", "Label Studio labelling configuration"], ["folders", "Class folders (zip)"]];

function showData(context) {
  const drawn = panel.querySelector("#classes-of, #exported"); // it changes with the classes, not with the query
  if (drawn) {
    const old = panel.querySelector("#classes-of");
    if (old && old.dataset.seq !== String(context.classesSeq)) {
      const now = classesSection(context);
      for (const field of now.querySelectorAll("select, input")) { // keep what the user has chosen or typed
        const was = old.querySelector(`#${field.id}`)?.value; // undefined: there were no classes
        if (was === undefined) continue;
        if (!field.options || [...field.options].some((o) => o.value === was)) field.value = was;
      }
      const active = old.contains(document.activeElement) ? document.activeElement.id : null;
      old.replaceWith(now);
      if (active) document.getElementById(active)?.focus(); // somebody who types goes on typing
    }
    return;
  }
  const rest = make("input", { type: "checkbox", id: "rest" });
  const links = FORMS.filter(([form]) => form !== "folders" || (["image", "sound"].includes(context.session?.kind) && !["multilabel", "number"].includes(context.task?.name)))
    .map(([form, text]) => make("a", { text, "data-form": form, download: "" }));
  const every = make("input", { type: "checkbox", id: "every-class" });
  const mayExport = mayActAs(context, "admin");
  const aim = () => {
    every.disabled = !rest.checked;
    const query = rest.checked ? `?rest=1${every.checked ? "&probabilities=1" : ""}` : "";
    for (const a of links) a.href = `/api/export/${a.dataset.form}${query}`;
  };
  rest.addEventListener("change", aim);
  every.addEventListener("change", aim);
  aim();
  const exported = make("p", { role: "status", id: "exported" });
  for (const a of links) {
    a.addEventListener("click", (event) => {
      if (!rest.checked) return; // labels alone are exported at once
      event.preventDefault();
      downloadFile(a.getAttribute("href"), exported);
    });
  }
  const file = make("input", { type: "file", id: "importing", accept: ".csv,.jsonl,.json,.parquet" });
  const status = make("p", { role: "status", id: "imported" });
  file.addEventListener("change", () => importFile(context, file, status));
  panel.replaceChildren(...[
    context.watching || context.task ? null : classesSection(context),
    !mayExport ? section("Export and import", needsRole("Exporting labels or the model, and importing labels,", "admin", context)) : null,
    !mayExport ? null : section("Export labels", note("Each row names an item, its label, who gave it and when. You can export at any time and go on labelling."), make("ul", { className: "links" }, ...links.map((a) => make("li", {}, a))),
      make("label", { className: "check" }, rest, " include predictions for unlabelled items"),
      make("label", { className: "check" }, every, " include the probability of every class"), exported),
    mayExport ? modelSection() : null,
    context.watching || !mayExport ? null : section("Import labels", note("For labels that you already have: a CSV table, JSON lines or Parquet with the columns item and label, or an export of Label Studio."),
      make("label", {}, make("span", { className: "unseen", text: "File with labels: CSV, JSON lines, Parquet or Label Studio" }), file), status),
  ].filter(Boolean));
}

function classesSection(context) {
  const options = () => context.classes.map((c) => make("option", { value: String(c.number), text: c.name }));
  const others = (into, which) => { // a class cannot be merged into itself
    for (const option of into.options) option.disabled = option.value === which.value;
    if (into.value === which.value) into.value = [...into.options].find((o) => !o.disabled)?.value;
  };
  const which = make("select", { id: "class-which", "aria-label": "Class" }, ...options());
  const name = make("input", { id: "class-name", maxLength: 200, autocomplete: "off", "aria-label": "New name", placeholder: "New name" });
  const into = make("select", { id: "class-into", "aria-label": "Into which class" }, ...options());
  const chosen = () => Number(which.value);
  let box = null;
  if (!context.classes.length || !mayActAs(context, "reviewer", "admin")) {
    box = section("Classes", context.classes.length ? needsRole("Changing classes", "reviewer", context)
      : teach("There are no classes yet. Enter them where the item will be shown; later, you can rename, merge and remove them here."));
    return markClasses(box, context);
  }
  others(into, which);
  which.addEventListener("change", () => others(into, which));
  const act = (text, kind, value) => make("button", { type: "button", text, id: `class-${kind}`, on: { click: async () => {
    const other = value();
    if (kind === "rename" && !other.trim()) { name.focus(); return; }
    if (await context.changeClass(chosen(), kind, other)) { name.value = ""; refresh(current()); }
  } } });
  box = section("Classes", make("div", { className: "choices" },
    make("span", { text: "Class" }), which, make("span"),
    make("span", { text: "rename to" }), name, act("Rename", "rename", () => name.value),
    make("span", { text: "merge into" }), into, act("Merge", "merge", () => context.nameOf(Number(into.value))),
    make("span", { text: "remove" }), make("span", { className: "faint", text: "its items become unlabelled" }), act("Remove", "remove", () => null)),
  note("Undo reverts a change. The journal keeps the original labels; exports use the current classes."));
  return markClasses(box, context);
}

function markClasses(box, context) {
  box.id = "classes-of";
  box.dataset.seq = String(context.classesSeq);
  return box;
}

function modelSection() {
  const onnx = make("input", { type: "checkbox", id: "onnx" });
  const button = make("button", { type: "button", id: "take-model", text: "Download the model" });
  const status = make("p", { role: "status", id: "model-told" });
  button.addEventListener("click", () => downloadModel(button, status, onnx.checked));
  return section("Export the model", make("p", { className: "row" }, button),
    make("label", { className: "check" }, onnx, " also as ONNX, for other programs"),
    note("Fitted on all labels so far: a zipped folder for “labelahead predict”, with a model card that reports its accuracy."), status);
}

async function downloadModel(button, status, onnx) {
  button.disabled = true;
  await downloadFile(`/api/model${onnx ? "?onnx=1" : ""}`, status);
  button.disabled = false;
}

// Download a file that needs a model fitted on all labels: fitting takes a while and may be refused with a reason.
async function downloadFile(address, status) {
  status.textContent = "Fitting a model on all labels …";
  try {
    const found = await getFile(address);
    const url = URL.createObjectURL(found.blob);
    make("a", { href: url, download: found.name }).click();
    setTimeout(() => URL.revokeObjectURL(url), 60_000);
    status.textContent = `Downloaded ${found.name}.`;
  } catch (error) {
    const known = error instanceof Refused || error instanceof Unable;
    status.textContent = known ? error.message : "The server did not answer; try again.";
  }
}

async function importFile(context, file, status) {
  const chosen = file.files[0];
  const ending = chosen?.name.split(".").at(-1).toLowerCase();
  const form = { csv: "csv", jsonl: "jsonl", json: "label-studio", parquet: "parquet" }[ending];
  if (!form) { status.textContent = "Expected a file that ends in .csv, .jsonl, .json or .parquet."; return; }
  status.textContent = "Reading …";
  try {
    const found = await sendFile(form, chosen);
    const fresh = found.new_classes?.length ? `; new classes: ${found.new_classes.join(", ")}` : "";
    const unknown = found.unknown ? `; ${count(found.unknown, "row", "rows")} of unknown items` : "";
    status.textContent = `${count(found.labels, "label", "labels")} imported${fresh}${unknown}.`;
    await context.reload();
    await context.requestQuery();
  } catch (error) {
    const known = error instanceof Refused || error instanceof Unable;
    status.textContent = known ? error.message : "The server did not answer; nothing was imported. Try again.";
  } finally { file.value = ""; }
}
