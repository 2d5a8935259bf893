// One prediction written out: base, terms, their sum, and what is left over. A table with bars in it.
const SHOWN = 10;

// Terms that are known here, in the order of what they do; those with a missing value last.
function orderOf(contributions, output) {
  const size = (i) => Math.abs(contributions[i][output]) || 0;
  return [...contributions.keys()].filter((i) => contributions[i]).sort((a, b) => size(b) - size(a) || a - b);
}

// One step a term, the smallest ones put together.
function stepsOf(point, contributions, order) {
  const o = state.output, steps = [];
  let sum = table.base[o];
  const step = (about, value) => { steps.push({ ...about, value, from: sum, to: sum + value }); sum += value; };
  const known = order.filter((i) => contributions[i]), most = known.length > SHOWN + 1 ? SHOWN : known.length;
  for (const i of known.slice(0, most)) {
    const { name, features } = table.terms[i];
    step({ name: bdi(name, "name"), values: features.map((k) => named(k, point)).filter(Boolean).join(", ") }, contributions[i][o]);
  }
  const rest = known.slice(most);
  if (rest.length) {
    step({ name: counted(rest.length, "smaller term"), values: "" }, rest.reduce((total, i) => total + contributions[i][o], 0));
  }
  return steps;
}

function drawAccount(place, { caption, point, account, prediction = null, order = null }) {
  const o = state.output, base = table.base[o], total = account.total[o];
  const steps = stepsOf(point, account.contributions, order || orderOf(account.contributions, o));
  const left = prediction ? prediction[o] - total : 0;
  const ends = [base, total, total + left, ...steps.flatMap((step) => [step.from, step.to])].filter(Number.isFinite);
  const low = Math.min(...ends), span = Math.max(...ends) - low || 1;
  const scale = Math.max(...steps.map((step) => Math.abs(step.value) || 0), Math.abs(left) || 0, 1e-12);
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
  const line = (className, value, name, track, text, values = "") => {
    const given = values ? make("span", { className: "given" }, "= ", bdi(brief(values, 28))) : "";
    return make("tr", { className, "data-value": value }, make("th", { scope: "row" }, name, " ", given), track,
      make("td", { className: "number", textContent: text }));
  };

  const body = make("tbody", {}, line("sum", base, "average prediction", level(base, ""), fixed(base, scale)));
  for (const { name, values, value, from, to } of steps) {
    body.append(line("term", value, name, bar(from, to, value < 0 ? "against" : "for"), signed(value, scale), values));
  }
  body.append(line("sum total", total, "sum of the terms", level(total, "total"), fixed(total, scale)));
  if (prediction) {
    body.append(
      line("left", left, "left over (residual)", bar(total, prediction[o], "rest"), signed(left, scale)),
      line("sum total", prediction[o], "model's prediction", level(prediction[o], "total"), fixed(prediction[o], scale)),
    );
  }
  const which = table.outputs.length > 1 ? make("span", { className: "quiet" }, " for ", bdi(table.outputs[o])) : "";
  const unknown = table.untabled.filter((term) => !account.contributions[term.position]).map((term) => term.name);
  const missing = Number.isFinite(total) ? "" : "A value is missing for which the functions have no place: that contribution and the sum are not known. ";
  const said = missing + (unknown.length ? `Not counted here, since they need the model: ${unknown.slice(0, 6).join(", ")}${unknown.length > 6 ? " and others" : ""}.` : "");
  place.replaceChildren(make("table", { className: "account" }, make("caption", {}, caption, which), body),
    ...(said ? [make("p", { className: "quiet unknown", dir: "auto", textContent: said })] : []),
    ...(Number.isFinite(total) ? probabilities(account.total, prediction) : []));
}

// Probabilities by the sum of the terms, and by the model where it was run; never one in the name of the other.
function probabilities(total, prediction) {
  const ours = linked(total), theirs = prediction ? linked(prediction) : null;
  if (!ours) return [];
  if (table.link === "exp") {
    return [make("p", { className: "quiet", textContent: `The terms give an output of ${shown(ours[state.output], 4)}.` })];
  }
  const names = table.outputs.length > 1 ? table.outputs : [table.classes[1] || table.outputs[0]];
  const order = names.map((_, i) => i).sort((a, b) => ours[b] - ours[a]).slice(0, 6);
  const column = (textContent) => make("th", { scope: "col", className: "number", textContent });
  const head = make("tr", {}, make("th", { scope: "col", textContent: "probability" }), make("td"), column("terms"));
  if (theirs) head.append(column("model"));
  const rows = order.map((i) => {
    const fill = make("span", { className: "fill" });
    fill.style.width = 100 * ours[i] + "%";
    const row = make("tr", { "data-output": i, "data-value": ours[i] }, make("th", { scope: "row" }, bdi(names[i])),
      make("td", { className: "track", "aria-hidden": "true" }, fill));
    for (const share of theirs ? [ours[i], theirs[i]] : [ours[i]]) {
      row.append(make("td", { className: "number", textContent: percent(share) }));
    }
    return row;
  });
  const said = theirs ? "Probabilities by the sum of the terms and by the model." : "Probabilities by the sum of the terms: the model was not run.";
  return [make("table", { className: "chances" }, make("caption", { className: "quiet", textContent: said }),
    make("thead", {}, head), make("tbody", {}, ...rows))];
}
