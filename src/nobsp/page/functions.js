// The learned functions, evaluated as the compiled explainer does: linear between knots, exact on levels.
const data = JSON.parse(byId("data").textContent);
const table = data.table || null;
const FEW = 10;
const state = { output: 0 };
const watchers = [];
const whenOutputChanges = (work) => watchers.push(work);

if (table) {
  table.terms.forEach((term, position) => {
    term.position = position;
    term.values = unpacked(term.values);
    term.axes.forEach((axis) => { if (axis.knots) axis.knots = unpacked(axis.knots); });
    term.sizes = term.axes.map((axis) => (axis.knots ? axis.knots.length : axis.size));
    term.name = term.features.map((k) => table.features[k].name).join(" × ");
  });
  table.singles = table.terms.filter((term) => term.features.length === 1);
  table.pairs = table.terms.filter((term) => term.features.length > 1);
  const held = table.rows;
  for (const column of Object.keys(held.columns)) held.columns[column] = unpacked(held.columns[column]);
  for (const feature of Object.keys(held.levels)) held.levels[feature] = unpacked(held.levels[feature]);
  table.features.forEach(({ columns }, k) => columns?.forEach((about) => { about.few = fewValues(about, columns.length === 1 ? table.bands[k] : null); }));
  held.predictions = unpacked(held.predictions);
  held.residuals = unpacked(held.residuals);
  if (held.labels && held.labels.codes) held.labels.codes = unpacked(held.labels.codes);
  if (held.labels && held.labels.values) held.labels.values = unpacked(held.labels.values);
}

// The values of a column that has but few, as the calibration or many rows tell; null for others.
function fewValues(about, band) {
  const calibrated = band?.x ? Array.from(unpacked(band.x)) : null;
  const held = table.rows.columns[about.column] || [], seen = [...new Set(held)].sort((a, b) => a - b);
  const values = calibrated && calibrated.length <= FEW ? calibrated : seen;
  return values.length > 1 && values.length <= FEW && held.length >= 5 * values.length ? values : null;
}

// Last segment that begins at or below x, the first or last one beyond the ends.
function segmentOf(knots, x) {
  let low = 0, high = knots.length - 2;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (knots[middle] <= x) low = middle; else high = middle - 1;
  }
  return low;
}

// A term's contributions to all outputs at a point: {numbers: {column: x}, levels: {feature: position}}.
function contribution(term, point) {
  const outputs = table.outputs.length;
  const result = new Float64Array(outputs);
  let nodes = [[0, 1]];
  term.axes.forEach((axis, place) => {
    const size = term.sizes[place];
    if (!axis.knots) {
      nodes = nodes.map(([node, share]) => [node * size + point.levels[axis.feature], share]);
      return;
    }
    const x = point.numbers[axis.column];
    const s = segmentOf(axis.knots, x);
    const w = (x - axis.knots[s]) / (axis.knots[s + 1] - axis.knots[s]);
    nodes = nodes.flatMap(([node, share]) => [[node * size + s, share * (1 - w)], [node * size + s + 1, share * w]]);
  });
  for (const [node, share] of nodes) {
    for (let o = 0; o < outputs; o++) result[o] += share * term.values[node * outputs + o];
  }
  return result;
}

// The account of a point: contributions of all terms, and base plus their sum, per output.
function accountOf(point) {
  const contributions = table.terms.map((term) => contribution(term, point));
  const total = Float64Array.from(table.base);
  for (const part of contributions) part.forEach((value, o) => { total[o] += value; });
  return { contributions, total };
}

function pointOfRow(row) {
  const numbers = {}, levels = {};
  for (const [column, values] of Object.entries(table.rows.columns)) numbers[column] = values[row];
  for (const [feature, places] of Object.entries(table.rows.levels)) levels[feature] = places[row];
  return { numbers, levels };
}

function typicalPoint() {
  const numbers = {}, levels = {};
  for (const [column, values] of Object.entries(table.rows.columns)) {
    const about = columnOf(column), middle = median(values);
    numbers[column] = about?.few ? nearest(about.few, middle) : rounded(middle, about?.range || [Math.min(...values), Math.max(...values)]);
    if (!about?.few && values.every(Number.isInteger)) numbers[column] = Math.round(numbers[column]);
  }
  for (const [feature, places] of Object.entries(table.rows.levels)) {
    const times = new Map();
    places.forEach((place) => times.set(place, (times.get(place) || 0) + 1));
    levels[feature] = [...times].sort((a, b) => b[1] - a[1] || a[0] - b[0])[0][0];
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

// How far a number is out: 0 within what was calibrated, 1 where the network was still followed, 2 beyond that.
function beyond(about, x) {
  const slack = 1e-9 * (about.range[1] - about.range[0] || 1);
  if (x >= about.range[0] - slack && x <= about.range[1] + slack) return 0;
  return x >= about.limits[0] - slack && x <= about.limits[1] + slack ? 1 : 2;
}

function featuresBeyond(point) {
  const found = [];
  for (const feature of table.features) {
    const worst = Math.max(0, ...(feature.columns || []).map((about) => beyond(about, point.numbers[about.column])));
    if (worst) found.push({ name: feature.name, worst });
  }
  return found;
}

// What logits become by the model's link; null where they are the output itself.
function linked(logits) {
  if (table.link === "sigmoid") return Array.from(logits, (v) => 1 / (1 + Math.exp(-v)));
  if (table.link === "exp") return Array.from(logits, Math.exp);
  if (table.link !== "softmax") return null;
  const top = Math.max(...logits);
  const sizes = Array.from(logits, (v) => Math.exp(v - top));
  const sum = sizes.reduce((a, b) => a + b, 0);
  return sizes.map((v) => v / sum);
}

// Position of the predicted class, or null where nothing is classified.
function classOf(logits) {
  if (table.link === "softmax") return logits.indexOf(Math.max(...logits));
  if (table.link === "sigmoid" && logits.length === 1) return logits[0] > 0 ? 1 : 0;
  return null;
}

function predictionOf(row) {
  const outputs = table.outputs.length;
  return table.rows.predictions ? Array.from(table.rows.predictions.subarray(row * outputs, (row + 1) * outputs)) : null;
}

const named = (feature, point) => {
  const about = table.features[feature];
  if (about.levels) return about.levels[point.levels[feature]];
  return about.columns.map((column) => shown(point.numbers[column.column], 4)).join(", ");
};
