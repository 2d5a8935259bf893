// The rows: sorted, filtered, and one of them opened.
const PAGE = 20;
const browse = { by: null, down: true, page: 0, open: null };

function rowColumns() {
  const o = state.output, outputs = table.outputs.length, rows = table.rows;
  const columns = [];
  const several = outputs > 1;
  if (rows.predictions) {
    if (table.link === "softmax" || (table.link === "sigmoid" && !several)) {
      columns.push({ id: "class", name: "predicted", text: true, value: (row) => classOf(predictionOf(row)), show: (code) => (several ? table.outputs[code] : table.classes[code]) });
    }
    columns.push({ id: "prediction", name: "prediction", value: (row) => rows.predictions[row * outputs + o] });
    columns.push({ id: "account", name: "account", value: (row) => rows.predictions[row * outputs + o] - rows.residuals[row * outputs + o] });
    columns.push({ id: "residual", name: "residual", value: (row) => rows.residuals[row * outputs + o], sort: Math.abs, signed: true });
  } else columns.push({ id: "account", name: "account", value: (row) => accountOf(pointOfRow(row)).total[o] });
  if (rows.labels) {
    columns.unshift(rows.labels.codes
      ? { id: "label", name: "label", text: true, value: (row) => rows.labels.codes[row], show: (code) => rows.labels.names[code] }
      : { id: "label", name: "true value", value: (row) => rows.labels.values[row] });
  }
  if (rows.purity) columns.push({ id: "purity", name: "purity", value: (row) => rows.purity[row] });
  if (rows.beyond.some(Boolean)) columns.push({ id: "beyond", name: "out of range", value: (row) => rows.beyond[row], show: (count) => (count ? String(count) : "") });
  return columns;
}

function wrong(row) {
  const prediction = predictionOf(row), labels = table.rows.labels;
  if (!prediction || !labels?.codes) return false;
  const said = classOf(prediction);
  return said !== null && said !== labels.codes[row];
}

function chosenRows(columns) {
  const by = columns.find((column) => column.id === byId("filter-by").value);
  const low = byId("filter-low").value === "" ? -Infinity : Number(byId("filter-low").value);
  const high = byId("filter-high").value === "" ? Infinity : Number(byId("filter-high").value);
  let rows = [...Array(table.rows.count).keys()];
  if (by && (low > -Infinity || high < Infinity)) rows = rows.filter((row) => by.value(row) >= low && by.value(row) <= high);
  if (byId("only-beyond").checked) rows = rows.filter((row) => table.rows.beyond[row]);
  if (byId("only-wrong").checked) rows = rows.filter(wrong);
  const sort = columns.find((column) => column.id === browse.by);
  if (sort) {
    const size = (row) => (sort.sort || ((v) => v))(sort.value(row));
    const keys = new Map(rows.map((row) => [row, size(row)]));
    rows.sort((a, b) => (browse.down ? keys.get(b) - keys.get(a) : keys.get(a) - keys.get(b)) || a - b);
  }
  return rows;
}

function drawRows() {
  const columns = rowColumns(), rows = chosenRows(columns);
  const pages = Math.max(1, Math.ceil(rows.length / PAGE));
  browse.page = Math.max(0, Math.min(browse.page, pages - 1));
  const head = byId("row-table").tHead, body = byId("row-table").tBodies[0];
  if (!head.rows.length || head.dataset.columns !== columns.map((c) => c.id).join()) {
    head.dataset.columns = columns.map((c) => c.id).join();
    head.replaceChildren(make("tr", {}, make("th", { scope: "col", textContent: "row" }), ...columns.map((column) => {
      const button = make("button", { type: "button", textContent: column.name });
      button.addEventListener("click", () => { browse.down = browse.by === column.id ? !browse.down : true; browse.by = column.id; browse.page = 0; drawRows(); });
      return make("th", { scope: "col", "data-id": column.id, className: column.text ? "" : "number" }, button);
    })));
  }
  for (const cell of head.querySelectorAll("[data-id]")) cell.setAttribute("aria-sort", cell.dataset.id !== browse.by ? "none" : browse.down ? "descending" : "ascending");
  for (const column of columns) if (!column.text && !column.show) column.scale = Math.max(1e-12, ...rows.map((row) => Math.abs(column.value(row))).filter(Number.isFinite));
  body.replaceChildren(...rows.slice(browse.page * PAGE, (browse.page + 1) * PAGE).map((row) => {
    const open = make("button", { type: "button", className: "open", "aria-label": `Open row ${table.rows.names[row]}` }, bdi(String(table.rows.names[row])));
    open.addEventListener("click", () => openRow(row));
    const line = make("tr", { "data-row": row, className: (row === browse.open ? "here " : "") + (wrong(row) ? "wrong" : "") }, make("th", { scope: "row" }, open), ...columns.map((column) => {
      const value = column.value(row);
      const cell = column.show ? column.show(value) : (column.signed ? signed : fixed)(value, column.scale);
      return make("td", { className: column.text ? "" : "number", "data-value": value }, column.text ? bdi(cell ?? "–") : cell);
    }));
    return line;
  }));
  byId("before").disabled = browse.page === 0;
  byId("after").disabled = browse.page >= pages - 1;
  byId("page-words").textContent = rows.length ? `${browse.page * PAGE + 1}–${Math.min(rows.length, (browse.page + 1) * PAGE)} of ${written(rows.length, 0, 0)}` : "no rows";
}

function openRow(row) {
  browse.open = row;
  drawRow();
  for (const line of byId("row-table").tBodies[0].rows) line.classList.toggle("here", Number(line.dataset.row) === row);
}

function drawRow() {
  const place = byId("row"), row = browse.open;
  if (row === null) { place.replaceChildren(make("p", { className: "quiet", textContent: "Open a row to see its account." })); return; }
  const at = pointOfRow(row), account = accountOf(at), prediction = predictionOf(row);
  const holder = make("div");
  drawAccount(holder, { caption: make("span", {}, "Row ", bdi(String(table.rows.names[row]))), point: at, account, prediction });
  const go = make("button", { type: "button", className: "go", textContent: "Try it under “What if”" });
  go.addEventListener("click", () => { startFrom(row); byId("whatif").scrollIntoView(); byId("whatif-title").setAttribute("tabindex", "-1"); byId("whatif-title").focus({ preventScroll: true }); });
  const out = featuresBeyond(at);
  place.replaceChildren(holder,
    ...(out.length ? [make("p", { className: "finding warning" }, make("b", { textContent: "Extrapolated" }), " ", bdi(out.map((feature) => feature.name).join(", ")))] : []),
    ...(prediction ? [make("h3", { className: "small", textContent: "Its residual among all" }), residualStrip(state.output, prediction[state.output] - account.total[state.output])] : []),
    ...neighboursOf(row), go);
}

const labelFound = (hits, at) => (hits.labels ? bdi(hits.names[hits.labels[at]]) : hits.values ? shown(hits.values[at], 4) : "–");

function neighboursOf(row) {
  const hits = table.hits;
  if (!hits) return [];
  const k = hits.count;
  const lines = [...Array(k).keys()].map((i) => make("tr", {}, make("th", { scope: "row", textContent: String(hits.indices[row * k + i]) }),
    make("td", {}, labelFound(hits, row * k + i)), make("td", { className: "number", textContent: shown(hits.distances[row * k + i]) })));
  return [make("h3", { className: "small", textContent: "Its neighbours" }),
    make("p", { className: "quiet", textContent: table.rows.purity ? `${percent(table.rows.purity[row])} of them have the predicted class.` : "" }),
    make("table", { className: "values" }, make("thead", {}, make("tr", {}, make("th", { scope: "col", textContent: "row of the index" }), make("th", { scope: "col", textContent: "label" }), make("th", { scope: "col", className: "number", textContent: "distance" }))), make("tbody", {}, ...lines))];
}

function startRows() {
  const rows = table.rows;
  rows.beyond = [...Array(rows.count).keys()].map((row) => featuresBeyond(pointOfRow(row)).length);
  const hits = table.hits;
  if (hits) for (const name of ["indices", "distances", "labels", "values"]) hits[name] = unpacked(hits[name]);
  rows.purity = hits ? hits.purity : null;
  const few = rows.count < rows.total ? `${written(rows.count, 0, 0)} of ${counted(rows.total, "row")}, evenly spread` : counted(rows.count, "row");
  byId("rows-words").textContent = `${few}. Sort by a column, open a row to see its account.`;
  const numeric = rowColumns().filter((column) => !column.text);
  byId("filter-by").append(...numeric.map((column) => make("option", { value: column.id, textContent: column.name })));
  byId("only-beyond").parentElement.hidden = !rows.beyond.some(Boolean);
  byId("only-wrong-choice").hidden = ![...Array(rows.count).keys()].some(wrong);
  for (const id of ["filter-by", "filter-low", "filter-high", "only-beyond", "only-wrong"]) byId(id).addEventListener("input", () => { browse.page = 0; drawRows(); });
  byId("before").addEventListener("click", () => { browse.page -= 1; drawRows(); });
  byId("after").addEventListener("click", () => { browse.page += 1; drawRows(); });
  browse.by = rows.predictions ? "residual" : null;
  drawRows();
  browse.open = chosenRows(rowColumns())[0] ?? null;
  drawRow();
  drawRows();
}
