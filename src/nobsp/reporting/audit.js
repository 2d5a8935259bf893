// What an audit found: one table, grouped by kind, most suspicious first.
const audit = data.audit || null;

function auditLine(i) {
  const classes = Object.values(audit.classes).map((names) => make("td", {}, bdi(names[i])));
  const numbers = Object.values(audit.numbers).map((values) => make("td", { className: "number", textContent: fixed(values[i], 1) }));
  return make("tr", {}, make("th", { scope: "row" }, bdi(audit.names[i], "name")), ...classes, ...numbers,
    make("td", { className: "reason" }, bdi(audit.reasons[i])));
}

// All kinds, each row with its first; or the one that was chosen, with all its rows.
function drawAudit() {
  const chosen = byId("audit-kind").value, every = audit.names.map((_, i) => i);
  const first = (i) => audit.kinds.find((kind) => kind.has[i]).id;
  const groups = audit.kinds.filter(({ id }) => !chosen || id === chosen)
    .map((kind) => [kind, every.filter((i) => (chosen ? kind.has[i] : first(i) === kind.id))]).filter(([, rows]) => rows.length);
  const support = audit.numbers["label's support"];
  const wide = 2 + Object.keys(audit.classes).length + Object.keys(audit.numbers).length;
  const bodies = groups.map(([kind, rows]) => {
    const size = kind.id === "mislabels" && support ? support : audit.numbers["joint confidence"];
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
  const words = ["row", ...Object.keys(audit.classes), ...Object.keys(audit.numbers), "why"];
  byId("audit-table").tHead.append(make("tr", {}, ...words.map((textContent) => make("th", {
    scope: "col", textContent, className: textContent in audit.numbers ? "number" : "",
  }))));
  byId("audit-kind").append(make("option", { value: "", textContent: "all kinds" }),
    ...audit.kinds.map(({ id, name, count }) => make("option", { value: id, textContent: `${name} (${written(count, 0, 0)})` })));
  byId("audit-kind").addEventListener("change", drawAudit);
  const few = audit.names.length < audit.flagged ? ` The ${written(audit.names.length, 0, 0)} most suspicious are shown.` : "";
  byId("audit-words").textContent = `${written(audit.flagged, 0, 0)} of ${counted(audit.total, "prediction")} are worth a look.${few}`
    + " A row that is of several kinds stands with the first of them; choose a kind to see all its rows.";
  drawAudit();
}

if (audit) startAudit();
