// Images, their maps for and against a class, and what was found beside them.
const pictures = data.pictures;
const CANVAS = 168;
// Above this share, evidence without a place in the image is told in words.
const NOTEWORTHY = 0.1;

if (pictures) {
  const { maps, hits, labels } = pictures;
  if (maps) for (const kind of maps.kinds) maps[kind].steps = unpacked(maps[kind].steps);
  if (maps) maps.logits = unpacked(maps.logits);
  if (hits) for (const name of ["indices", "distances", "labels", "predicted", "values"]) hits[name] = unpacked(hits[name]);
  unpackInfluence(pictures.influence);
  if (labels?.codes) labels.codes = unpacked(labels.codes);
}

const channels = (name) => [1, 3, 5].map((at) => parseInt(colour(name).slice(at, at + 2), 16));

// Maps of one sign, which share a scale; all others have both.
const oneSided = (kind) => kind === "positive" || kind === "negative";

// A map laid over its image: between places linear, the stronger the more colour.
function drawMap(canvas, image, kind, plate, target) {
  const { height, width } = pictures.maps, map = pictures.maps[kind], several = pictures.maps.targets[0].length;
  const at = plate * several + target;
  const pair = oneSided(kind) ? ["positive", "negative"] : [kind];
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
      const hue = kind === "negative" || (!oneSided(kind) && here < 0) ? less : more;
      const cover = Math.min(1, strength * Math.max(0, oneSided(kind) ? here : Math.abs(here)));
      const p = 4 * (y * wide + x);
      for (let c = 0; c < 3; c++) pixels.data[p + c] = pixels.data[p + c] * (1 - cover) + hue[c] * cover;
    }
  }
  pen.putImageData(pixels, 0, 0);
}

// A text whose words are tinted by what they add, the stronger the more colour.
function wordsOf(plate, most = Infinity) {
  const words = pictures.words[plate];
  const spans = words.slice(0, most).map((word) => make("span", { textContent: word, dir: "auto" }));
  return make("p", { className: "words" }, ...spans.flatMap((span, i) => [i ? " " : "", span]), words.length > most ? " …" : "");
}

function tintWords(line, kind, plate, target) {
  const { width } = pictures.maps, map = pictures.maps[kind], several = pictures.maps.targets[0].length;
  const from = (plate * several + target) * width;
  const pair = oneSided(kind) ? ["positive", "negative"] : [kind];
  const common = Math.max(...pair.map((name) => pictures.maps[name].largest[plate][target])) || 1;
  const scale = map.largest[plate][target] / 127;
  [...line.children].forEach((span, i) => {
    const value = map.steps[from + i] * scale;
    const hue = kind === "negative" || (!oneSided(kind) && value < 0) ? "--against-map" : "--for-map";
    const share = Math.max(0, oneSided(kind) ? value : Math.abs(value)) / common;
    span.style.background = `color-mix(in srgb, var(${hue}) ${(70 * share * Number(byId("opacity").value)).toFixed(1)}%, transparent)`;
    span.title = signed(value);
  });
}

// Where a map is strongest, in words.
function placeInWords(kind, plate, target) {
  const { height, width } = pictures.maps, several = pictures.maps.targets[0].length;
  const from = (plate * several + target) * height * width;
  const part = pictures.maps[kind].steps.subarray(from, from + height * width);
  let best = 0;
  part.forEach((value, i) => { if (Math.abs(value) > Math.abs(part[best])) best = i; });
  if (pictures.maps[kind].largest[plate][target] <= 0) return "nothing";
  if (pictures.words) return `strongest at “${pictures.words[plate][best] ?? "padding"}”`;
  if (noun === "sequence") return `strongest near place ${best + 1} of ${width}`;
  const third = (at, size, names) => names[Math.min(2, Math.floor((3 * (at + 0.5)) / size))];
  const said = `${third(Math.floor(best / width), height, ["top", "middle", "bottom"])} ${third(best % width, width, ["left", "centre", "right"])}`;
  return `strongest near the ${said}`;
}

const RIVALS = { others: "the other classes", mean: "all classes", "runner-up": "the runner-up" };
const SIDES = { positive: "for", negative: "against" };
const plates = [];
let platesShown = 12;

const labelOf = (plate) => (pictures.labels?.codes ? pictures.classes[pictures.labels.codes[plate]] : null);

function saidOf(plate) {
  if (pictures.maps) return pictures.maps.outputs[pictures.maps.predicted[plate]];
  return pictures.hits.predicted ? pictures.hits.names[pictures.hits.predicted[plate]] : null;
}

const plateWrong = (plate) => labelOf(plate) !== null && saidOf(plate) !== null && labelOf(plate) !== saidOf(plate);

function imageOf(plate, alt) {
  return pictures.images ? make("img", { src: pictures.images[plate], alt }) : null;
}

// Draws when the image is there, which even inside a page takes a moment.
const onceLoaded = (image, draw) => () => (image && !image.complete ? image.addEventListener("load", draw, { once: true }) : draw());

function fitTo(canvas, image) {
  if (image) canvas.height = Math.round((CANVAS * image.naturalHeight) / image.naturalWidth) || CANVAS;
}

const noun = pictures?.noun;
// Texts and signals have one line of places.
const isLong = noun === "text" || noun === "sequence";
// Words of a text on the first screen.
const FEW_WORDS = 30;
const plateName = (plate) => pictures.names?.[plate] ?? noun[0].toUpperCase() + noun.slice(1) + " " + pictures.positions[plate];

// What it is labelled and predicted, which says nothing of which of both is wrong.
function taken(label, said) {
  const facts = [["labelled", label], ["predicted", said]].filter(([, name]) => name !== null);
  return facts.flatMap(([word, name], i) => [i ? ", " : "", word + " ", bdi(name, "name")]);
}

function plateFor(plate) {
  const number = pictures.positions[plate], name = plateName(plate), label = labelOf(plate), said = saidOf(plate);
  const line = make("p", { className: "quiet says" + (plateWrong(plate) ? " miss" : "") }, ...taken(label, said));
  const head = make("div", { className: "platehead" }, make("h3", {}, bdi(name)), line);
  const panels = make("div", { className: "panels" });
  const card = make("article", { className: "plate", id: "image-" + number, "aria-label": name }, head, panels);
  const image = imageOf(plate, name + (label ? `, ${label}` : ""));
  if (image) panels.append(make("figure", {}, image, make("figcaption", { textContent: "image" })));
  if (pictures.maps) addMaps(card, head, panels, image, plate);
  if (pictures.hits) card.append(...found(plate));
  if (pictures.influence) card.append(influenceInWords(pictures.influence, plate), ...[1, -1].flatMap((side) => spoken(plate, side)));
  plates.push({ plate, card });
  return card;
}

// The maps, a list to choose the class they are about, and a line that says what they are about.
function addMaps(card, head, panels, image, plate) {
  const { maps } = pictures, targets = maps.targets[plate];
  const chosen = make("p", { className: "quiet" });
  let target = 0;
  panels.classList.toggle("long", isLong);
  const canvases = maps.kinds.map((kind, i) => {
    const canvas = pictures.words ? wordsOf(plate) : make("canvas", { width: isLong ? 4 * CANVAS : CANVAS, height: isLong ? 28 : CANVAS, role: "img" });
    const caption = make("figcaption", { className: SIDES[kind] ?? "balance", textContent: maps.captions[i] });
    panels.append(make("figure", {}, canvas, caption));
    return [kind, maps.captions[i], canvas];
  });
  const tell = () => {
    const name = maps.outputs[targets[target]], left = maps.residual[plate][target] ?? 0;
    for (const [kind, word, canvas] of canvases) {
      const said = `${name}, ${word}: ${placeInWords(kind, plate, target)}.`;
      // A text is read as it stands; what its tints say is told of the figure that it is in.
      (pictures.words ? canvas.parentElement : canvas).setAttribute("aria-label", said);
    }
    const token = maps.class_token[plate][target] ?? 0, rival = maps.against ? [" against ", bdi(RIVALS[maps.against] ?? maps.against, "name")] : [];
    const logit = shown(maps.logits[plate * maps.outputs.length + targets[target]]);
    chosen.replaceChildren("evidence about ", bdi(name, "name"), ...rival, `, probability ${percent(maps.confidence[plate][target])}, `
      + `logit ${logit}` + (Math.abs(token) >= 0.005 ? `, class token ${signed(token)}` : "")
      + (maps.without_place[plate][target] > NOTEWORTHY ? ` (${percent(maps.without_place[plate][target])} of the evidence has no place in the ${noun})` : "")
      + (Math.abs(left) >= 0.005 && !maps.picture ? `, left over ${signed(left)}` : ""));
  };
  const draw = () => {
    for (const [kind, , canvas] of canvases) {
      if (pictures.words) { tintWords(canvas, kind, plate, target); continue; }
      fitTo(canvas, image);
      drawMap(canvas, image, kind, plate, target);
    }
    card.dataset.drawn = target;
  };
  if (targets.length > 1) {
    const options = targets.map((code, value) => make("option", { value, textContent: maps.outputs[code] }));
    const list = make("select", { "aria-label": `Class shown for ${plateName(plate)}` }, ...options);
    list.addEventListener("change", () => { target = Number(list.value); tell(); draw(); });
    head.append(list);
  }
  tell();
  card.append(chosen);
  drawers.set(card, onceLoaded(image, draw));
}

function found(plate) {
  const { hits } = pictures, strip = make("div", { className: "found" });
  for (let at = plate * hits.count; at < (plate + 1) * hits.count; at++) {
    const index = hits.indices[at], uri = pictures.gallery[index];
    if (index < 0) continue; // fewer were found than asked for
    const label = hits.labels ? hits.names[hits.labels[at]] : hits.values ? shown(hits.values[at], 4) : null;
    const seen = uri ? make("img", { src: uri, alt: `Neighbour ${index}` + (label ? `, ${label}` : "") })
      : make("span", { className: "blank", textContent: String(index) });
    const distance = make("span", { textContent: shown(hits.distances[at]) });
    strip.append(make("figure", { className: hits.labels && label !== saidOf(plate) ? "other" : "" }, seen,
      make("figcaption", { title: label ?? "" }, label !== null ? bdi(label, "name") : "", distance)));
  }
  const agree = hits.purity ? `: ${percent(hits.purity[plate])} have the predicted class` : "";
  return [make("p", { className: "quiet", textContent: "Neighbours, nearest first" + agree }), strip];
}

// Images that speak for the prediction (side 1) or against it (side −1), and how much.
function spoken(plate, side) {
  const lines = speakers(pictures.influence, plate, side), strip = make("div", { className: "found" });
  for (const { index, label, value, share } of lines) {
    const uri = pictures.gallery[index];
    const seen = uri ? make("img", { src: uri, alt: `Image ${index}, ${label}` }) : make("span", { className: "blank", textContent: String(index) });
    strip.append(make("figure", {}, seen, make("figcaption", { title: label }, bdi(label, "name"),
      make("span", { textContent: signed(value) }), make("span", { textContent: percent(share) }))));
  }
  return lines.length ? [make("p", { className: "quiet", textContent: side > 0 ? "For it" : "Against it" }), strip] : [];
}

const ORDERS = [
  { id: "given", name: "as given", key: () => 0, there: () => true },
  {
    id: "confidence", name: "least confident first", there: () => pictures.maps || pictures.hits.confidence,
    key: (i) => (pictures.maps ? pictures.maps.confidence[i][0] : pictures.hits.confidence[i]),
  },
  { id: "purity", name: "lowest purity first", key: (i) => pictures.hits.purity[i], there: () => pictures.hits?.purity },
  { id: "residual", name: "most left over first", key: (i) => -Math.abs(pictures.maps.residual[i][0]), there: () => pictures.maps && !pictures.maps.picture },
];

function arrangePlates() {
  const { key } = ORDERS.find(({ id }) => id === byId("picture-order").value);
  let count = 0;
  for (const { plate, card } of [...plates].sort((a, b) => key(a.plate) - key(b.plate) || a.plate - b.plate)) {
    const fits = !byId("picture-wrong").checked || plateWrong(plate);
    count += fits;
    card.hidden = !fits || count > platesShown;
    byId("plates").append(card);
  }
  byId("plates-found").textContent = `${Math.min(count, platesShown)} of ${counted(count, noun)} shown.`;
  byId("more-plates").hidden = count <= platesShown;
}

function startPictures() {
  byId("plates").append(...[...Array(pictures.count).keys()].map(plateFor));
  const orders = ORDERS.filter(({ there }) => there());
  byId("picture-order").append(...orders.map(({ id, name }) => make("option", { value: id, textContent: name })));
  byId("picture-wrong-choice").hidden = ![...Array(pictures.count).keys()].some(plateWrong);
  byId("opacity-choice").hidden = !pictures.maps;
  byId("more-plates").addEventListener("click", () => { platesShown += 12; arrangePlates(); });
  byId("picture-order").addEventListener("change", arrangePlates);
  byId("picture-wrong").addEventListener("change", arrangePlates);
  byId("opacity").addEventListener("input", refresh);
  const few = pictures.count < pictures.total ? `${pictures.count} of ${counted(pictures.total, noun)}, evenly spread. ` : "";
  byId("pictures-lead").textContent = few + (pictures.maps
    ? oneSided(pictures.maps.kinds[0])
      ? "Orange shows where channels are active that speak for the class, blue where channels are active that speak against "
        + `it. For and against share one scale within one ${noun}, so that they can be compared.`
      : `Orange is evidence for the class, blue evidence against it: ${pictures.maps.captions.join(", and ")}. Each map has its `
        + "own scale." + (pictures.maps.picture ? "" : " The numbers of an account add up: with what is left over they are the logit, or the difference of logits, less its base.")
    : `Each ${noun} with the ${noun}s of the index that are nearest to it: their labels, and how far away they are.`);
  arrangePlates();
  drawExamples();
  byId("main").classList.toggle("coarse", pictures.coarse);
  const share = headline();
  byId("picture-share").textContent = share && share[0] !== null ? percent(share[0]) : "";
  byId("picture-share").hidden = !byId("picture-share").textContent;
  byId("picture-share").className = share && share[2] ? (share[0] < 0.5 ? "bad" : share[0] < 0.8 ? "doubtful" : "good") : "";
  byId("picture-words").textContent = share ? share[1] : "";
}

// The first screen: three images with what they were taken for, the most suspicious of an audit or evenly chosen ones.
function drawExamples() {
  const few = Math.min(3, pictures.count);
  const spread = [...Array(few).keys()].map((i) => Math.floor((i * pictures.count) / few));
  const suspects = (data.audit?.places || []).map((place) => pictures.positions.indexOf(place)).filter((plate) => plate >= 0);
  const chosen = suspects.length ? suspects.slice(0, few) : spread;
  byId("examples").replaceChildren(...chosen.map(exampleOf));
}

function exampleOf(plate) {
  const { maps, hits } = pictures, line = make("div", { className: "example" }), image = imageOf(plate, "");
  if (image) line.append(image);
  if (maps && pictures.words) {
    const text = wordsOf(plate, FEW_WORDS);
    line.classList.add("long");
    line.append(text);
    drawers.set(line, () => tintWords(text, maps.kinds[0], plate, 0));
  } else if (maps) {
    const canvas = make("canvas", { width: CANVAS, height: isLong ? 28 : CANVAS, "aria-hidden": "true" });
    line.append(canvas);
    drawers.set(line, onceLoaded(image, () => { fitTo(canvas, image); drawMap(canvas, image, maps.kinds[0], plate, 0); }));
  }
  const words = make("p", {}, noun === "row" ? plateName(plate) + " " : ""), said = saidOf(plate), label = labelOf(plate);
  words.append(...taken(label, said), said !== null && maps ? ` (${percent(maps.confidence[plate][0])})` : "");
  if (hits?.purity) words.append(`; ${percent(hits.purity[plate])} of its neighbours agree`);
  words.append(" ", showLink(plate));
  line.append(words);
  return line;
}

function showLink(plate) {
  const link = make("a", { href: "#image-" + pictures.positions[plate], textContent: "more" });
  link.setAttribute("aria-label", `More of ${plateName(plate)}`);
  // It may be among those that are not shown yet.
  link.addEventListener("click", () => { plates.find((known) => known.plate === plate).card.hidden = false; });
  return link;
}

function headline() {
  const shares = (pictures.explained || []).filter((share) => share !== null), purity = pictures.hits?.purity;
  if (pictures.maps?.picture) {
    return [null, "These maps are pictures: they show where a class is, but their numbers do not add up. Those of eight points do: points=8, on the command line --points 8."];
  }
  if (shares.length) {
    return [Math.max(0, Math.min(...shares)), `of how the logits vary from ${noun} to ${noun} is in the maps, for the class that they explain least.`, true];
  }
  if (purity) return [purity.reduce((a, b) => a + b, 0) / purity.length, "of the neighbours found have the class that the model predicts."];
  if (labelOf(0) === null || saidOf(0) === null) return null;
  return [plates.filter(({ plate }) => !plateWrong(plate)).length / plates.length, `of the ${noun}s in this page are predicted as they are labelled.`];
}
