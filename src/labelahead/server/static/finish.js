// The last steps of a session: export the labels, certify the accuracy, take the model.

import { make } from "./items.js";
import { choose } from "./panels.js";
import { openView } from "./views.js";

function show(target) { // a section of the Data panel
  openView("label");
  choose("data");
  const found = document.getElementById(target);
  found?.scrollIntoView({ block: "center" });
  found?.focus({ preventScroll: true });
}

// The certificate has a tab or a view of its own, if the session offers one.
const certificate = () => document.querySelector("#tab-audit, #views [data-view=audit]");

export function finishSteps() {
  const step = (heading, words, text, act) => make("li", {}, make("strong", { text: heading }), make("span", { className: "faint", text: words }),
    make("button", { type: "button", text, on: { click: act } }));
  const audit = certificate();
  return make("ol", { className: "steps" },
    step("Take the labels", "As a table or data set, with who gave each and when; with predictions for the rest if you like.", "Export the labels", () => show("rest")),
    audit ? step("Certify", "A short audit of randomly drawn items states how good the model is.", "Start the audit", () => audit.click()) : null,
    step("Take the model", "Fitted on all labels: a folder for “labelahead predict”, with a model card.", "Take the model", () => show("take-model")));
}
