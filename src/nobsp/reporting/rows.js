// The rows: sorted, filtered, and one of them opened.
const PAGE = 20;
const browse = { by: null, down: true, page: 0, open: null };
const everyRow = () => [...Array(table.rows.count).keys()];

// What is shown of each row: how it is called, its value, and how that is written.
function rowColumns() {
  const o = state.output, outputs = table.outputs.length, { rows, hits } = table;
  const columns = [];
  if (rows.labels?.codes) {
    columns.push({ id: "label", name: "label", text: true, value: (row) => rows.labels.codes[row], show: (code) => rows.labels.names[code] });
  } else if (rows.labels) columns.push({ id: "label", name: "true value", value: (row) => rows.labels.values[row] });
  if (rows.predictions) {
    const prediction = (row) => rows.predictions[row * outputs + o], residual = (row) => rows.residuals[row * outputs + o];
    if (classifies()) {
      const names = outputs > 1 ? table.outputs : table.classes;
      columns.push({ id: "class", name: "predicted", text: true, value: (row) => classOf(predictionOf(row)), show: (code) => names[code] });
    }
    columns.push({ id: "prediction", name: "prediction", value: prediction });
    columns.push({ id: "account", name: "sum of terms", value: (row) => prediction(row) - residual(row) });
    columns.push({ id: "residual", name: "residual", value: residual, sort: Math.abs, signed: true });
  } else columns.push({ id: "account", name: "sum of terms", value: (row) => accountOf(pointOfRow(row)).total[o] });
  if (hits?.purity) columns.push({ id: "purity", name: "purity", value: (row) => hits.purity[row] });
  if (rows.beyond.some((features) => features.length)) {
    columns.push({ id: "beyond", name: "out of range", value: (row) => rows.beyond[row].length, show: (count) => (count ? String(count) : "") });
  }
  if (rows.far.size) {
    columns.push({ id: "far", name: "far combination", value: (row) => Number(rows.far.has(row)), show: (far) => (far ? "yes" : "") });
  }
  return columns;
}

function wrong(row) {
  const prediction = predictionOf(row), codes = table.rows.labels?.codes;
  if (!prediction || !codes) return false;
  const said = classOf(prediction);
  return said !== null && said !== codes[row];
}

function chosenRows(columns) {
  const by = columns.find((column) => column.id === byId("filter-by").value);
  const bound = (id, otherwise) => (byId(id).value === "" ? otherwise : Number(byId(id).value));
  const low = bound("filter-low", -Infinity), high = bound("filter-high", Infinity);
  let rows = everyRow();
  if (by && (low > -Infinity || high < Infinity)) rows = rows.filter((row) => by.value(row) >= low && by.value(row) <= high);
  if (byId("only-beyond").checked) rows = rows.filter((row) => table.rows.beyond[row].length || table.rows.far.has(row));
  if (byId("only-wrong").checked) rows = rows.filter(wrong);
  const sort = columns.find((column) => column.id === browse.by);
  if (sort) {
    const way = browse.down ? -1 : 1, last = (value) => (Number.isNaN(value) ? way * Infinity : value); // what is not known comes last
    const sizes = new Map(rows.map((row) => [row, last((sort.sort || Number)(sort.value(row)))]));
    rows.sort((a, b) => way * (sizes.get(a) - sizes.get(b)) || a - b);
  }
  return rows;
}

// ---------------------------------------------------------------- the table

function drawHead(columns) {
  const head = byId("row-table").tHead, ids = columns.map((column) => column.id).join();
  // Kept while it fits, so that a button keeps its focus when it is pressed.
  if (head.dataset.ids !== ids) {
    head.dataset.ids = ids;
    head.replaceChildren(make("tr", {}, make("th", { scope: "col", textContent: "row" }), ...columns.map((column) => {
      const button = make("button", { type: "button", textContent: column.name });
      button.addEventListener("click", () => {
        browse.down = browse.by === column.id ? !browse.down : true;
        browse.by = column.id;
        browse.page = 0;
        drawRows();
      });
      return make("th", { scope: "col", "data-id": column.id, className: column.text ? "" : "number" }, button);
    })));
  }
  for (const cell of head.querySelectorAll("[data-id]")) {
    const way = browse.down ? "descending" : "ascending";
    cell.setAttribute("aria-sort", cell.dataset.id === browse.by ? way : "none");
  }
}

function rowLine(row, columns) {
  const name = String(table.rows.names[row]);
  const open = make("button", { type: "button", className: "open", "aria-label": `Open row ${name}` }, bdi(name));
  open.addEventListener("click", () => openRow(row));
  const className = (row === browse.open ? "here " : "") + (wrong(row) ? "wrong" : "");
  return make("tr", { "data-row": row, className }, make("th", { scope: "row" }, open), ...columns.map((column) => {
    const value = column.value(row);
    if (column.text) return make("td", { "data-value": value }, bdi(column.show(value) ?? "–"));
    const text = column.show ? column.show(value) : (column.signed ? signed : fixed)(value, column.scale);
    return make("td", { className: "number", "data-value": value, textContent: text });
  }));
}

function drawRows() {
  const columns = rowColumns(), rows = chosenRows(columns);
  const pages = Math.max(1, Math.ceil(rows.length / PAGE));
  browse.page = Math.max(0, Math.min(browse.page, pages - 1));
  for (const column of columns) {
    if (!column.show) column.scale = rows.reduce((most, row) => Math.max(most, Math.abs(column.value(row)) || 0), 1e-12);
  }
  drawHead(columns);
  const first = browse.page * PAGE, last = Math.min(rows.length, first + PAGE);
  byId("row-table").tBodies[0].replaceChildren(...rows.slice(first, last).map((row) => rowLine(row, columns)));
  byId("before").disabled = browse.page === 0;
  byId("after").disabled = browse.page >= pages - 1;
  byId("page-words").textContent = rows.length ? `${first + 1}–${last} of ${written(rows.length, 0, 0)}` : "no rows";
}

// ---------------------------------------------------------------- one row

function openRow(row) {
  browse.open = row;
  drawRow();
  for (const line of byId("row-table").tBodies[0].rows) line.classList.toggle("here", Number(line.dataset.row) === row);
}

function drawRow() {
  const row = browse.open, at = pointOfRow(row), account = accountOf(at), prediction = predictionOf(row), o = state.output;
  const holder = make("div"), small = (textContent) => make("h3", { className: "small", textContent });
  drawAccount(holder, { caption: make("span", {}, "Row ", bdi(String(table.rows.names[row]))), point: at, account, prediction });
  const parts = [holder];
  const out = table.rows.beyond[row].map((k) => table.features[k].name).join(", ");
  if (out) parts.push(make("p", { className: "finding warning" }, make("b", { textContent: "Extrapolated" }), " ", bdi(out)));
  if (table.rows.far.has(row)) {
    parts.push(make("p", { className: "finding warning" }, make("b", { textContent: "Far combination" }),
      " Each value is in range, but together they are far from all calibration rows."));
  }
  if (prediction && Number.isFinite(account.total[o])) parts.push(small("Its residual among all"), residualStrip(o, prediction[o] - account.total[o]));
  if (table.hits) parts.push(small("Its neighbours"), ...neighboursOf(row));
  if (table.influence) parts.push(small("What speaks for it, and against it"), ...speakersOf(row));
  const go = make("button", { type: "button", className: "go", textContent: "Try it under “What if”" });
  go.addEventListener("click", () => {
    startFrom(row);
    byId("whatif").scrollIntoView();
    byId("whatif-title").setAttribute("tabindex", "-1");
    byId("whatif-title").focus({ preventScroll: true });
  });
  byId("row").replaceChildren(...parts, go);
}

function neighboursOf(row) {
  const { hits } = table;
  const label = (at) => (hits.labels ? bdi(hits.names[hits.labels[at]]) : hits.values ? shown(hits.values[at], 4) : "–");
  const lines = [...Array(hits.count).keys()].map((i) => row * hits.count + i)
    .map((at) => [String(hits.indices[at]), label(at), shown(hits.distances[at])]);
  const said = hits.purity ? `${percent(hits.purity[row])} of them have the predicted class.` : "";
  return [make("p", { className: "quiet", textContent: said }), plainTable(["row of the index", "label", "distance"], lines, [2])];
}

function speakersOf(row) {
  const found = table.influence, lines = [...speakers(found, row, 1), ...speakers(found, row, -1)];
  const cells = lines.map(({ index, label, value, share }) => [String(index), bdi(label), signed(value), percent(share)]);
  return [influenceInWords(found, row), plainTable(["row of the index", "label", "adds", "share"], cells, [2, 3])];
}

// ---------------------------------------------------------------- the section

function startRows() {
  const { rows, hits } = table;
  unpackInfluence(table.influence);
  if (hits) for (const name of ["indices", "distances", "labels", "values"]) hits[name] = unpacked(hits[name]);
  const few = rows.count < rows.total ? `${written(rows.count, 0, 0)} of ${counted(rows.total, "row")}, evenly spread` : counted(rows.count, "row");
  byId("rows-words").textContent = `${few}. Sort by a column, open a row to see what each term contributes.`;
  for (const column of rowColumns()) {
    if (!column.text) byId("filter-by").append(make("option", { value: column.id, textContent: column.name }));
  }
  byId("only-beyond").parentElement.hidden = !rows.far.size && !rows.beyond.some((features) => features.length);
  byId("only-wrong-choice").hidden = !everyRow().some(wrong);
  for (const id of ["filter-by", "filter-low", "filter-high", "only-beyond", "only-wrong"]) {
    byId(id).addEventListener("input", () => { browse.page = 0; drawRows(); });
  }
  byId("before").addEventListener("click", () => { browse.page -= 1; drawRows(); });
  byId("after").addEventListener("click", () => { browse.page += 1; drawRows(); });
  browse.by = rows.predictions ? "residual" : null;
  browse.open = chosenRows(rowColumns())[0];
}
