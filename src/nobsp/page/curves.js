// Cards with curves and surfaces, drawn when they come into view.
const drawers = new Map();
let drawing = false;
const eye = new IntersectionObserver((entries) => {
  for (const entry of entries) if (entry.isIntersecting) { eye.unobserve(entry.target); drawers.get(entry.target)?.(); }
}, { rootMargin: "600px" });

// Plotly travels as text and becomes a script once the first screen is there: reading it takes longer than all the rest.
function startDrawing() {
  if (drawing || document.readyState === "loading") return; // half of plotly may be there
  drawing = true;
  const text = byId("plotly");
  if (text) document.head.append(make("script", { textContent: text.textContent }));
  refresh();
}

// Charts in view are drawn now, the others when they come into view.
function refresh() {
  if (!drawing) return;
  for (const place of drawers.keys()) { eye.unobserve(place); eye.observe(place); }
}

function drawEverything() {
  startDrawing();
  for (const draw of drawers.values()) draw();
}

// From the lowest to the highest contribution of some features, in their calibrated range.
function scaleOf(features) {
  let low = 0, high = 0;
  for (const term of table.singles) {
    if (term.axes.length !== 1 || !features.includes(term.features[0])) continue;
    const k = term.features[0], about = table.features[k];
    const values = about.levels
      ? about.levels.map((_, i) => contribution(term, { numbers: {}, levels: { [k]: i } })[state.output])
      : Array.from(pointsAlong(term.axes[0].knots, ...about.columns[0].range, 1), (x) => curveAt(term, x, state.output));
    low = Math.min(low, ...values); high = Math.max(high, ...values);
  }
  const margin = (high - low || 1) * 0.05;
  return [low - margin, high + margin];
}

// A function in a sentence, for those who do not see it.
function inWords(term) {
  const o = state.output, about = table.features[term.features[0]];
  if (about.levels) {
    const values = about.levels.map((name, i) => [name, contribution(term, { numbers: {}, levels: { [term.features[0]]: i } })[o]]).sort((a, b) => b[1] - a[1]);
    const last = values[values.length - 1];
    return `${term.name}: from ${signed(last[1])} for ${last[0]} to ${signed(values[0][1])} for ${values[0][0]}.`;
  }
  const [low, high] = about.columns[0].range;
  const x = Array.from(pointsAlong([], low, high, 60)), y = x.map((at) => curveAt(term, at, o));
  const least = y.indexOf(Math.min(...y)), most = y.indexOf(Math.max(...y));
  return `${term.name}: ${signed(y[0])} at ${shown(low)}, ${signed(y[y.length - 1])} at ${shown(high)}; lowest ${signed(y[least])} at ${shown(x[least])}, highest ${signed(y[most])} at ${shown(x[most])}.`;
}

function valuesTable(term) {
  const o = state.output, k = term.features[0], about = table.features[k];
  const lines = about.levels
    ? about.levels.map((name, i) => [name, contribution(term, { numbers: {}, levels: { [k]: i } })[o]])
    : Array.from(pointsAlong([], ...about.columns[0].range, 10), (at) => [shown(at, 4), curveAt(term, at, o)]);
  const scale = Math.max(...lines.map(([, value]) => Math.abs(value)), 1e-12);
  return make("table", { className: "values" }, make("thead", {}, make("tr", {}, make("th", { scope: "col" }, bdi(about.name)), make("th", { scope: "col", className: "number", textContent: "contribution" }))),
    make("tbody", {}, ...lines.map(([name, value]) => make("tr", {}, make("th", { scope: "row" }, bdi(name)), make("td", { className: "number", textContent: signed(value, scale) })))));
}

function curveCard(term) {
  const k = term.features[0];
  const drawable = term.axes.length === 1;
  const place = make("div", { className: "chart", role: "img" });
  const details = make("details", {}, make("summary", { textContent: "values" }));
  const strength = make("span", { className: "quiet number" });
  const card = make("article", { className: "card", id: "feature-" + k, tabIndex: -1, "aria-label": term.name },
    make("h3", {}, bdi(term.name, "name"), strength), drawable ? place : make("p", { className: "quiet", textContent: whyNoCurve(term) }), drawable ? details : "");
  const update = () => {
    strength.textContent = "± " + shown(table.strengths[term.position][state.output]);
    if (drawable) place.setAttribute("aria-label", inWords(term));
  };
  const draw = () => {
    update();
    (table.features[k].levels ? drawLevels : drawCurve)(place, term, byId("same-scale").checked ? scaleOf(table.features.map((_, i) => i)) : null);
    if (details.open) open();
  };
  const open = () => { details.replaceChildren(details.firstChild, valuesTable(term)); };
  details.addEventListener("toggle", () => { if (details.open) open(); });
  if (drawable) drawers.set(place, draw);
  update();
  return card;
}

function whyNoCurve(term) {
  if (!term.axes.length) return "The model never sees this feature: it contributes nothing.";
  return `A function of ${term.axes.length} columns together, which has no curve; try it under “What if”.`;
}

function surfaceCard(term) {
  const place = make("div", { className: "chart", role: "img" });
  const strength = make("span", { className: "quiet number" });
  const [across, up] = term.features.map((k) => table.features[k].name);
  const drawable = term.axes.length === 2;
  const card = make("article", { className: "card", "aria-label": term.name }, make("h3", {}, bdi(term.name, "name"), strength),
    drawable ? place : make("p", { className: "quiet", textContent: whyNoCurve(term) }),
    make("p", { className: "quiet axes" }, ...(linesFit(term) ? linesKey(term) : ["across: ", bdi(across), " · up: ", bdi(up)])));
  const update = () => {
    strength.textContent = "± " + shown(table.strengths[term.position][state.output]);
    if (drawable) place.setAttribute("aria-label", `${term.name}: what both do only together, ± ${shown(table.strengths[term.position][state.output])} on average.`);
  };
  const draw = () => {
    update();
    (linesFit(term) ? drawLines : drawSurface)(place, term);
  };
  if (drawable) drawers.set(place, draw);
  update();
  return card;
}

function arrangeCurves() {
  const wanted = byId("find").value.trim().toLowerCase(), order = byId("order").value, o = state.output;
  const terms = [...table.singles];
  if (order === "strength") terms.sort((a, b) => table.strengths[b.position][o] - table.strengths[a.position][o]);
  if (order === "name") terms.sort((a, b) => a.name.localeCompare(b.name));
  let count = 0;
  for (const term of terms) {
    const card = byId("feature-" + term.features[0]);
    card.hidden = !term.name.toLowerCase().includes(wanted);
    count += !card.hidden;
    byId("curves").append(card);
  }
  byId("found").textContent = wanted ? `${counted(count, "feature")} found.` : "";
}

function startCurves() {
  byId("curves").append(...table.singles.map(curveCard));
  byId("interactions").hidden = !table.pairs.length;
  byId("surfaces").append(...[...table.pairs].sort((a, b) => table.strengths[b.position][0] - table.strengths[a.position][0]).map(surfaceCard));
  byId("find").parentElement.hidden = table.singles.length < 9;
  byId("band-words").hidden = !table.bands.some(Boolean);
  byId("truth-words").hidden = !table.truth.some(Boolean);
  byId("find").addEventListener("input", arrangeCurves);
  byId("order").addEventListener("change", arrangeCurves);
  byId("same-scale").addEventListener("change", refresh);
  arrangeCurves();
}
