
// ---------------------------------------------------------------------- the functions

const terms = data.terms.map((term) => {
  const axes = term.places.map((place) => data.places[place]);
  const sizes = axes.map((axis) => (axis.knots ? axis.knots.length + axis.missing : axis.size));
  return { name: term.name, axes, sizes, values: term.values };
});
const names = data.places.map((place) => place.names && new Map(place.names.map((name, position) => [name, position])));

// A cell as a number: booleans count as 0 and 1, what is not known as missing.
function numberOf(value, column) {
  if (value === null || value === undefined) return NaN;
  if (typeof value === "number" || typeof value === "boolean" || typeof value === "bigint") return Number(value);
  throw new TypeError(`${JSON.stringify(column)} must be a number, found ${typeof value}.`);
}

// Position of a level; -1 for one that was not seen.
function levelOf(place, number, row) {
  const cells = place.columns.map((column) => row[column]);
  if (names[number]) {
    const [cell] = cells, absent = cell === null || cell === undefined || Number.isNaN(cell);
    if (absent) return place.missing ?? -1;
    // 1 and true are one level, as in Python.
    const known = typeof cell === "boolean" ? names[number].get(cell) ?? names[number].get(Number(cell)) : names[number].get(cell);
    return known ?? (cell === 1 || cell === 0 ? names[number].get(Boolean(cell)) : undefined) ?? -1;
  }
  const numbers = cells.map((cell, k) => numberOf(cell, place.columns[k]));
  if (numbers.length === 1 && Number.isNaN(numbers[0])) return place.missing ?? -1;
  return place.numbers.findIndex((level) => level.every((value, k) => value === numbers[k]));
}

// A row {column: value} as a point that tables are read at.
function pointOf(row) {
  const numbers = {}, levels = {};
  data.places.forEach((place, position) => {
    if (place.knots) numbers[place.column] = numberOf(row[place.column], place.column);
    else levels[position] = levelOf(place, position, row);
  });
  return { numbers, levels };
}

/** Contributions of every term to every output: [{term, contributions: [...]}, ...]. */
export function contributions(row) {
  const point = pointOf(row);
  return terms.map((term) => ({ term: term.name, contributions: Array.from(readNodes(term, point, term.values, data.outputs.length)) }));
}

/** Base plus all contributions, per output, before the model's link. */
export function sums(row) {
  const total = Array.from(data.base), parts = contributions(row);
  return total.map((base, output) => base + parts.reduce((sum, part) => sum + part.contributions[output], 0));
}

/** Probabilities of the classes; null where numbers are predicted. */
export function probabilities(row) {
  if (!data.hasProbabilities) return null;
  const found = sums(row);
  if (data.areProbabilities) {
    const held = found.map((value) => Math.min(Math.max(value, 0), 1)), total = held.reduce((a, b) => a + b, 0);
    if (held.length === 1) return [1 - held[0], held[0]];
    return held.map((value) => (total > 0 ? value / total : 1 / held.length));
  }
  if (found.length > 1) return applyLink("softmax", found);
  return [...applyLink("sigmoid", [-found[0]]), ...applyLink("sigmoid", found)];
}

/** A class, a number, or an array of numbers where there are several outputs. */
export function predict(row) {
  const found = sums(row);
  if (data.classes.length && found.length === 1) return data.classes[Number(found[0] > (data.areProbabilities ? 0.5 : 0))];
  if (data.classes.length) return data.classes[found.indexOf(Math.max(...found))];
  const numbers = data.link === "softplus" ? found.map((v) => Math.max(v, 0) + Math.log1p(Math.exp(-Math.abs(v)))) : null;
  const answer = numbers ?? (data.link === "softmax" ? null : applyLink(data.link, found)) ?? found;
  return answer.length === 1 ? answer[0] : answer;
}

export const outputs = data.outputs, classes = data.classes, base = data.base;
