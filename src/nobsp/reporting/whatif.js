// Sliders and lists for every feature; the terms follow them.
let point = null;
let startedFrom = null;
let order = null;
const controls = [];

function startWhatif() {
  const place = byId("controls");
  const strength = (term) => table.totals[term.features[0]].reduce((sum, value) => sum + value, 0);
  for (const term of table.singles.filter((one) => one.values).sort((a, b) => strength(b) - strength(a))) {
    const control = term.axes.length ? controlFor(term) : null;
    if (control) { controls.push(control); place.append(control.card); }
  }
  byId("typical").addEventListener("click", () => startFrom(null));
  byId("load-row").addEventListener("click", () => {
    const row = findRow(byId("from-row").value);
    if (row >= 0) startFrom(row);
    else byId("whatif-start").textContent = `There is no row ${byId("from-row").value} in this page.`;
  });
  byId("from-row").addEventListener("keydown", (event) => { if (event.key === "Enter") byId("load-row").click(); });
  byId("find-control").addEventListener("input", () => {
    const wanted = byId("find-control").value.trim().toLowerCase();
    for (const control of controls) control.card.hidden = !control.name.toLowerCase().includes(wanted);
  });
  byId("find-control").parentElement.hidden = controls.length < 12;
  byId("typical").hidden = !controls.length;
  if (!controls.length) place.append(make("p", { className: "quiet", textContent: "No feature has a table, so none can be moved here." }));
  startFrom(controls.length ? null : 0);
}

const findRow = (name) => table.rows.names.findIndex((known) => String(known) === String(name).trim());

// From the typical row (null) or from one of the rows.
function startFrom(row) {
  startedFrom = row;
  point = row === null ? typicalPoint() : pointOfRow(row);
  order = null;
  byId("whatif-start").textContent = row === null
    ? "Started from a typical row: medians, and the most frequent levels." : `Started from row ${table.rows.names[row]}.`;
  if (row !== null) byId("from-row").value = table.rows.names[row];
  changed();
}

function changed() {
  for (const control of controls) control.update();
  const account = accountOf(point);
  const untouched = startedFrom !== null && same(point, pointOfRow(startedFrom));
  const prediction = untouched ? predictionOf(startedFrom) : null;
  order = order || orderOf(onScale(account, prediction).contributions, state.output);
  drawAccount(byId("whatif-account"), {
    caption: untouched ? `Row ${table.rows.names[startedFrom]}, term by term` : "What you set, term by term",
    point, account, prediction, order,
  });
  const chance = table.link === "softmax" || table.link === "sigmoid" ? `, ${percent(linked(account.total)[state.output])}` : "";
  byId("running").textContent = shown(account.total[state.output], 4) + chance;
  tellEdits(account);
  tellBeyond();
  drawDistance();
}

// What the functions said before somebody changed them, beside what they say now.
function tellEdits(account) {
  const place = byId("whatif-edits");
  place.hidden = !table.edits.length;
  if (place.hidden) return;
  const before = totalBeforeEdits(point), o = state.output, number = (value) => shown(value, 4);
  const said = before
    ? ` The sum of the terms is ${number(account.total[o])}; before, it was ${number(before[o])}. Dashed lines are the functions as the model has them.`
    : " A feature was dropped, so what the model's own functions would say here is not known.";
  place.replaceChildren(make("b", { textContent: "Edited" }), said,
    make("ul", {}, ...table.edits.map((textContent) => make("li", { textContent }))));
}

const same = (a, b) => ["numbers", "levels"].every((kind) => Object.keys(a[kind]).every((key) => a[kind][key] === b[kind][key]));

function tellBeyond() {
  const out = featuresBeyond(point).map((k) => table.features[k].name), place = byId("whatif-beyond");
  place.className = out.length ? "finding warning" : "finding fine";
  if (!out.length) {
    place.replaceChildren(make("b", { textContent: "Within range" }),
      " Each value lies within its calibrated range. Whether they occur together is another question.");
    return;
  }
  const some = out.slice(0, 6).join(", ") + (out.length > 6 ? ", …" : "");
  place.replaceChildren(make("b", { textContent: "Extrapolated" }), " ", bdi(some),
    ` ${out.length === 1 ? "lies" : "lie"} outside what was calibrated. Main effects go on there, interactions keep the value at their edge; no row checks either.`);
}

// How far the sum of the terms is from the model, for rows the page knows.
function drawDistance() {
  const o = state.output, place = byId("whatif-distance"), r = table.residuals;
  const said = (textContent) => make("p", { className: "quiet", textContent });
  if (!table.rows.residuals) {
    place.replaceChildren(said("How far the sum of the terms is from the model is not known: its predictions were not given."));
    return;
  }
  place.replaceChildren(make("h3", { className: "small", textContent: "How far is the sum of the terms from the model?" }), residualStrip(o), said(
    `For the ${counted(r.rows, "row")} it knows: half within ${shown(r.median[o])}, 95% within ${shown(r.most[o])}, at most `
    + `${shown(r.largest[o])}; predictions themselves have a standard deviation of ${shown(r.spread[o])}. For a row you make up, `
    + "the model was not run, and the distance is not known."));
}

// ---------------------------------------------------------------- one feature

function controlFor(term) {
  const k = term.features[0], about = table.features[k];
  const effect = make("span", { className: "number effect" });
  const card = make("div", { className: "control" }, make("div", { className: "head" }, bdi(about.name, "name"), effect));
  const parts = about.levels ? [listOf(term, k, about)] : about.columns.map((column) => sliderOf(term, column));
  card.append(...parts.map((part) => part.box));
  const update = () => {
    const value = contribution(term, point)[state.output];
    effect.textContent = signed(value, Math.max(Math.abs(value) || 0, table.strengths[term.position][state.output]));
    effect.className = "number effect " + (value < 0 ? "against" : "for");
    parts.forEach((part) => part.update(value));
  };
  return { card, update, name: about.name, redraw: () => parts.forEach((part) => part.redraw()) };
}

function sparkWithDot(term, from, to) {
  const holder = make("div", { className: "sparkline" });
  const dot = make("span", { className: "now", "aria-hidden": "true" });
  let drawn = null;
  const redraw = () => { drawn = spark(term, state.output, { from, to }); holder.replaceChildren(drawn.box, dot); };
  const move = (at, value) => {
    dot.hidden = !drawn.across || isMissing(at) || !Number.isFinite(value);
    if (dot.hidden) return;
    dot.style.left = Math.max(0, Math.min(100, drawn.across(at))) + "%";
    dot.style.top = Math.max(0, Math.min(100, drawn.up(value))) + "%";
  };
  redraw();
  return { holder, redraw, move };
}

function listOf(term, k, about) {
  const list = make("select", { "aria-label": about.name }, ...about.levels.map((name, i) => make("option", { value: i, textContent: name })));
  const line = sparkWithDot(term);
  list.addEventListener("change", () => { point.levels[k] = Number(list.value); order = null; changed(); });
  const update = (value) => { list.value = point.levels[k]; line.move(point.levels[k] + 0.5, value); };
  return { box: make("div", {}, line.holder, list), redraw: line.redraw, update };
}

function sliderOf(term, column) {
  const [low, high] = column.range, wide = (high - low || 1) / 2, { few } = column, label = column.name;
  const whole = Array.from(valuesOf(column.column)).every(Number.isInteger) && Number.isInteger(low) && Number.isInteger(high);
  const [from, to] = [low - wide, high + wide];
  const [first, last] = few ? [few[0], few[few.length - 1]] : whole ? [Math.ceil(from), Math.floor(to)] : [from, to];
  const takesMissing = term.axes[0]?.missing;
  const slider = make("input", { type: "range", min: first, max: last, step: whole && !few ? 1 : "any", "aria-label": label });
  const field = make("input", { type: "number", step: whole ? 1 : "any", inputMode: "decimal", placeholder: "missing", "aria-label": label + ", exact value" });
  const line = sparkWithDot(term, first, last);
  const calibrated = make("span", { className: "calibrated", "aria-hidden": "true" });
  calibrated.style.left = (100 * (low - first)) / (last - first || 1) + "%";
  calibrated.style.width = (100 * (high - low)) / (last - first || 1) + "%";
  const set = (value) => { point.numbers[column.column] = value; changed(); };
  const pace = whole ? 1 : (high - low) / 100 || 0.01;
  const settled = (x) => (few ? nearest(few, x) : rounded(x, column.range));
  slider.addEventListener("input", () => set(settled(Number(slider.value))));
  slider.addEventListener("change", () => { order = null; changed(); });
  // With step "any" browsers leave it to themselves how far an arrow key goes.
  slider.addEventListener("keydown", (event) => {
    const way = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -10, PageUp: 10 }[event.key];
    if (!way) return;
    event.preventDefault();
    order = null;
    const x = point.numbers[column.column] ?? (low + high) / 2;
    const next = few ? few[few.indexOf(nearest(few, x)) + Math.sign(way)] ?? x : x + way * pace;
    set(Math.max(first, Math.min(last, next)));
  });
  field.addEventListener("change", () => {
    const empty = field.value.trim() === "" && !field.validity.badInput;
    if ((empty && !takesMissing) || !Number.isFinite(Number(field.value))) return changed();
    order = null;
    return set(empty ? null : Number(field.value));
  });
  const row = make("div", { className: "dial" }, make("div", { className: "slide" }, calibrated, slider), field);
  return {
    box: make("div", {}, make("div", { className: "above" }, line.holder), row),
    redraw: line.redraw,
    update: (value) => {
      const x = point.numbers[column.column];
      slider.value = x ?? (low + high) / 2;
      slider.setAttribute("aria-valuetext", x === null ? "missing" : shown(x, 4));
      if (x === null) field.value = "";
      else if (document.activeElement !== field || Number(field.value) !== x) field.value = rounded(x, column.range);
      field.classList.toggle("out", !within(column, x));
      line.move(x, value);
    },
  };
}
