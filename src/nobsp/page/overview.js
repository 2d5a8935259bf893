// The first screen: how much the functions carry, and which features do most.
const STRONGEST = 7;

function strengthOf(feature, output) {
  const term = table.singles.find((t) => t.features[0] === feature);
  return term ? table.strengths[term.position][output] : 0;
}

function drawOverview() {
  const o = state.output;
  const { singles, interactions, left } = table.ledger;
  const carried = left[o] === null ? null : 1 - left[o];
  byId("share").textContent = percent(carried);
  const several = table.outputs.length > 1;
  const pairs = table.pairs.length ? ` and ${counted(table.pairs.length, "interaction")}` : "";
  const parts = counted(table.singles.length, "function") + pairs;
  const subject = several ? [" of how the model’s output ", bdi(table.outputs[o]), " varies"] : [" of how the model’s output varies"];
  byId("share-words").replaceChildren(...(carried === null ? ["How much of the output the functions carry is not known here."]
    : ["", ...subject, ` over ${counted(table.residuals.rows, "row")} is carried by ${parts} you can look at below.`]));
  drawLedger(carried === null ? [] : [["functions", singles[o], "one"], ["interactions", interactions[o], "two"], ["left over", left[o], "three"]]);
  const size = (k) => table.totals[k][o];
  const order = [...table.features.keys()].filter((k) => size(k) > 0).sort((a, b) => size(b) - size(a) || a - b);
  const largest = table.totals[order[0]]?.[o] || 1;
  const scale = scaleOf(order.slice(0, STRONGEST));
  byId("strongest").replaceChildren(...order.slice(0, STRONGEST).map((k) => strongLine(k, o, largest, scale)));
  const rest = order.length - STRONGEST;
  byId("strongest-words").textContent = "Mean size of each feature’s contribution"
    + (table.pairs.length ? "; the lighter part comes from interactions." : ".") + (rest > 0 ? ` ${rest} more below.` : "");
  for (const place of document.querySelectorAll(".output-name")) place.textContent = several ? table.outputs[o] : "the output";
}

function strongLine(k, o, largest, scale) {
  const term = table.singles.find((t) => t.features[0] === k);
  const main = make("span", { className: "fill" }), more = make("span", { className: "fill light" });
  main.style.width = (100 * Math.min(strengthOf(k, o), table.totals[k][o])) / largest + "%";
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
  place.replaceChildren(...(kept.length ? [bar, key] : []));
}
