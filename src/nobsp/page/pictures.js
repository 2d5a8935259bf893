// Images, their maps for and against a class, and what was found beside them.
const pictures = data.pictures;
const CANVAS = 168;

if (pictures) {
  for (const kind of pictures.maps ? ["positive", "negative", "signed"] : []) pictures.maps[kind].steps = unpacked(pictures.maps[kind].steps);
  if (pictures.hits) for (const name of ["indices", "distances", "labels", "predicted", "values"]) pictures.hits[name] = unpacked(pictures.hits[name]);
  if (pictures.labels?.codes) pictures.labels.codes = unpacked(pictures.labels.codes);
  if (pictures.labels?.values) pictures.labels.values = unpacked(pictures.labels.values);
}

const channels = (name) => [1, 3, 5].map((at) => parseInt(colour(name).slice(at, at + 2), 16));

// A map laid over its image: between places linear, the stronger the more colour.
function drawMap(canvas, image, kind, plate, target) {
  const { height, width } = pictures.maps, map = pictures.maps[kind], several = pictures.maps.targets[0].length;
  const at = plate * several + target;
  const pair = kind === "signed" ? [kind] : ["positive", "negative"];
  const common = Math.max(...pair.map((name) => pictures.maps[name].largest[plate][target])) || 1;
  const scale = map.largest[plate][target] / common / 127;
  const wide = canvas.width, high = canvas.height, pen = canvas.getContext("2d", { willReadFrequently: true });
  pen.imageSmoothingEnabled = !image || image.naturalWidth > 48;
  pen.filter = "grayscale(1)";
  if (image) pen.drawImage(image, 0, 0, wide, high); else { pen.fillStyle = colour("wash"); pen.fillRect(0, 0, wide, high); }
  const pixels = pen.getImageData(0, 0, wide, high);
  const [more, less] = [channels("for-map"), channels("against-map")];
  const strength = Number(byId("opacity").value);
  const value = (i, j) => map.steps[(at * height + Math.max(0, Math.min(height - 1, i))) * width + Math.max(0, Math.min(width - 1, j))] * scale;
  for (let y = 0; y < high; y++) {
    const v = ((y + 0.5) * height) / high - 0.5, i = Math.floor(v), dv = v - i;
    for (let x = 0; x < wide; x++) {
      const u = ((x + 0.5) * width) / wide - 0.5, j = Math.floor(u), du = u - j;
      const here = (1 - dv) * ((1 - du) * value(i, j) + du * value(i, j + 1)) + dv * ((1 - du) * value(i + 1, j) + du * value(i + 1, j + 1));
      const hue = kind === "negative" || (kind === "signed" && here < 0) ? less : more;
      const cover = Math.min(1, strength * Math.max(0, kind === "signed" ? Math.abs(here) : here));
      const p = 4 * (y * wide + x);
      for (let c = 0; c < 3; c++) pixels.data[p + c] = pixels.data[p + c] * (1 - cover) + hue[c] * cover;
    }
  }
  pen.putImageData(pixels, 0, 0);
}

// Where a map is strongest, in words.
function placeInWords(kind, plate, target) {
  const { height, width } = pictures.maps, several = pictures.maps.targets[0].length;
  const from = (plate * several + target) * height * width;
  const part = pictures.maps[kind].steps.subarray(from, from + height * width);
  let best = 0;
  part.forEach((value, i) => { if (Math.abs(value) > Math.abs(part[best])) best = i; });
  const third = (at, size, names) => names[Math.min(2, Math.floor((3 * (at + 0.5)) / size))];
  const said = `${third(Math.floor(best / width), height, ["top", "middle", "bottom"])} ${third(best % width, width, ["left", "centre", "right"])}`;
  return pictures.maps[kind].largest[plate][target] > 0 ? `strongest near the ${said}` : "nothing";
}

const PANELS = [["positive", "for"], ["negative", "against"], ["signed", "balance"]];
const className = (code) => pictures.classes[code] ?? pictures.maps?.outputs[code] ?? String(code);
const labelOf = (plate) => (pictures.labels?.codes ? pictures.classes[pictures.labels.codes[plate]] : null);
const saidOf = (plate) => (pictures.maps ? pictures.maps.outputs[pictures.maps.predicted[plate]] : pictures.hits?.predicted ? pictures.hits.names[pictures.hits.predicted[plate]] : null);
const plateWrong = (plate) => labelOf(plate) !== null && saidOf(plate) !== null && labelOf(plate) !== saidOf(plate);
const plates = [];
let platesShown = 12;

function plateFor(plate) {
  const number = pictures.positions[plate];
  const heading = make("h3", {}, `Image ${number}`);
  const facts = [];
  if (saidOf(plate) !== null) facts.push(["predicted", saidOf(plate)]);
  if (labelOf(plate) !== null) facts.push(["label", labelOf(plate)]);
  const line = make("p", { className: "quiet says" }, ...facts.flatMap(([word, name], i) => [i ? " · " : "", word + " ", bdi(name, "name")]), plateWrong(plate) ? make("b", { className: "miss", textContent: " wrong" }) : "");
  const card = make("article", { className: "plate", id: "image-" + number, "aria-label": `Image ${number}` }, make("div", { className: "platehead" }, heading, line));
  const panels = make("div", { className: "panels" });
  const source = pictures.images ? make("img", { src: pictures.images[plate], alt: `Image ${number}` + (labelOf(plate) ? `, ${labelOf(plate)}` : "") }) : null;
  if (source) panels.append(make("figure", {}, source, make("figcaption", { textContent: "image" })));
  let target = 0;
  const canvases = pictures.maps ? PANELS.map(([kind, word]) => {
    const canvas = make("canvas", { width: CANVAS, height: CANVAS, role: "img" });
    panels.append(make("figure", {}, canvas, make("figcaption", { className: word, textContent: word })));
    return [kind, word, canvas];
  }) : [];
  card.append(panels);
  const chosen = make("p", { className: "quiet" });
  const tell = () => {
    const name = pictures.maps.outputs[pictures.maps.targets[plate][target]];
    for (const [kind, word, canvas] of canvases) canvas.setAttribute("aria-label", `Evidence ${word === "balance" ? "for and against" : word} ${name}: ${placeInWords(kind, plate, target)}.`);
    chosen.replaceChildren("evidence about ", bdi(name, "name"), `, probability ${percent(pictures.maps.confidence[plate][target])}, logit ${shown(unpackedLogits()[plate * pictures.maps.outputs.length + pictures.maps.targets[plate][target]])}` +
      (Math.abs(pictures.maps.residual[plate][target] ?? 0) >= 0.005 ? `, left over ${signed(pictures.maps.residual[plate][target])}` : ""));
  };
  const draw = () => {
    if (source) for (const [, , canvas] of canvases) canvas.height = Math.round((CANVAS * source.naturalHeight) / source.naturalWidth) || CANVAS;
    for (const [kind, , canvas] of canvases) drawMap(canvas, source, kind, plate, target);
    card.dataset.drawn = target;
  };
  if (pictures.maps) {
    if (pictures.maps.targets[plate].length > 1) {
      const list = make("select", { "aria-label": `Class shown for image ${number}` }, ...pictures.maps.targets[plate].map((code, i) => make("option", { value: i, textContent: pictures.maps.outputs[code] })));
      list.addEventListener("change", () => { target = Number(list.value); tell(); draw(); });
      card.querySelector(".platehead").append(list);
    }
    card.append(chosen);
    tell();
    drawers.set(card, () => (source && !source.complete ? source.addEventListener("load", draw, { once: true }) : draw()));
  }
  if (pictures.hits) card.append(...found(plate));
  plates.push({ plate, card });
  return card;
}

let logits = null;
const unpackedLogits = () => (logits = logits || unpacked(pictures.maps.logits));

function found(plate) {
  const { hits } = pictures, k = hits.count;
  const strip = make("div", { className: "found" });
  for (let i = 0; i < k; i++) {
    const index = hits.indices[plate * k + i];
    if (index < 0) continue;
    const label = hits.labels ? hits.names[hits.labels[plate * k + i]] : null;
    const uri = pictures.gallery[index];
    strip.append(make("figure", { className: label !== null && label !== saidOf(plate) ? "other" : "" }, uri ? make("img", { src: uri, alt: `Neighbour ${index}` + (label ? `, ${label}` : "") }) : make("span", { className: "blank", textContent: String(index) }),
      make("figcaption", {}, label !== null ? bdi(label, "name") : "", make("span", { textContent: fixed(hits.distances[plate * k + i], 1) }))));
  }
  return [make("p", { className: "quiet" }, "Neighbours, nearest first" + (hits.purity ? `: ${percent(hits.purity[plate])} have the predicted class` : "")), strip];
}

const ORDERS = [
  ["given", "as given", () => 0, () => true],
  ["confidence", "least confident first", (i) => pictures.maps?.confidence[i][0] ?? pictures.hits?.confidence?.[i] ?? 0, () => pictures.maps || pictures.hits?.confidence],
  ["purity", "lowest purity first", (i) => pictures.hits?.purity?.[i] ?? 0, () => pictures.hits?.purity],
  ["residual", "most left over first", (i) => -Math.abs(pictures.maps?.residual[i][0] ?? 0), () => pictures.maps],
];

function arrangePlates() {
  const [, , key] = ORDERS.find(([id]) => id === byId("picture-order").value);
  let count = 0;
  for (const { plate, card } of [...plates].sort((a, b) => key(a.plate) - key(b.plate) || a.plate - b.plate)) {
    const fits = !byId("picture-wrong").checked || plateWrong(plate);
    count += fits;
    card.hidden = !fits || count > platesShown;
    byId("plates").append(card);
  }
  byId("plates-found").textContent = `${Math.min(count, platesShown)} of ${counted(count, "image")} shown.`;
  byId("more-plates").hidden = count <= platesShown;
}

function startPictures() {
  byId("plates").append(...[...Array(pictures.count).keys()].map(plateFor));
  byId("picture-order").append(...ORDERS.filter(([, , , there]) => there()).map(([value, textContent]) => make("option", { value, textContent })));
  byId("picture-wrong-choice").hidden = ![...Array(pictures.count).keys()].some(plateWrong);
  byId("opacity-choice").hidden = !pictures.maps;
  byId("more-plates").addEventListener("click", () => { platesShown += 12; arrangePlates(); });
  byId("picture-order").addEventListener("change", arrangePlates);
  byId("picture-wrong").addEventListener("change", arrangePlates);
  byId("opacity").addEventListener("input", refresh);
  const few = pictures.count < pictures.total ? `${pictures.count} of ${counted(pictures.total, "image")}, evenly spread. ` : "";
  byId("pictures-lead").textContent = few + (pictures.maps
    ? "Orange shows where channels are active that speak for the class, blue where channels are active that speak against it. For and against share one scale within an image, so that they can be compared."
    : "Each case with the most similar ones that the index holds.");
  arrangePlates();
  drawExamples();
  const share = headline();
  byId("picture-share").textContent = share ? share[0] : "";
  byId("picture-words").textContent = share ? share[1] : "";
}

// The first screen: three images with what they were taken for, evenly chosen.
function drawExamples() {
  const few = Math.min(3, pictures.count);
  byId("examples").replaceChildren(...[...Array(few).keys()].map((i) => {
    const plate = Math.floor((i * pictures.count) / few), line = make("div", { className: "example" });
    const source = pictures.images ? make("img", { src: pictures.images[plate], alt: "" }) : null;
    if (source) line.append(source);
    if (pictures.maps) {
      const canvas = make("canvas", { width: CANVAS, height: CANVAS, "aria-hidden": "true" });
      line.append(canvas);
      const draw = () => {
        if (source) canvas.height = Math.round((CANVAS * source.naturalHeight) / source.naturalWidth) || CANVAS;
        drawMap(canvas, source, "signed", plate, 0);
      };
      drawers.set(line, () => (source && !source.complete ? source.addEventListener("load", draw, { once: true }) : draw()));
    }
    const said = saidOf(plate), label = labelOf(plate);
    line.append(make("p", {}, said !== null ? "says " : "", said !== null ? bdi(said, "name") : "",
      pictures.maps ? ` (${percent(pictures.maps.confidence[plate][0])})` : "", label !== null ? ", is " : "", label !== null ? bdi(label, "name") : "",
      pictures.hits?.purity ? `; ${percent(pictures.hits.purity[plate])} of its neighbours agree` : "", " ", showLink(plate)));
    return line;
  }));
}

function showLink(plate) {
  const link = make("a", { href: "#image-" + pictures.positions[plate], textContent: "more" });
  link.setAttribute("aria-label", `More of image ${pictures.positions[plate]}`);
  // It may be among those that are not shown yet.
  link.addEventListener("click", () => { plates.find((known) => known.plate === plate).card.hidden = false; });
  return link;
}

function headline() {
  const known = (pictures.explained || []).filter((share) => share !== null);
  if (known.length) return [percent(Math.max(0, Math.min(...known))), "of how each class’s logit varies, at least, is carried by the channels’ own evidence."];
  if (pictures.hits?.purity) return [percent(pictures.hits.purity.reduce((a, b) => a + b, 0) / pictures.hits.purity.length), "of the neighbours found have the class that the model predicts."];
  if (labelOf(0) !== null && saidOf(0) !== null) return [percent([...Array(pictures.count).keys()].filter((i) => !plateWrong(i)).length / pictures.count), "of the images in this page are classified right."];
  return null;
}
