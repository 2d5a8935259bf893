// One prediction written out: base, terms, their sum, and what is left over. A table with bars in it.
const SHOWN = 10;

// Terms that are known here, in the order of what they do; those with a missing value last.
function orderOf(contributions, output) {
  const size = (i) => Math.abs(contributions[i][output]) || 0;
  return [...contributions.keys()].filter((i) => contributions[i]).sort((a, b) => size(b) - size(a) || a - b);
}

// One step a term, the smallest ones put together.
function stepsOf(base, point, contributions, order) {
  const o = state.output, steps = [];
  let sum = base;
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
  const o = state.output, scaled = onScale(account, prediction), base = scaled.base[o], total = scaled.total[o];
  const steps = stepsOf(base, point, scaled.contributions, order || orderOf(scaled.contributions, o));
  const end = prediction ? scaled.prediction[o] : null, left = prediction ? end - total : 0;
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

  const body = make("tbody", {}, line("sum", base, scaled.linked ? "at the average output" : "average prediction", level(base, ""), fixed(base, scale)));
  for (const { name, values, value, from, to } of steps) {
    body.append(line("term", value, name, bar(from, to, value < 0 ? "against" : "for"), signed(value, scale), values));
  }
  body.append(line("sum total", total, scaled.linked ? "sum of the shares" : "sum of the terms", level(total, "total"), fixed(total, scale)));
  if (prediction) {
    body.append(
      line("left", left, "left over (residual)", bar(total, end, "rest"), signed(left, scale)),
      line("sum total", end, "model's prediction", level(end, "total"), fixed(end, scale)),
    );
  }
  const which = table.outputs.length > 1 ? make("span", { className: "quiet" }, scaled.linked && table.link !== "exp" ? " for the probability of " : " for ", bdi(table.outputs[o])) : "";
  const unknown = table.untabled.filter((term) => !account.contributions[term.position]).map((term) => term.name);
  const missing = Number.isFinite(total) ? "" : "A value is missing for which the functions have no place: that contribution and the sum are not known. ";
  const said = missing + (unknown.length ? `Not counted here, since they need the model: ${unknown.slice(0, 6).join(", ")}${unknown.length > 6 ? " and others" : ""}.` : "");
  place.replaceChildren(make("table", { className: "account" }, make("caption", {}, caption, which), body),
    ...(scaled.linked ? [make("p", { className: "quiet path", textContent: PATH })] : []),
    ...(said ? [make("p", { className: "quiet unknown", dir: "auto", textContent: said })] : []),
    ...(Number.isFinite(total) && !scaled.linked ? probabilities(account.total, prediction) : []));
}

const PATH = "Each term's share is taken on the straight line from the average output to the prediction; along another path terms "
  + "would have other shares.";

// The account as it is, or on the scale of the link where that was asked for and all of it is known.
function onScale(account, prediction) {
  const { contributions, total } = account, { base } = table, stop = prediction || total;
  if (!state.linked || !stop.every(Number.isFinite)) return { base, contributions, total, prediction, linked: false };
  const carried = carriedOver(contributions, stop), start = linked(base);
  const sum = start.map((value, o) => carried.reduce((all, part) => all + (part ? part[o] : 0), value));
  return { base: start, contributions: carried, total: sum, prediction: prediction && linked(prediction), linked: true };
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
