// What an audit found: one table, grouped by kind, most suspicious first, and what the reader decides about its rows.
const audit = data.audit || null;
const decisions = new Map(); // by line, while the page is open
const choices = audit?.classes.label ? ["keep", "relabel", "drop"] : ["keep", "drop"];

function decide(i, choice) {
  decisions.set(i, choice);
  byId("audit-decided").textContent = `${counted(decisions.size, "decision")} of ${written(audit.names.length, 0, 0)}`;
  for (const id of ["audit-csv", "audit-json"]) byId(id).disabled = false;
}

function auditLine(i) {
  const classes = Object.entries(audit.classes).map(([label, names]) => make("td", { className: "class", "data-label": label }, bdi(names[i])));
  const numbers = Object.entries(audit.numbers).map(([label, values]) =>
    make("td", { className: "number", "data-label": label, textContent: fixed(values[i], 1) }));
  const plate = data.pictures?.images ? data.pictures.positions.indexOf(audit.places[i]) : -1;
  const source = plate < 0 ? audit.images?.[i] : data.pictures.images[plate];
  const image = source ? [make("img", { src: source, alt: "" })] : [];
  const ticks = choices.map((choice) => {
    const tick = make("input", { type: "radio", name: `decision-${i}`, value: choice });
    tick.checked = decisions.get(i) === choice;
    tick.addEventListener("change", () => decide(i, choice));
    return make("label", {}, tick, choice);
  });
  const box = make("div", { role: "radiogroup", "aria-label": `What to do with ${audit.names[i]}` }, ...ticks);
  return make("tr", {}, make("th", { scope: "row" }, ...image, bdi(audit.names[i], "name")), ...classes,
    make("td", { className: "reason" }, bdi(audit.reasons[i])), make("td", { className: "decision" }, box), ...numbers);
}

// One record for each decision, in the order of rows; what `nobsp audit --apply` reads.
function decidedRecords() {
  return [...decisions].map(([i, decision]) => ({
    row: audit.rows[i], name: audit.names[i], decision, given_label: audit.classes.label?.[i] ?? "",
    new_label: decision === "relabel" ? audit.classes.suggested[i] : "", label_score: audit.numbers["label right"]?.[i] ?? "",
    reason: audit.reasons[i], ...(audit.outputs ? { output: audit.outputs[i] } : {}),
  })).sort((a, b) => a.row - b.row);
}

function saveDecisions(kind) {
  const records = decidedRecords(), quoted = (value) => `"${String(value).replaceAll('"', '""')}"`;
  const lines = [Object.keys(records[0]), ...records.map((one) => Object.values(one))].map((line) => line.map(quoted).join(","));
  const text = kind === "csv" ? lines.join("\r\n") + "\r\n" : JSON.stringify(records, null, 1) + "\n";
  const link = make("a", { href: URL.createObjectURL(new Blob([text])), download: `decisions.${kind}` });
  link.click();
  URL.revokeObjectURL(link.href);
}

// All kinds, each row with its first; or the one that was chosen, with all its rows.
function drawAudit() {
  const chosen = byId("audit-kind").value, every = audit.names.map((_, i) => i);
  const first = (i) => audit.kinds.find((kind) => kind.has[i]).id;
  const groups = audit.kinds.filter(({ id }) => !chosen || id === chosen)
    .map((kind) => [kind, every.filter((i) => (chosen ? kind.has[i] : first(i) === kind.id))]).filter(([, rows]) => rows.length);
  const score = audit.numbers["label right"];
  const wide = 3 + Object.keys(audit.classes).length + Object.keys(audit.numbers).length;
  const bodies = groups.map(([kind, rows]) => {
    const size = kind.id === "mislabels" && score ? score : audit.numbers["joint confidence"];
    rows.sort((a, b) => size[a] - size[b]);
    const head = make("tr", { className: "group" }, make("th", { scope: "rowgroup", colspan: wide, textContent: kind.name }));
    return make("tbody", { "data-kind": kind.id }, head, ...rows.map(auditLine));
  });
  const table = byId("audit-table");
  [...table.tBodies].forEach((body) => body.remove());
  table.append(...bodies);
  byId("audit-found").textContent = groups.length ? "" : "Nothing of this kind was found.";
}

function startAudit() {
  const words = ["row", ...Object.keys(audit.classes), "why", "decision", ...Object.keys(audit.numbers)];
  byId("audit-table").tHead.append(make("tr", {}, ...words.map((textContent) => make("th", {
    scope: "col", textContent, className: textContent in audit.numbers ? "number" : "",
  }))));
  byId("audit-kind").append(make("option", { value: "", textContent: "all kinds" }),
    ...audit.kinds.map(({ id, name, count }) => make("option", { value: id, textContent: `${name} (${written(count, 0, 0)})` })));
  byId("audit-kind").addEventListener("change", drawAudit);
  for (const kind of ["csv", "json"]) byId(`audit-${kind}`).addEventListener("click", () => saveDecisions(kind));
  const few = audit.names.length < audit.flagged ? ` The ${written(audit.names.length, 0, 0)} most suspicious are shown.` : "";
  byId("audit-words").textContent = `${written(audit.flagged, 0, 0)} of ${counted(audit.total, "prediction")} are worth a look.${few}`
    + " A row that is of several kinds stands with the first of them; choose a kind to see all its rows.";
  drawAudit();
}

if (audit) startAudit();
