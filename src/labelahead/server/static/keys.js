// Keyboard shortcuts, dialogues and the class finder. Letters and digits belong to classes; commands
// use keys that no class has.

import { full, guessesHidden, hideGuesses, large, make } from "./items.js";
import { $, NONE_OF_THESE, needsClasses, addClass, agree, alone, answer, showQuery, drawClasses, drawItem, leaveAgain, matches, reload, announce, state, undo } from "./label.js";
import { send } from "./server.js";
import { seekBy, togglePlay } from "./sound.js";
import { isTask, submit, task, taskKey, toggle } from "./tasks.js";
import { currentView, openView } from "./views.js";
import { shrink, zoomable } from "./zoom.js";

const COMMANDS = {
  Backspace: () => undo(),
  "-": () => answer("skip"),
  ".": () => answer("unsure"),
  ",": () => $("manyopen").click(),
  "+": () => enlarge(),
  "=": () => enlarge(), // the same key without shift on many keyboards
  "*": () => { if (!task()) openView("gallery"); },
  "?": () => $("keys").showModal(),
  "/": () => { $("find").focus(); $("find").select(); },
  Escape: () => leaveAgain(),
};

const SOUND_COMMANDS = { " ": () => togglePlay(), ArrowLeft: () => seekBy(-1), ArrowRight: () => seekBy(1) };

const typing = (node) => node?.matches?.("input:not([type=checkbox]):not([type=file]), textarea, select");

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || event.defaultPrevented) return;
  if (document.querySelector("dialog[open]") || typing(event.target) || currentView() !== "label") return;
  if (needsClasses()) return;
  const resting = event.target === document.body || event.target === $("stage"); // a focused control has keys of its own
  const listening = resting && (state.again ?? state.query)?.sound && SOUND_COMMANDS[event.key];
  if (listening) {
    event.preventDefault();
    if (!event.repeat || event.key !== " ") listening();
    return;
  }
  if (!state.session?.labelled_at && taskKey(event, resting)) return;
  if (state.session?.labelled_at && !["+", "=", "Escape"].includes(event.key)) return; // labelling happens in Label Studio
  const none = event.key === state.session?.none_of_these?.key;
  const command = none ? () => answer("label", NONE_OF_THESE) : COMMANDS[event.key];
  const known = event.key.length === 1 && state.classes.find((c) => c.key === event.key.toLowerCase());
  const confirm = event.key === "Enter" && resting;
  if (!command && !known && !confirm) {
    const printed = event.key.length === 1 && event.key !== " " && resting;
    if (printed && !event.repeat) announce(`The key “${event.key}” has no class. Press / to find a class by its name, or ? for all keys.`);
    return;
  }
  event.preventDefault();
  if (event.repeat) return; // a key that is held down gives one answer
  if (command) command();
  else if (confirm && task()) submit();
  else if (confirm) agree();
  else answer("label", known.number);
});

// ---- finding a class ------------------------------------------------------------------------

$("find").addEventListener("input", drawClasses);
$("find").addEventListener("keydown", async (event) => {
  if (event.isComposing || event.repeat) return;
  const typed = $("find").value.trim();
  if (event.key === "Escape") {
    $("find").value = "";
    drawClasses();
    $("stage").focus({ preventScroll: true });
  } else if (event.key === "Enter" && typed) {
    event.preventDefault();
    const found = matches(typed.toLowerCase());
    if (found.length && isTask("multilabel")) { toggle(found[0].number); $("find").value = ""; drawClasses(); $("stage").focus({ preventScroll: true }); }
    else if (found.length) await answer("label", found[0].number);
    else await addClass(typed);
  }
});

// ---- commands by mouse ----------------------------------------------------------------------

$("undo").addEventListener("click", undo);
$("skip").addEventListener("click", (event) => answer("skip", null, event));
$("none").addEventListener("click", (event) => answer("label", NONE_OF_THESE, event));
$("unsure").addEventListener("click", (event) => answer("unsure", null, event));
$("zoom").addEventListener("click", () => enlarge());
$("help").addEventListener("click", () => $("keys").showModal());

function enlarge() {
  const found = state.again ?? state.query;
  if (!found || found.done || found.sound) return;
  const room = $("large").firstElementChild;
  room.replaceChildren(large(found.url ? { ...found, url: full(found.url) } : found));
  shrink(room);
  $("large").showModal();
  room.focus();
}
zoomable($("large").firstElementChild, $("nearer"), $("farther"));
$("largenot").addEventListener("click", () => $("large").close());
$("item").addEventListener("click", (event) => { if (event.target.matches("img")) enlarge(); });

const hide = $("hide");
hide.checked = guessesHidden();
hide.addEventListener("change", () => {
  hideGuesses(hide.checked);
  drawItem();
});

// ---- the first classes ----------------------------------------------------------------------

$("first").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); $("first").requestSubmit(); }
});
$("first").addEventListener("submit", async (event) => {
  event.preventDefault();
  const written = $("first").elements.names.value;
  const names = written.split(written.includes("\n") ? /\r?\n/ : /[,;\t]/).map((name) => name.trim().replace(/[,;]$/, "").trim()).filter(Boolean);
  const twice = names.find((name, n) => names.slice(0, n).some((other) => other.toLowerCase() === name.toLowerCase()));
  const old = $("first").querySelector(".lost");
  old?.remove();
  const wrong = names.length < 2 ? "Enter at least two classes." : twice ? `“${twice}” is listed twice.` : "";
  if (wrong) { $("first").append(make("p", { className: "lost", role: "alert", text: wrong })); return; }
  await alone(async () => {
    for (const name of names) await send("/api/classes", { name });
    await showQuery();
    await reload(); // last: as soon as the classes are visible, their keys can be pressed
    announce("Press the key of a class to label the item.");
    $("stage").focus({ preventScroll: true });
  });
});

// ---- who is here ----------------------------------------------------------------------------

const ROLES = {
  annotator: "An annotator labels items.",
  reviewer: "A reviewer labels items, checks the labels of others, and changes classes.",
  admin: "An admin labels, reviews, imports labels, and exports labels and the model.",
};
$("me").addEventListener("click", () => {
  const { account, who } = state.session ?? {};
  if (account) { // the name is that of the account
    $("role").textContent = `You are logged in as ${who}, with the role ${account.role}. ${ROLES[account.role] ?? ""}${account.can_log_out ? "" : " To log out, use the page on which you logged in."}`;
    $("account").showModal();
    return;
  }
  $("whoname").value = state.session?.who ?? "";
  $("who").showModal();
});
$("accountnot").addEventListener("click", () => $("account").close());
for (const button of document.querySelectorAll(".log-out")) {
  button.addEventListener("click", async () => { await send("/api/logout", {}); location.assign("/login"); });
}
$("whonot").addEventListener("click", () => $("who").close());
$("who").querySelector("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const who = $("whoname").value.trim();
  if (!who) return;
  $("who").close();
  await alone(async () => {
    await send("/api/me", { who });
    await reload();
    await showQuery(); // the previous item was leased under the previous name
    announce(`Hello ${who}.`);
  });
});
