// Puts the page together: outputs, light and dark, printing.
function chooseOutput(output) {
  state.output = output;
  for (const work of watchers) work();
}

function startOutputs() {
  const list = byId("output");
  list.append(...table.outputs.map((name, i) => make("option", { value: i, textContent: name })));
  byId("output-choice").hidden = table.outputs.length < 2;
  list.addEventListener("change", () => chooseOutput(Number(list.value)));
}

// Accounts of probabilities instead of logits, in all places at once.
function startScale() {
  const boxes = linked(table.base) ? document.querySelectorAll(".as-linked") : [];
  for (const box of boxes) {
    const tick = make("input", { type: "checkbox" });
    box.replaceChildren(tick, table.link === "exp" ? " in units of the output, not its logarithm" : " as probabilities");
    box.hidden = false;
    tick.addEventListener("change", () => {
      state.linked = tick.checked;
      for (const other of boxes) other.firstChild.checked = tick.checked;
      order = null;
      changed();
      drawRow();
    });
  }
}

function tellExactness() {
  const within = shown(Math.max(table.difference[state.output] ?? 0, 1e-15), 2);
  byId("exactness").textContent = "What this page computes is what Python computes, to rounding: it reads the same tables. On these rows the "
    + `tables add up to the explanation’s contributions within ${within}.`;
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  byId("theme").textContent = theme === "dark" ? "Light" : "Dark";
  byId("theme").setAttribute("aria-pressed", String(theme === "dark"));
  byId("theme").setAttribute("aria-label", theme === "dark" ? "Use light colours" : "Use dark colours");
  refresh();
}

if (table) {
  startOutputs();
  startCurves();
  startWhatif();
  startRows();
  startScale();
  whenOutputChanges(() => {
    drawOverview();
    arrangeCurves();
    refresh();
    order = null;
    for (const control of controls) control.redraw();
    changed();
    drawRows();
    drawRow();
    tellExactness();
  });
  chooseOutput(0);
}

if (pictures) startPictures();

byId("theme").addEventListener("click", () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", (event) => setTheme(event.matches ? "dark" : "light"));
setTheme(document.documentElement.dataset.theme);

let beforePrint = null;
addEventListener("beforeprint", () => {
  beforePrint = document.documentElement.dataset.theme;
  setTheme("light");
  drawEverything();
});
addEventListener("afterprint", () => { if (beforePrint) setTheme(beforePrint); beforePrint = null; });

// For those who want to compute with it: nobsp.account({numbers: {0: 1.5}, levels: {3: 0}}).
if (table) {
  const terms = table.terms.map((term) => term.name);
  window.nobsp = { account: accountOf, row: pointOfRow, typical: typicalPoint, probabilities: linked, carried: carriedOver, terms };
}
document.documentElement.dataset.ready = "yes";
addEventListener("load", () => requestAnimationFrame(() => setTimeout(startDrawing)));
