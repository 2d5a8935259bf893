// Drawings: curves, levels and surfaces by plotly, sparks and histograms by hand.
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
const faded = (name, opacity) => {
  const hex = colour(name);
  const [r, g, b] = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  return `rgba(${r},${g},${b},${opacity})`;
};
// Plotly reads tags in its texts; names are text.
const plain = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
const brief = (text, most = 18) => { const letters = [...text]; return letters.length > most ? letters.slice(0, most - 1).join("") + "…" : text; };

const SETTINGS = { displayModeBar: false, responsive: true, displaylogo: false, doubleClick: "reset" };
const touch = matchMedia("(pointer: coarse)").matches;

function layout(more = {}) {
  const axis = {
    gridcolor: colour("line"), zerolinecolor: colour("faint"), linecolor: colour("line"), tickcolor: colour("line"),
    tickfont: { color: colour("quiet"), size: 11 }, fixedrange: touch, separatethousands: true,
  };
  return {
    margin: { l: 44, r: 12, t: 8, b: 24 }, height: 230, showlegend: false, dragmode: touch ? false : "zoom",
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { family: "inherit", color: colour("ink") },
    hoverlabel: { bgcolor: colour("ink"), bordercolor: colour("ink"), font: { color: colour("paper"), size: 12 } },
    ...more,
    xaxis: { ...axis, ...more.xaxis }, yaxis: { ...axis, zerolinewidth: 1.5, ...more.yaxis },
    ...(more.yaxis2 ? { yaxis2: { ...axis, ...more.yaxis2 } } : {}),
  };
}

const react = (place, traces, arrangement) => Plotly.react(place, traces, layout(arrangement), SETTINGS);

// ---------------------------------------------------------------- one feature

function histogram(values, low, high, bins) {
  const counts = new Float64Array(bins);
  const width = (high - low) / bins || 1;
  for (const value of values) counts[Math.max(0, Math.min(bins - 1, Math.floor((value - low) / width)))] += 1;
  return { counts, width, centres: Array.from(counts, (_, i) => low + (i + 0.5) * width) };
}

function countsAt(centres, values, width) {
  const counts = new Float64Array(centres.length);
  for (const value of values) counts[centres.indexOf(nearest(centres, value))] += 1;
  return { counts, width, centres };
}

// Where a curve is drawn: evenly spaced points for hovering, and every knot between them, so that nothing is cut off.
function pointsAlong(knots, low, high, count = 120) {
  const points = [...Array(count + 1).keys()].map((i) => low + ((high - low) * i) / count);
  for (const knot of knots) if (knot > low && knot < high) points.push(knot);
  return Float64Array.from(points).sort();
}

// Half the width of the 90% band.
const bandAt = (term, point, output) => 1.6448536269514722 * readTable(term, point, term.spread)[output];
const WHISKER = () => ({ type: "data", thickness: 1.2, width: 3, color: colour("ink") });

function curveAt(term, x, output) {
  const point = { numbers: { [term.axes[0].column]: x }, levels: {} };
  return contribution(term, point)[output];
}

function drawCurve(place, term, scale) {
  const o = state.output, k = term.features[0], about = table.features[k].columns[0];
  const [low, high] = about.range;
  const knots = term.axes[0].knots;
  const { few } = about; // a value in between is one that no row has
  const x = few ? Float64Array.from(few) : pointsAlong(knots, low, high);
  const y = Array.from(x, (at) => curveAt(term, at, o));
  const traces = [], wide = (high - low) / 2;
  const away = term.spread ? (at) => bandAt(term, { numbers: { [about.column]: at }, levels: {} }, o) : null;
  let error;
  if (away && few) error = { ...WHISKER(), array: few.map(away) };
  else if (away) traces.push(
    { x: Array.from(x), y: y.map((v, i) => v - away(x[i])), mode: "lines", line: { width: 0 }, hoverinfo: "skip" },
    { x: Array.from(x), y: y.map((v, i) => v + away(x[i])), mode: "lines", line: { width: 0 }, fill: "tonexty", fillcolor: faded("accent", 0.18), hoverinfo: "skip" },
  );
  const said = (at, v) => (away ? ` (${shown(v - away(at))} to ${shown(v + away(at))})` : "");
  for (const [a, b] of [[low - wide, low], [high, high + wide]]) {
    if (b - a <= 0 || few) continue;
    const outer = pointsAlong(knots, a, b, 24);
    traces.push({
      x: Array.from(outer), y: Array.from(outer, (at) => curveAt(term, at, o)), mode: "lines",
      line: { color: colour("quiet"), width: 1.5, dash: "dot" }, hovertemplate: "%{text}<extra></extra>",
      text: Array.from(outer, (at) => `${shown(at, 4)}: extrapolated`),
    });
  }
  const truth = table.truth[k];
  if (truth) {
    const tx = unpacked(truth.x), last = truth.value[0].length - 1;
    traces.push({
      x: Array.from(tx), y: truth.value.map((at) => at[Math.min(o, last)]), mode: "lines", name: "truth",
      line: { color: colour("truth"), width: 2, dash: "dash" }, hoverinfo: "skip",
    });
  }
  traces.push({
    x: Array.from(x), y, mode: few ? "markers" : "lines", line: { color: colour("accent"), width: 2.5, shape: "linear" },
    marker: { color: colour("accent"), size: 10 }, error_y: error,
    text: Array.from(x, (at, i) => `${shown(at, 4)}: <b>${signed(y[i])}</b>${said(at, y[i])}`),
    hovertemplate: "%{text}<extra></extra>",
  });
  const rows = valuesOf(about.column).filter((value) => value >= low && value <= high);
  // Whole numbers get a bar each: bars of other widths would hold now one of them, now two.
  const support = few ? countsAt(few, rows, (high - low) / 24) : high > low && high - low <= 120 && rows.every(Number.isInteger)
    ? histogram(rows, low - 0.5, high + 0.5, Math.round(high - low) + 1) : histogram(rows, low, high, 60);
  traces.push({
    x: support.centres, y: Array.from(support.counts), type: "bar", width: support.width, yaxis: "y2",
    marker: { color: colour("support"), line: { width: 0 } },
    text: Array.from(support.counts, (count) => counted(count, "row")), textposition: "none", hovertemplate: "%{text}<extra></extra>",
  });
  const margin = (high - low || 1) * (few ? 0.12 : 0.04);
  // A missing number has a dot of its own to the right of the function.
  const absent = term.axes[0].missing ? high + 4 * margin : null;
  if (absent !== null) {
    const value = curveAt(term, null, o), band = away ? away(null) : 0;
    traces.push({
      x: [absent], y: [value], mode: "markers", line: {}, marker: { color: colour("accent"), size: 10, symbol: "diamond" },
      error_y: away ? { ...WHISKER(), array: [band] } : undefined,
      text: [`missing: <b>${signed(value)}</b>${away ? ` (${shown(value - band)} to ${shown(value + band)})` : ""}`],
      hovertemplate: "%{text}<extra></extra>",
    });
  }
  const last = absent === null ? high + margin : absent + margin;
  // Beside the histogram: below it stand the numbers of the axis.
  const label = { x: last, y: 0.06, yref: "paper", yanchor: "middle", xanchor: "right", text: "missing", showarrow: false, font: { size: 11 } };
  const heights = traces.filter((trace) => trace.type !== "bar" && trace.line.dash !== "dot")
    .flatMap((trace) => [...trace.y, ...(trace.error_y ? trace.y.flatMap((v, i) => [v + trace.error_y.array[i], v - trace.error_y.array[i]]) : [])]);
  const bottom = Math.min(0, ...heights), top = Math.max(0, ...heights), air = (top - bottom || 1) * 0.07;
  react(place, traces, {
    xaxis: { range: [low - margin, last], zeroline: false, anchor: "y2" },
    annotations: absent === null ? [] : [label],
    yaxis: { domain: [0.16, 1], zeroline: true, range: scale || [bottom - air, top + air] },
    yaxis2: { domain: [0, 0.12], visible: false, fixedrange: true },
    bargap: 0, hovermode: "closest",
  });
}

// Long names below an axis end at their mark, so that none runs out of the chart, where plotly would leave it out.
function ticksOf(places, names, letters) {
  const ticktext = names.map((name) => plain(brief(name, letters)));
  const wide = names.reduce((sum, name) => sum + Math.min(name.length, letters) + 2, 0);
  return { tickmode: "array", tickvals: places, ticktext, ticklabeloverflow: "allow", automargin: true, ...(wide > 40 ? { tickangle: -35 } : {}) };
}

function drawLevels(place, term, scale) {
  const o = state.output, k = term.features[0];
  const names = table.features[k].levels;
  const values = names.map((_, level) => contribution(term, { numbers: {}, levels: { [k]: level } })[o]);
  const counts = new Float64Array(names.length);
  (table.rows.levels[k] || []).forEach((level) => { counts[level] += 1; });
  const error = term.spread
    ? { ...WHISKER(), array: names.map((_, level) => bandAt(term, { numbers: {}, levels: { [k]: level } }, o)) } : undefined;
  const x = names.map((_, i) => i);
  const ticks = { ...ticksOf(x, names, 14), zeroline: false, range: [-0.6, names.length - 0.4] };
  if (names.length > 24) { ticks.tickmode = "auto"; delete ticks.tickvals; delete ticks.ticktext; ticks.showticklabels = false; }
  react(place, [
    {
      type: "bar", x, y: values, error_y: error, marker: { color: values.map((v) => colour(v < 0 ? "against" : "for")) }, width: 0.62,
      text: names.map((name, i) => `${plain(brief(name, 40))}: <b>${signed(values[i])}</b>`), textposition: "none",
      hovertemplate: "%{text}<extra></extra>",
    },
    {
      type: "bar", x, y: Array.from(counts), yaxis: "y2", width: 0.62, marker: { color: colour("support") },
      text: names.map((name, i) => `${plain(brief(name, 40))}: ${counted(counts[i], "row")}`), textposition: "none",
      hovertemplate: "%{text}<extra></extra>",
    },
  ], {
    xaxis: { ...ticks, anchor: "y2" }, yaxis: { domain: [0.16, 1], zeroline: true, ...(scale ? { range: scale } : {}) },
    yaxis2: { domain: [0, 0.12], visible: false, fixedrange: true }, bargap: 0.3, barmode: "overlay", hovermode: "closest",
  });
}

// ---------------------------------------------------------------- two numbers or levels

const CELLS = 40;

// An axis cut into cells: where their middles are, what they are called, and which cell each row is in.
function cellsOf(term, axis) {
  if (!axis.knots) {
    const names = table.features[axis.feature].levels;
    return { levels: true, middles: names.map((_, i) => i), names, of: table.rows.levels[axis.feature] || [], feature: axis.feature };
  }
  const about = table.features.flatMap((f) => f.columns || []).find((column) => column.column === axis.column);
  const [low, high] = about.range;
  const width = (high - low) / CELLS || 1;
  return {
    levels: false, middles: [...Array(CELLS).keys()].map((i) => low + (i + 0.5) * width), column: axis.column, about,
    of: Array.from(valuesOf(axis.column), (x) => Math.max(0, Math.min(CELLS - 1, Math.floor((x - low) / width)))),
  };
}

const hidesWithoutRows = () => table.rows.count >= 20;

// Cells that hold rows or, on axes of numbers, have a neighbour that does; of a slice, rows that are near it.
function supported(across, up, slice = null) {
  const held = new Set();
  const reach = (axis, at) => (axis.levels ? [at] : [at - 2, at - 1, at, at + 1, at + 2]);
  for (let row = 0; row < table.rows.count; row++) {
    if (slice && !slice.isNear(row)) continue;
    for (const i of reach(across, across.of[row])) for (const j of reach(up, up.of[row])) held.add(j * 4096 + i);
  }
  return (i, j) => !hidesWithoutRows() || held.has(j * 4096 + i);
}

// Rows this far from a slice through three features, in cells, still count as near it.
const NEAR_SLICE = CELLS / 8;

// Three features are drawn as two, the third held at a value: the only category if there is one, else the last.
function sliceOf(term) {
  const cells = term.axes.map((axis, side) => ({ ...cellsOf(term, axis), name: table.features[term.features[side]].name }));
  const categories = cells.filter((axis) => axis.levels);
  const third = categories.length === 1 ? categories[0] : cells[2];
  const few = third.about?.few;
  if (few) Object.assign(third, { middles: few, of: Array.from(valuesOf(third.column), (x) => few.indexOf(nearest(few, x))) });
  // Not in the middle, where many interactions are zero.
  const places = [...third.of].filter(Number.isFinite).sort((a, b) => a - b);
  const start = places[Math.floor(0.85 * (places.length - 1))] ?? 0;
  const slice = { third, sides: cells.filter((axis) => axis !== third), place: start };
  slice.isNear = (row) => Math.abs(third.of[row] - slice.place) <= (third.levels || few ? 0 : NEAR_SLICE);
  slice.told = () => cellName(third, third.middles[slice.place]);
  return slice;
}

const cellName = (axis, at) => (axis.levels ? brief(axis.names[at], 24) : shown(at, 4));

function putCell(point, axis, at) {
  if (axis.levels) point.levels[axis.feature] = at;
  else point.numbers[axis.column] = at;
}

// The largest contribution to a row, so that colours mean the same at every value of the third feature.
function largestOf(term) {
  const sizes = everyRow().map((row) => Math.abs(contribution(term, pointOfRow(row))[state.output]));
  return Math.max(1e-12, ...sizes.filter(Number.isFinite));
}

function drawSurface(place, term, slice = null) {
  const o = state.output;
  const [across, up] = slice ? slice.sides : term.axes.map((axis) => cellsOf(term, axis));
  const inside = supported(across, up, slice);
  const point = { numbers: {}, levels: {} };
  if (slice) putCell(point, slice.third, slice.third.middles[slice.place]);
  const put = (axis, at) => putCell(point, axis, at);
  const told = cellName;
  const texts = [];
  const z = up.middles.map((b, j) => {
    texts.push([]);
    return across.middles.map((a, i) => {
      put(across, a); put(up, b);
      const value = contribution(term, point)[o];
      texts[j].push(plain(`${told(across, a)}, ${told(up, b)}: ${signed(value)}`));
      return inside(i, j) ? value : null;
    });
  });
  const largest = slice ? largestOf(term) : Math.max(1e-12, ...z.flat().map((v) => Math.abs(v ?? 0)));
  const ticks = (axis) => (axis.levels ? ticksOf(axis.middles, axis.names, 12) : {});
  react(place, [{
    type: "heatmap", x: across.middles, y: up.middles, z, text: texts, hovertemplate: "%{text}<extra></extra>", zmin: -largest, zmax: largest,
    hoverongaps: false, xgap: across.levels ? 1 : 0, ygap: up.levels ? 1 : 0,
    colorscale: [[0, colour("against")], [0.5, colour("middle")], [1, colour("for")]],
    colorbar: { thickness: 8, outlinewidth: 0, tickfont: { color: colour("quiet"), size: 10 }, len: 0.9, nticks: 5 },
  }], { height: 290, xaxis: { ...ticks(across), zeroline: false, showgrid: false },
    yaxis: { ...ticks(up), tickangle: 0, zeroline: false, showgrid: false }, hovermode: "closest" });
}

// A category of few levels and a number: one line a level says more than a surface.
const LINES = ["line-1", "line-2", "line-3", "line-4", "line-5"];
const DASHES = ["solid", "dash", "dot", "dashdot", "longdash"];
const linesFit = (term) => term.axes.length === 2 && term.axes.filter((axis) => axis.knots).length === 1
  && term.axes.find((axis) => !axis.knots).size <= LINES.length;

function drawLines(place, term) {
  const o = state.output;
  const cells = term.axes.map((axis) => cellsOf(term, axis));
  const number = cells.find((axis) => !axis.levels), levels = cells.find((axis) => axis.levels);
  const inside = supported(number, levels);
  const at = (x, level) => contribution(term, { numbers: { [number.column]: x }, levels: { [levels.feature]: level } })[o];
  const traces = levels.names.map((name, level) => ({
    x: number.middles, mode: "lines", line: { color: colour(LINES[level]), width: 2.5, dash: DASHES[level] },
    y: number.middles.map((x, i) => (inside(i, level) ? at(x, level) : null)),
    text: number.middles.map((x) => plain(`${brief(name, 24)}, ${shown(x, 4)}`)), hovertemplate: "%{text}: <b>%{y:+.3g}</b><extra></extra>",
  }));
  react(place, traces, { height: 290, xaxis: { zeroline: false }, yaxis: { zeroline: true }, hovermode: "closest" });
}

function linesKey(term) {
  const axis = term.axes.find((a) => !a.knots), number = term.axes.find((a) => a.knots);
  const about = table.features.flatMap((f) => f.columns || []).find((column) => column.column === number.column);
  return ["across: ", bdi(about.name), ...table.features[axis.feature].levels.flatMap((name, i) => {
    const line = svg("svg", { viewBox: "0 0 22 6", class: "sample " + LINES[i], "aria-hidden": "true" });
    line.append(svg("line", { x1: 0, x2: 22, y1: 3, y2: 3, "stroke-dasharray": ["", "6 3", "2 2", "6 2 2 2", "10 3"][i] }));
    return [" · ", line, " ", bdi(name)];
  })];
}

// ---------------------------------------------------------------- small drawings by hand

const svg = (tag, about = {}) => {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(about)) element.setAttribute(name, value);
  return element;
};

// A single term as a line or as bars across a box of 100 × 28, and where in it a value is.
function spark(term, output, { from = null, to = null, scale = null } = {}) {
  const k = term.features[0], about = table.features[k];
  const box = svg("svg", { viewBox: "0 0 100 28", preserveAspectRatio: "none", class: "spark", "aria-hidden": "true" });
  if (term.axes.length !== 1) return { box };
  const levels = about.levels;
  const low = levels ? 0 : from ?? about.columns[0].range[0], high = levels ? levels.length : to ?? about.columns[0].range[1];
  const few = levels ? null : about.columns[0].few;
  const x = levels ? levels.map((_, i) => i) : few || Array.from(pointsAlong(term.axes[0].knots, low, high, 80));
  const y = levels ? x.map((i) => contribution(term, { numbers: {}, levels: { [k]: i } })[output]) : x.map((at) => curveAt(term, at, output));
  const former = beforeEdits(term);
  const at = (value) => (levels ? { numbers: {}, levels: { [k]: value } } : { numbers: { [about.columns[0].column]: value }, levels: {} });
  const before = former ? x.map((value) => readTable(former, at(value))[output]) : [];
  const differs = before.some((value, i) => Math.abs(value - y[i]) > 1e-9 * (1 + Math.abs(y[i])));
  const all = differs ? [...y, ...before] : y;
  const [bottom, top] = scale || [Math.min(0, ...all), Math.max(0, ...all)], span = top - bottom || 1;
  const across = (at) => (100 * (at - low)) / (high - low || 1);
  const up = (value) => 26 - (24 * (value - bottom)) / span;
  box.append(svg("line", { x1: 0, x2: 100, y1: up(0), y2: up(0), class: "zero" }));
  if (differs) {
    const middle = (value) => across(levels ? value + 0.5 : value).toFixed(2);
    const step = levels ? 35 / levels.length : 0;
    const lines = levels ? x.map((i) => `M${(middle(i) - step).toFixed(2)},${up(before[i]).toFixed(2)}h${(2 * step).toFixed(2)}`).join("")
      : "M" + x.map((value, i) => `${middle(value)},${up(before[i]).toFixed(2)}`).join("L");
    box.append(svg("path", { d: lines, class: "before" }));
  }
  if (levels) {
    const wide = 100 / levels.length;
    x.forEach((i) => box.append(svg("rect", {
      x: i * wide + wide * 0.15, width: wide * 0.7, y: Math.min(up(0), up(y[i])), height: Math.max(0.6, Math.abs(up(y[i]) - up(0))),
      class: y[i] < 0 ? "against" : "for",
    })));
  } else if (few) { // lines of no length with round ends: dots that stay round when the box is stretched
    box.append(svg("path", { d: x.map((at, i) => `M${across(at).toFixed(2)},${up(y[i]).toFixed(2)}h0`).join(""), class: "curve dots" }));
  } else box.append(svg("polyline", { points: x.map((at, i) => `${across(at).toFixed(2)},${up(y[i]).toFixed(2)}`).join(" "), class: "curve" }));
  return { box, across, up: (value) => (up(value) / 28) * 100 };
}

// How residuals are spread, and where one of them is.
function residualStrip(output, marked = null) {
  const outputs = table.outputs.length, held = table.rows.residuals;
  const values = everyRow().map((row) => held[row * outputs + output]).filter(Number.isFinite);
  if (!values.length) return make("p", { className: "quiet", textContent: "No residual is known." });
  const sorted = Float64Array.from(values, Math.abs).sort();
  const most = Math.max(sorted[Math.floor(0.99 * (sorted.length - 1))], Math.abs(marked ?? 0)) * 1.05 || 1;
  const outside = sorted[sorted.length - 1] > most;
  const { counts } = histogram(values, -most, most, 41);
  const tallest = Math.max(...counts);
  const box = svg("svg", { viewBox: "0 0 410 60", class: "strip", role: "img", preserveAspectRatio: "none" });
  const about = `Residuals of ${counted(values.length, "row")}, from ${shown(-most)} to ${shown(most)}, most of them near zero.`;
  box.append(Object.assign(svg("title"), { textContent: about }));
  counts.forEach((count, i) => box.append(svg("rect", { x: i * 10 + 1, width: 8, y: 58 - (54 * count) / tallest, height: (54 * count) / tallest })));
  box.append(svg("line", { x1: 205, x2: 205, y1: 0, y2: 60, class: "zero" }));
  if (marked !== null) {
    const at = 205 + (205 * Math.max(-most, Math.min(most, marked))) / most;
    box.append(svg("line", { x1: at, x2: at, y1: 0, y2: 60, class: "mark" }));
  }
  const ends = [(outside ? "≤ " : "") + shown(-most, 2), "0", (outside ? "≥ " : "") + shown(most, 2)];
  return make("div", {}, box, make("div", { className: "ends" }, ...ends.map((textContent) => make("span", { textContent }))));
}
