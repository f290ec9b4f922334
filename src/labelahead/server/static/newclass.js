// Make a new class of items that were answered "none of these", and of unlabelled items that resemble them.

import { count, make, thumb, title } from "./items.js";

const $ = (id) => document.getElementById(id);
const box = $("newclass");
let context = null;
let chosen = new Set(); // positions

export function openNewClass(given, found) {
  context = given;
  chosen = new Set(found.items.map((item) => item.position));
  $("newclassname").value = "";
  $("newclasstold").textContent = "";
  $("newclassitems").replaceChildren(...[...found.items, ...found.similar].map((item) => {
    const button = make("button", {
      type: "button", "data-position": String(item.position), title: title(item), "aria-pressed": String(!chosen.has(item.position)),
      "aria-label": `Leave out ${title(item)}`, on: { click: () => toggle(item.position, button) },
    }, thumb(item, 240, 12));
    return make("li", {}, button);
  }));
  draw();
  box.showModal();
  $("newclassname").focus();
}

function toggle(position, button) {
  if (!chosen.delete(position)) chosen.add(position);
  button.setAttribute("aria-pressed", String(!chosen.has(position)));
  draw();
}

function draw() {
  $("newclassyes").textContent = `Make the class of ${count(chosen.size, "item", "items")}`;
  $("newclassyes").disabled = !chosen.size;
}

box.querySelector("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const name = $("newclassname").value.trim();
  if (!name || !chosen.size) return;
  const made = await context.makeClass(name, [...chosen]);
  if (made) box.close();
  else $("newclasstold").textContent = $("said").textContent; // why it was refused
});
$("newclassnot").addEventListener("click", () => box.close());
box.addEventListener("close", () => $("stage").focus({ preventScroll: true }));
