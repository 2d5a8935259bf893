// The first screen: how well the functions describe the model, and which features do most.
const STRONGEST = 7;

function drawOverview() {
  const o = state.output, { health, ledger } = table;
  drawHeadline(health.explained[o], health.inside[o]);
  const known = ledger.left[o] !== null;
  drawLedger(known ? sharesOf(ledger.singles[o], ledger.interactions[o], ledger.left[o]) : []);
  const size = (k) => table.totals[k][o];
  const order = [...table.features.keys()].filter((k) => size(k) > 0).sort((a, b) => size(b) - size(a) || a - b);
  const largest = table.totals[order[0]]?.[o] || 1;
  const scale = scaleOf(order.slice(0, STRONGEST));
  byId("strongest").replaceChildren(...order.slice(0, STRONGEST).map((k) => strongLine(k, o, largest, scale)));
  const rest = order.length - STRONGEST;
  byId("strongest-words").textContent = "Total importance: the mean size of everything a feature contributes, over calibration rows"
    + (table.pairs.length ? "; the lighter part is what interactions add, none where they work against the feature's own effect." : ".") + (rest > 0 ? ` ${rest} more below.` : "");
  for (const place of document.querySelectorAll(".output-name")) place.textContent = table.outputs.length > 1 ? table.outputs[o] : "the output";
}

// What each kind of term explains. Main effects that interactions have to make up for, as they do on rows of another kind, have
// no share of their own.
function sharesOf(singles, interactions, left) {
  const rest = ["left over", left, "three"];
  if (table.pairs.length && (singles < 0 || interactions < 0)) return [["main effects and interactions", 1 - left, "one"], rest];
  return [["main effects", singles, "one"], ["interactions", interactions, "two"], rest];
}

// Warnings that the held-out R² is not what to expect.
const DOUBTS = ["clusters", "extreme_rows", "few_rows", "fresh_rows"];

// Held-out R², in a colour that says whether to believe the page.
function drawHeadline(share, inside) {
  const { held_out: heldOut, outside_rows: outsideRows } = table.health, place = byId("share");
  place.textContent = percent(share);
  const doubted = table.findings.some(({ code, severity }) => severity === "warning" && DOUBTS.includes(code));
  place.className = share === null ? "" : share < 0 ? "bad" : share < 0.8 || doubted ? "doubtful" : "good";
  const output = table.outputs.length > 1 ? [" of ", bdi(table.outputs[state.output])] : [];
  if (share === null) {
    byId("share-words").replaceChildren("The output does not vary over the calibration rows: there is nothing to explain.");
    return;
  }
  const parts = table.fitted;
  const which = heldOut ? " on rows they were not fitted on" : " on the calibration rows";
  const said = share < 0
    ? [`Do not use these functions: ${parts} predict the model’s output`, ...output, ` worse than its mean does${which}`]
    : [`of the variance of the model’s output`, ...output, ` is explained by ${parts}${which}`];
  const told = inside !== null && outsideRows > 0 && percent(inside) !== percent(share)
    ? ` Inside the calibrated range ${percent(inside)}; ${percent(outsideRows)} of the held-out rows lie outside it.` : "";
  const wholly = table.health.neighbourhoods?.[state.output] ?? null;
  const clustered = wholly === null ? "" : ` With whole neighbourhoods of rows held out it is ${percent(wholly)}.`;
  const error = table.health.standard_error?.[state.output] ?? null;
  // An error that three decimals show as zero says nothing.
  const measure = error === null || error < 0.0005 ? "held-out R²" : `held-out R² ${share.toFixed(3)} ± ${error.toFixed(3)}`;
  byId("share-words").replaceChildren(...said, heldOut ? ` (${measure}).` : " (R²).", make("span", { className: "quiet", textContent: clustered + told }));
}

// R² as the summary and the findings write it.
const threeDecimals = (share) => (share < 0 ? "−" : "") + Math.abs(share).toFixed(3);

function strongLine(k, o, largest, scale) {
  const term = table.singles.find((t) => t.features[0] === k);
  const main = make("span", { className: "fill" }), more = make("span", { className: "fill light" });
  main.style.width = (100 * Math.min(table.mains[k][o], table.totals[k][o])) / largest + "%";
  more.style.width = (100 * table.totals[k][o]) / largest + "%";
  const link = make("a", { href: "#feature-" + k }, bdi(table.features[k].name, "name"));
  return make("li", {}, link, make("span", { className: "track", "aria-hidden": "true" }, more, main),
    make("span", { className: "number", textContent: shown(table.totals[k][o]) }), term ? spark(term, o, { scale }).box : "");
}

function drawLedger(shares) {
  const place = byId("ledger");
  const kept = shares.filter(([name, share]) => share !== null && !(name === "interactions" && !table.pairs.length));
  const sum = kept.reduce((total, [, share]) => total + Math.max(0, share), 0) || 1;
  const said = kept.map(([name, share]) => `${name} ${percent(share)}`).join(", ");
  const bar = make("div", { className: "stack", role: "img", "aria-label": "Variance: " + said });
  const key = make("ul", { className: "key" });
  for (const [name, share, kind] of kept) {
    const part = make("span", { className: kind });
    part.style.width = (100 * Math.max(0, share)) / sum + "%";
    bar.append(part);
    key.append(make("li", {}, make("span", { className: "dot " + kind, "aria-hidden": "true" }), `${name} ${percent(share)}`));
  }
  const left = kept.find(([name]) => name === "left over")?.[1];
  const rows = make("p", { className: "quiet", textContent: `Variance over the ${counted(table.residuals.rows, "row")} shown here: R² ${threeDecimals(1 - left)}` });
  place.replaceChildren(...(kept.length ? [rows, bar, key] : []));
}
