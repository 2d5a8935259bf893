// One prediction written out: base, terms, what they add up to, and what is left over. A table with bars in it.
const SHOWN = 10;

// Terms in the order of what they do here, the smallest ones put together.
function orderOf(contributions, output) {
  return contributions.map((_, i) => i).sort((a, b) => Math.abs(contributions[b][output]) - Math.abs(contributions[a][output]) || a - b);
}

function drawAccount(place, { caption, point, account, prediction = null, order = null }) {
  const o = state.output;
  const sorted = order || orderOf(account.contributions, o);
  const most = sorted.length > SHOWN + 1 ? SHOWN : sorted.length;
  const steps = [];
  let sum = table.base[o];
  const step = (about, value) => { steps.push({ ...about, value, from: sum, to: sum + value }); sum += value; };
  for (const i of sorted.slice(0, most)) {
    const term = table.terms[i];
    const values = term.features.map((k) => named(k, point)).join(", ");
    step({ name: term.name, values, feature: term.features[0] }, account.contributions[i][o]);
  }
  const rest = sorted.slice(most);
  if (rest.length) step({ name: counted(rest.length, "smaller term"), own: true }, rest.reduce((total, i) => total + account.contributions[i][o], 0));
  const left = prediction ? prediction[o] - account.total[o] : null;
  const ends = [table.base[o], account.total[o], ...steps.flatMap((s) => [s.from, s.to]), ...(prediction ? [prediction[o]] : [])];
  const low = Math.min(...ends), high = Math.max(...ends), span = high - low || 1;
  const scale = Math.max(...steps.map((s) => Math.abs(s.value)), Math.abs(left ?? 0), 1e-12);
  const at = (value) => 2 + (96 * (value - low)) / span;
  const bar = (from, to, kind) => {
    const mark = make("span", { className: "step " + kind });
    mark.style.left = Math.min(at(from), at(to)) + "%";
    mark.style.width = Math.max(0.4, Math.abs(at(to) - at(from))) + "%";
    return make("td", { className: "track", "aria-hidden": "true" }, mark);
  };
  const level = (value, kind) => {
    const mark = make("span", { className: "level " + kind });
    mark.style.left = at(value) + "%";
    return make("td", { className: "track", "aria-hidden": "true" }, mark);
  };
  const line = (className, name, values, track, text, value) => make("tr", { className, "data-value": value },
    make("th", { scope: "row" }, name, ...(values ? [" ", make("span", { className: "given" }, "= ", bdi(brief(values, 28)))] : [])), track, make("td", { className: "number", textContent: text }));
  const body = make("tbody", {},
    line("sum", "average prediction", "", level(table.base[o], ""), fixed(table.base[o], scale), table.base[o]),
    ...steps.map((s) => line("term", s.own ? s.name : bdi(s.name, "name"), s.values, bar(s.from, s.to, s.value < 0 ? "against" : "for"), signed(s.value, scale), s.value)),
    line("sum total", "account", "", level(account.total[o], "total"), fixed(account.total[o], scale), account.total[o]));
  if (prediction) body.append(
    line("left", "left over (residual)", "", bar(account.total[o], prediction[o], "rest"), signed(left, scale), left),
    line("sum total", "model's prediction", "", level(prediction[o], "total"), fixed(prediction[o], scale), prediction[o]));
  place.replaceChildren(
    make("table", { className: "account" }, make("caption", {}, caption, table.outputs.length > 1 ? make("span", { className: "quiet" }, " for ", bdi(table.outputs[o])) : null), body),
    ...probabilities(account.total, prediction));
}

// Probabilities by the account, and by the model where it was run; never one in the name of the other.
function probabilities(total, prediction) {
  const ours = linked(total);
  if (!ours) return [];
  if (table.link === "exp") return [make("p", { className: "quiet", textContent: `The account's output is ${shown(ours[state.output], 4)}.` })];
  const theirs = prediction ? linked(prediction) : null;
  const names = table.outputs.length > 1 ? table.outputs : [table.classes[1] || table.outputs[0]];
  const order = names.map((_, i) => i).sort((a, b) => ours[b] - ours[a]).slice(0, 6);
  const head = make("tr", {}, make("th", { scope: "col", textContent: "probability" }), make("td"), make("th", { scope: "col", className: "number", textContent: "account" }));
  if (theirs) head.append(make("th", { scope: "col", className: "number", textContent: "model" }));
  const rows = order.map((i) => {
    const fill = make("span", { className: "fill" });
    fill.style.width = 100 * ours[i] + "%";
    const row = make("tr", { "data-output": i, "data-value": ours[i] }, make("th", { scope: "row" }, bdi(names[i])), make("td", { className: "track", "aria-hidden": "true" }, fill),
      make("td", { className: "number", textContent: percent(ours[i]) }));
    if (theirs) row.append(make("td", { className: "number", textContent: percent(theirs[i]) }));
    return row;
  });
  const said = theirs ? "Probabilities of the account and of the model." : "Probabilities of the account: the model was not run.";
  return [make("table", { className: "chances" }, make("caption", { className: "quiet", textContent: said }), make("thead", {}, head), make("tbody", {}, ...rows))];
}
