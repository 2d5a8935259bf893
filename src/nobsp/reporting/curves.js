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
function scaleOf(some) {
  const features = [...some];
  let low = 0, high = 0;
  for (const term of table.singles) {
    if (term.axes.length !== 1 || !features.includes(term.features[0])) continue;
    const k = term.features[0], about = table.features[k];
    const values = about.levels
      ? about.levels.map((_, i) => contribution(term, { numbers: {}, levels: { [k]: i } })[state.output])
      : Array.from(pointsAlong(term.axes[0].knots, ...about.columns[0].range, 1), (x) => curveAt(term, x, state.output));
    if (term.axes[0].missing) values.push(curveAt(term, null, state.output));
    low = Math.min(low, ...values); high = Math.max(high, ...values);
  }
  const margin = (high - low || 1) * 0.05;
  return [low - margin, high + margin];
}

// A single function at its levels or few values, or at evenly spaced points: names or numbers, and contributions.
function samples(term, count) {
  const o = state.output, k = term.features[0], about = table.features[k];
  if (about.levels) return about.levels.map((name, i) => [name, contribution(term, { numbers: {}, levels: { [k]: i } })[o]]);
  const numbers = Array.from(about.columns[0].few || pointsAlong([], ...about.columns[0].range, count), (x) => [shown(x, 4), curveAt(term, x, o)]);
  return term.axes[0].missing ? [...numbers, ["missing", curveAt(term, null, o)]] : numbers;
}

// A function in a sentence, for those who do not see it.
function inWords(term) {
  const all = samples(term, 60), sorted = [...all].sort((a, b) => a[1] - b[1]);
  const told = ([x, value]) => `${signed(value)} at ${x}`;
  const ends = `lowest ${told(sorted[0])}, highest ${told(sorted[sorted.length - 1])}.`;
  if (table.features[term.features[0]].levels) return `${term.name}: ${ends}`;
  return `${term.name}: ${told(all[0])}, ${told(all[all.length - 1])}; ${ends}`;
}

function valuesTable(term) {
  const lines = samples(term, 10);
  const scale = Math.max(...lines.map(([, value]) => Math.abs(value)), 1e-12);
  return plainTable([bdi(term.name), "contribution"], lines.map(([name, value]) => [bdi(name), signed(value, scale)]), [1]);
}

const axesInWords = (names) => make("p", { className: "quiet axes" }, "across: ", bdi(names[0]), " · up: ", bdi(names[1]));

function curveCard(term) {
  const k = term.features[0], about = table.features[k], drawable = term.axes.length === 1;
  const place = make("div", { className: "chart", role: "img" });
  const details = make("details", {}, make("summary", { textContent: "values" }));
  const strength = make("span", { className: "quiet number" });
  const card = make("article", { className: "card", id: "feature-" + k, tabIndex: -1, "aria-label": term.name },
    make("h3", {}, bdi(term.name, "name"), strength), drawable ? place : whyNoCurve(term));
  const distance = make("p", { className: "quiet axes" });
  if (drawable) card.append(distance, details);
  const update = () => {
    const [total, main] = [table.totals[k][state.output], table.mains[k][state.output]];
    const alone = !table.pairs.some((pair) => pair.features.includes(k));
    strength.textContent = alone ? "± " + shown(total) : `total ± ${shown(total)}, main ± ${shown(main)}`;
    if (drawable) place.setAttribute("aria-label", inWords(term));
    const away = table.from_average[k]?.[state.output] ?? null;
    distance.hidden = away === null;
    if (away !== null) distance.textContent = `${percent(away)} of the spread away from partial dependence, which is more than its band`;
  };
  const open = () => { details.replaceChildren(details.firstChild, valuesTable(term)); };
  const draw = () => {
    update();
    if (details.open) open();
    (about.levels ? drawLevels : drawCurve)(place, term, byId("same-scale").checked ? scaleOf(table.features.keys()) : null);
  };
  details.addEventListener("toggle", () => { if (details.open) open(); });
  if (drawable) drawers.set(place, draw);
  update();
  return card;
}

function whyNoCurve(term) {
  const wide = term.features.reduce((sum, k) => sum + table.features[k].width, 0);
  const textContent = term.values ? "The model never sees this feature: it contributes nothing."
    : `${wide > 1 ? `A function of ${wide} columns together` : "A function of very many levels"}, which has no table: it needs the model. `
      + (table.rows.direct ? "What it contributes to each row is shown under “Rows”." : "The model was not run here, so it is part of the residual.");
  return make("p", { className: "quiet", textContent });
}

// A slider, or a list of levels, through the third feature of three.
function sliceControl(slice, name, redraw) {
  const { third } = slice, told = make("output", { className: "number" });
  const control = third.levels
    ? make("select", { "aria-label": name }, ...third.names.map((level, i) => make("option", { value: i, textContent: level })))
    : make("input", { type: "range", min: 0, max: third.middles.length - 1, step: 1, "aria-label": name });
  const tell = () => { told.textContent = slice.told(); control.setAttribute("aria-valuetext", slice.told()); };
  control.value = slice.place;
  tell();
  control.addEventListener("input", () => { slice.place = Number(control.value); tell(); redraw(); });
  return make("div", { className: "slice" }, make("span", { className: "quiet" }, bdi(name, "name"), third.levels ? "" : " "),
    control, third.levels ? null : told);
}

function surfaceCard(term) {
  const place = make("div", { className: "chart", role: "img" });
  const strength = make("span", { className: "quiet number" });
  const drawable = Boolean(term.values), lines = linesFit(term);
  const card = make("article", { className: "card", "aria-label": term.name },
    make("h3", {}, bdi(term.name, "name"), strength), drawable ? place : whyNoCurve(term));
  const slice = drawable && term.axes.length === 3 ? sliceOf(term) : null;
  if (slice) card.append(sliceControl(slice, slice.third.name, () => drawSurface(place, term, slice)));
  if (lines) card.append(make("p", { className: "quiet axes" }, ...linesKey(term)));
  else if (drawable) card.append(axesInWords(slice ? slice.sides.map((axis) => axis.name) : term.features.map((k) => table.features[k].name)));
  if (drawable && hidesWithoutRows()) card.lastChild.append(" · drawn only where there are rows");
  const update = () => {
    const size = shown(table.strengths[term.position][state.output]);
    strength.textContent = "± " + size;
    if (drawable) place.setAttribute("aria-label", `${term.name}: what ${slice ? "all three" : "both"} do only together, ± ${size} on average.`);
  };
  if (drawable) drawers.set(place, () => { update(); (lines ? drawLines : drawSurface)(place, term, slice); });
  update();
  return card;
}

function arrangeCurves() {
  const wanted = byId("find").value.trim().toLowerCase(), order = byId("order").value, o = state.output;
  const terms = [...table.singles];
  if (order === "strength") terms.sort((a, b) => table.totals[b.features[0]][o] - table.totals[a.features[0]][o]);
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
  const strongest = [...table.pairs].sort((a, b) => table.strengths[b.position][0] - table.strengths[a.position][0]);
  byId("surfaces").append(...strongest.map(surfaceCard));
  byId("find").parentElement.hidden = table.singles.length < 9;
  byId("band-words").hidden = !table.terms.some((term) => term.spread);
  byId("truth-words").hidden = !table.truth.some(Boolean);
  byId("find").addEventListener("input", arrangeCurves);
  byId("order").addEventListener("change", arrangeCurves);
  byId("same-scale").addEventListener("change", refresh);
  arrangeCurves();
}
