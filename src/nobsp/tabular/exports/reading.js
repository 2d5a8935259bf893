// How tables are read, by pages and by modules that `Functions.to_javascript` writes; the same as lookup.py.

// Last segment that begins at or below x, the first or last one beyond the ends.
function segmentOf(knots, x) {
  let low = 0, high = knots.length - 2;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (knots[middle] <= x) low = middle; else high = middle - 1;
  }
  return low;
}

const isMissing = (x) => x === null || x === undefined || !Number.isFinite(x);

// A term's values for all outputs at a point {numbers: {column: x}, levels: {feature: position}}: a function of one number
// goes on as a straight line, a grid is held at its edges, an unseen level gives zero, and so does a missing number that has
// no place in the table.
function readNodes(term, point, values, outputs) {
  const result = new Float64Array(outputs), corners = [];
  let node = 0, stride = values.length / outputs, absent = false, unseen = false;
  term.axes.forEach((axis, place) => {
    stride /= term.sizes[place];
    if (!axis.knots) {
      const level = point.levels[axis.feature];
      if (level >= 0 && level < axis.size) node += level * stride; else unseen = true;
      return;
    }
    let x = point.numbers[axis.column];
    if (isMissing(x)) {
      if (axis.missing) node += axis.knots.length * stride; else absent = true;
      return;
    }
    const { knots } = axis;
    if (term.axes.length > 1) x = Math.min(Math.max(x, knots[0]), knots[knots.length - 1]);
    const s = segmentOf(knots, x);
    node += s * stride;
    corners.push([stride, (x - knots[s]) / (knots[s + 1] - knots[s])]);
  });
  if (unseen || absent) return result;
  const between = (i, at, o) => {
    if (i === corners.length) return values[at * outputs + o];
    const [step, way] = corners[i], here = between(i + 1, at, o);
    return here + way * (between(i + 1, at + step, o) - here);
  };
  for (let o = 0; o < outputs; o++) result[o] = between(0, node, o);
  return result;
}

// What logits become by a link; null where they are the output itself.
function applyLink(link, logits) {
  if (link === "sigmoid") return Array.from(logits, (v) => 1 / (1 + Math.exp(-v)));
  if (link === "exp") return Array.from(logits, Math.exp);
  if (link !== "softmax") return null;
  const top = Math.max(...logits);
  const sizes = Array.from(logits, (v) => Math.exp(v - top));
  const sum = sizes.reduce((a, b) => a + b, 0);
  return sizes.map((v) => v / sum);
}
