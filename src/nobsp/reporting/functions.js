// The learned functions, read as Python reads them.
const data = JSON.parse(byId("data").textContent);
const table = data.table || null;
const FEW = 10;
const state = { output: 0, linked: false };
const watchers = [];
const whenOutputChanges = (work) => watchers.push(work);

function openTerms(held) {
  held.axes.forEach((axis) => { axis.knots = unpacked(axis.knots); });
  held.terms.forEach((term, position) => {
    term.position = position;
    term.values = unpacked(term.values);
    term.spread = unpacked(term.spread);
    term.axes = term.axes.map((place) => held.axes[place]);
    term.sizes = term.axes.map((axis) => (axis.knots ? axis.knots.length + axis.missing : axis.size));
    term.name = term.features.map((k) => table.features[k].name).join(" × ");
  });
}

if (table) {
  openTerms(table);
  if (table.original) openTerms(table.original);
  table.singles = table.terms.filter((term) => term.features.length === 1);
  table.pairs = table.terms.filter((term) => term.features.length > 1);
  table.untabled = table.terms.filter((term) => !term.values);
  const held = table.rows;
  for (const part of ["columns", "levels", "outside"]) {
    for (const key of Object.keys(held[part])) held[part][key] = unpacked(held[part][key]);
  }
  for (const part of ["predictions", "residuals", "direct"]) held[part] = unpacked(held[part]);
  for (const part of ["codes", "values"]) if (held.labels?.[part]) held.labels[part] = unpacked(held.labels[part]);
  held.beyond = [...Array(held.count).keys()].map(() => []);
  for (const [k, rows] of Object.entries(held.outside)) rows.forEach((row) => held.beyond[row].push(Number(k)));
  held.far = new Set(unpacked(held.far));
  for (const told of Object.values(held.told)) {
    told.places = new Map(Array.from(unpacked(told.rows), (row, place) => [row, place]));
    told.values = unpacked(told.values);
  }
  table.singles.forEach((term) => table.features[term.features[0]].columns?.forEach((about) => { about.few = fewValues(about, term); about.missing = Boolean(term.axes[0]?.missing); }));
}

// The values of a column that has but few, as its knots or many rows tell; null for others.
function fewValues(about, term) {
  const [low, high] = about.range, held = valuesOf(about.column).filter(Number.isFinite);
  const knots = Array.from(term.axes[0]?.knots || []).filter((x) => x >= low && x <= high);
  const values = knots.length <= FEW ? knots : [...new Set(held)].sort((a, b) => a - b);
  return values.length > 1 && values.length <= FEW && held.length >= 5 * values.length ? values : null;
}

function valuesOf(column) { return table.rows.columns[column] || new Float64Array(0); }

// A table's values for all outputs at a point, as readNodes says; other values on its nodes, such as bands, are read alike.
function readTable(term, point, values = term.values) {
  return readNodes(term, point, values, table.outputs.length);
}

// A term's contributions at a point. A term without a table needs the network, which ran on the rows only: it is known for
// a row as long as nobody moves its features, and null otherwise.
function contribution(term, point) {
  if (term.values) return toldOf(term, point) ?? readTable(term, point);
  const { direct } = table.rows, outputs = table.outputs.length, { row } = point;
  if (!direct || row === undefined || row === null || term.features.some((k) => moved(k, point))) return null;
  const at = (row * table.untabled.length + table.untabled.indexOf(term)) * outputs;
  return direct.slice(at, at + outputs);
}

// What the model told of a row with a level that the term's table does not have; null elsewhere, and once it is moved.
function toldOf(term, point) {
  const told = table.rows.told[term.position], place = told?.places.get(point.row), outputs = table.outputs.length;
  if (place === undefined || term.features.some((k) => moved(k, point))) return null;
  return told.values.slice(place * outputs, (place + 1) * outputs);
}

// The term of the same features before anybody changed it, null where nobody did or it is not known.
function beforeEdits(term) {
  return table.original?.terms.find((other) => String(other.features) === String(term.features) && other.values) ?? null;
}

// Base plus the sum of the terms at a point before anybody changed them, per output; null where that is not known.
function totalBeforeEdits(point) {
  if (!table.original) return null;
  const total = Float64Array.from(table.original.base);
  for (const term of table.original.terms) {
    const part = term.values ? readTable(term, point) : contribution(term, point);
    part?.forEach((value, o) => { total[o] += value; });
  }
  return total;
}

// All contributions at a point, and base plus their sum, per output.
function accountOf(point) {
  const contributions = table.terms.map((term) => contribution(term, point));
  const total = Float64Array.from(table.base);
  for (const part of contributions) part?.forEach((value, o) => { total[o] += value; });
  return { contributions, total };
}

function pointOfRow(row) {
  const numbers = {}, levels = {};
  for (const [column, values] of Object.entries(table.rows.columns)) numbers[column] = Number.isFinite(values[row]) ? values[row] : null;
  for (const [feature, places] of Object.entries(table.rows.levels)) levels[feature] = places[row];
  return { numbers, levels, row };
}

// Whether a feature is no longer as it is in the row that the point started from.
function moved(k, point) {
  const at = pointOfRow(point.row), columns = table.features[k].columns;
  return columns ? columns.some(({ column }) => at.numbers[column] !== point.numbers[column]) : at.levels[k] !== point.levels[k];
}

function typicalPoint() {
  const numbers = {}, levels = {};
  for (const [column, values] of Object.entries(table.rows.columns)) {
    const about = columnOf(column), middle = median(values);
    if (middle === null) { numbers[column] = null; continue; }
    numbers[column] = about.few ? nearest(about.few, middle) : rounded(middle, about.range);
    if (!about.few && values.every(Number.isInteger)) numbers[column] = Math.round(numbers[column]);
  }
  for (const [feature, places] of Object.entries(table.rows.levels)) {
    const times = new Map();
    places.filter((place) => place < table.features[feature].levels.length).forEach((place) => times.set(place, (times.get(place) || 0) + 1));
    levels[feature] = [...times].sort((a, b) => b[1] - a[1] || a[0] - b[0])[0]?.[0] ?? 0;
  }
  return { numbers, levels };
}

// To a thousandth of a range: a number that people can read and type. What lies within the range stays there.
function rounded(value, [low, high]) {
  if (!(high > low)) return value;
  const decimals = Math.max(0, Math.min(12, 2 - Math.floor(Math.log10(high - low))));
  const near = Number(value.toFixed(decimals));
  return value >= low && value <= high ? Math.max(low, Math.min(high, near)) : near;
}

const columnOf = (column) => table.features.flatMap((feature) => feature.columns || []).find((about) => about.column === Number(column));
const nearest = (values, x) => values.reduce((best, value) => (Math.abs(value - x) < Math.abs(best - x) ? value : best));

const within = ({ range, missing }, x) => (isMissing(x) ? missing : x >= range[0] && x <= range[1]);

// Positions of features outside what was calibrated; of a known row as Python found them.
function featuresBeyond(point) {
  const known = Number.isInteger(point.row);
  return [...table.features.keys()].filter((k) => {
    if (known && !moved(k, point)) return table.rows.beyond[point.row].includes(k);
    const { columns, levels } = table.features[k];
    return levels ? !(point.levels[k] < levels.length) : columns.some((about) => !within(about, point.numbers[about.column]));
  });
}

// What logits become by the model's link; null where they are the output itself.
const linked = (logits) => applyLink(table.link, logits);

// Gauss and Legendre's nodes and weights on the way from 0 to 1.
const rules = new Map();
function ruleOf(count) {
  const nodeOf = (i) => {
    let x = Math.cos((Math.PI * (i + 0.75)) / (count + 0.5)), slope = 1;
    for (let turn = 0, step = 1; turn < 100 && Math.abs(step) > 1e-15; turn++) {
      let [here, before] = [1, 0];
      for (let n = 1; n <= count; n++) [here, before] = [((2 * n - 1) * x * here - (n - 1) * before) / n, here];
      slope = (count * (x * here - before)) / (x * x - 1);
      step = here / slope;
      x -= step;
    }
    return [(x + 1) / 2, 1 / ((1 - x * x) * slope * slope)];
  };
  if (!rules.has(count)) rules.set(count, [...Array(count).keys()].map(nodeOf));
  return rules.get(count);
}

// Contributions on the scale of the link, as `Explanation.to_probability` has them: times its mean slope on the straight
// line from the base to where the prediction is.
function carriedOver(contributions, stop) {
  const { base, link } = table, way = Array.from(stop, (value, o) => value - base[o]);
  const reach = link === "softmax" ? Math.max(...way) - Math.min(...way) : Math.max(...way.map(Math.abs));
  const carried = contributions.map((part) => part && new Float64Array(part.length));
  for (const [node, share] of ruleOf(Math.min(256, Math.ceil(18 / Math.asinh((2 * Math.PI) / Math.max(reach, 1)))))) {
    const chances = linked(way.map((step, o) => base[o] + node * step));
    contributions.forEach((part, i) => {
      const mean = link === "softmax" ? part?.reduce((sum, value, o) => sum + value * chances[o], 0) : 0;
      const slope = (value, p) => (link === "softmax" ? p * (value - mean) : link === "exp" ? p * value : p * (1 - p) * value);
      part?.forEach((value, o) => { carried[i][o] += share * slope(value, chances[o]); });
    });
  }
  return carried;
}

const classifies = () => table.link === "softmax" || (table.link === "sigmoid" && table.outputs.length === 1);

// Position of the predicted class, or null where nothing is classified.
function classOf(logits) {
  if (!logits || !classifies()) return null;
  return table.link === "softmax" ? logits.indexOf(Math.max(...logits)) : Number(logits[0] > 0);
}

// The model's outputs for a row, null where it was not run.
function predictionOf(row) {
  const outputs = table.outputs.length;
  const found = Array.from(table.rows.predictions?.subarray(row * outputs, (row + 1) * outputs) || [NaN]);
  return found.every(Number.isFinite) ? found : null;
}

const named = (feature, point) => {
  const { levels, columns } = table.features[feature];
  if (levels) return levels[point.levels[feature]] ?? "not seen in calibration";
  return columns.map(({ column }) => (isMissing(point.numbers[column]) ? "missing" : shown(point.numbers[column], 4))).join(", ");
};
