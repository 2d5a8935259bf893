// Numbers as they were packed, and numbers as people read them.
const KINDS = {
  f8: Float64Array, f4: Float32Array, u1: Uint8Array, i1: Int8Array,
  u2: Uint16Array, i2: Int16Array, u4: Uint32Array, i4: Int32Array,
};

function unpacked(held) {
  if (!held) return null;
  const bytes = Uint8Array.from(atob(held.bytes), (c) => c.charCodeAt(0));
  return new KINDS[held.kind](bytes.buffer);
}

// Making a formatter takes a hundred times longer than using it.
const formatters = new Map();
function written(size, least, most) {
  const key = least * 16 + most;
  if (!formatters.has(key)) formatters.set(key, new Intl.NumberFormat("en", { minimumFractionDigits: least, maximumFractionDigits: most }));
  return formatters.get(key).format(size);
}

function shown(value, digits = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  let text;
  if (size === 0) text = "0";
  else if (size >= 1e7 || size < 1e-4) text = size.toExponential(digits - 1).replace("e+", "e").replace("e-", "e−");
  else text = written(Number(size.toPrecision(Math.max(digits, Math.ceil(Math.log10(size + 1))))), 0, 8);
  return value < 0 && text !== "0" ? "−" + text : text;
}

// A column of numbers: the same decimals for all, from the size of the largest.
function fixed(value, scale) {
  if (value === null || !Number.isFinite(value)) return "–";
  if (!(scale < 1e6 && scale >= 1e-4)) return shown(value);
  const decimals = Math.max(0, Math.min(8, 2 - Math.floor(Math.log10(scale))));
  const text = written(Math.abs(value), decimals, decimals);
  return value < 0 && Number(text.replaceAll(",", "")) !== 0 ? "−" + text : text;
}

// Contributions beside each other: the same number of decimals for all, from the largest of them.
function signed(value, scale = Math.abs(value)) {
  if (value === null || !Number.isFinite(value)) return "–";
  const text = fixed(value, scale);
  return value > 0 && /[1-9]/.test(text) ? "+" + text : text;
}

function percent(share) {
  if (share === null || share === undefined || !Number.isFinite(share)) return "–";
  const size = share * 100;
  // What is not all is never rounded to all.
  if (size > 99.9 && size < 100) return (Math.floor(size * 100) / 100).toFixed(2) + "%";
  if (size > 0 && size < 0.1) return "<0.1%";
  const text = Math.abs(size).toFixed(size === 100 ? 0 : 1) + "%";
  return size < 0 && text !== "0.0%" ? "−" + text : text;
}

function counted(count, what) {
  return written(count, 0, 0) + " " + what + (count === 1 ? "" : "s");
}

function median(values) {
  const sorted = Float64Array.from(values).filter(Number.isFinite).sort();
  if (!sorted.length) return null;
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

// A new element: attributes with "aria-" and "data-" as they are, all else as properties; names are always text.
function make(tag, about = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(about)) {
    if (name.includes("-") || name === "role" || name === "for" || name === "colspan" || name === "dir") {
      element.setAttribute(name, value);
    } else element[name] = value;
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

// A plain table of few columns; the first names a line, and columns in `numbers` are aligned as such.
function plainTable(heads, lines, numbers) {
  const kind = (i) => (numbers.includes(i) ? "number" : "");
  const row = (cells) => make("tr", {}, ...cells.map((content, i) => (i
    ? make("td", { className: kind(i) }, content) : make("th", { scope: "row" }, content))));
  const head = make("tr", {}, ...heads.map((content, i) => make("th", { scope: "col", className: kind(i) }, content)));
  return make("table", { className: "values" }, make("thead", {}, head), make("tbody", {}, ...lines.map(row)));
}

// ---------------------------------------------------------------- rows of an index that speak for a prediction

function unpackInfluence(found) {
  if (found) for (const name of ["indices", "values", "shares", "labels"]) found[name] = unpacked(found[name]);
}

// Those that speak for it (side 1) or against it (side −1), the most first.
function speakers(found, row, side) {
  const places = [...Array(found.count).keys()].map((i) => row * found.count + i).filter((at) => found.values[at] * side > 0);
  return (side > 0 ? places : places.reverse()).map((at) => ({
    index: found.indices[at], label: found.names[found.labels[at]], value: found.values[at], share: Math.abs(found.shares[at]),
  }));
}

function influenceInWords(found, row) {
  const whose = found.targets ? ["The logit of ", bdi(found.targets[row], "name")] : ["The prediction"];
  if (!found.base) {
    return make("p", { className: "quiet" }, ...whose, ` is ${shown(found.logits[row])}. A number says by how much it would be lower`
      + " had the row been left out of training.");
  }
  const about = found.exact < 0.995 ? " (an approximation)" : "";
  return make("p", { className: "quiet" }, ...whose, ` is ${shown(found.logits[row])}: ${shown(found.base[row])} at the mean of the index,`
    + ` and what its rows add${about}.`);
}

const byId = (id) => document.getElementById(id);
const bdi = (text, className = "") => make("bdi", { textContent: text, className });
