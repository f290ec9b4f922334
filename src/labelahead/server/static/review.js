// The review queue: labels of other people, to accept or correct. Doubts have a list of their own above it.

import { count, dot, make, thumb, title } from "./items.js";
import { Refused, getOnce } from "./server.js";

const SHOWN = 12;
const REASONS = { disagreement: "annotators disagree", "random check": "drawn at random" };

export async function reviewSection(context) {
  if (context.watching || context.session?.task) return null;
  let found;
  try { found = await getOnce("/api/review?n=100"); } catch (error) {
    if (error instanceof Refused) return null; // this annotator does not review
    throw error;
  }
  const rows = found.items.filter((item) => item.reason in REASONS).slice(0, SHOWN);
  const all = (found.counts.disagreement ?? 0) + (found.counts["random check"] ?? 0);
  if (!all) return null;
  const box = make("section", { id: "review-queue" }, make("h2", { text: "Check the work of others" }),
    make("p", { className: "faint", text: `${count(all, "label", "labels")}: disagreements, and ${Math.round(100 * found.share)}\u00a0% of each other annotator’s labels, drawn at random.` }),
    make("ul", { className: "looks" }, ...rows.map((item) => row(context, item))));
  return box;
}

function row(context, item) {
  const line = make("li", {});
  const answer = async (kind, label) => { if (await context.answerFor(item, kind, label)) line.classList.add("settled"); };
  const correct = make("select", { "aria-label": `Correct the label of ${title(item)}`, on: { change: (event) => answer("settle", Number(event.currentTarget.value)) } },
    make("option", { value: "", text: "Correct …", selected: true, disabled: true }),
    ...context.classes.filter((c) => c.number !== item.label).map((c) => make("option", { value: String(c.number), text: c.name })));
  line.append(thumb(item), make("div", {},
    make("p", {}, make("strong", { text: title(item) }), ": ", dot(item.label), ` ${item.answer} by ${item.who}, ${new Date(item.at).toLocaleString()} (${REASONS[item.reason]}).`),
    make("p", { className: "row" }, make("button", { type: "button", text: "Accept", "aria-label": `Accept ${item.answer}: ${title(item)}`,
      on: { click: () => answer(item.reason === "disagreement" ? "settle" : "keep", item.label) } }), correct)));
  return line;
}
