// Chapter 7's trained Vision Transformer, on a test image or on the reader's own: what it
// answers, and where every head attends. The model is fetched on a click and runs in a Worker.
import { button, cells, draggable, drawing, eachFrame, html, mix, paint, palette, place, set, svg, toggle } from "./controls.mjs";

const ASSETS = "../assets/vit/";
export const MEGABYTES = "1.9";

// Numbers from 0 to 1 that look random; the same for the same seed.
export function randomNumbers(seed) {
  return () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let x = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    x = (x + Math.imul(x ^ (x >>> 7), 61 | x)) ^ x;
    return ((x ^ (x >>> 14)) >>> 0) / 2 ** 32;
  };
}

// A random order of 0 … n − 1.
export function permutation(n, seed) {
  const random = randomNumbers(seed), order = Array.from({ length: n }, (_, i) => i);
  for (let i = n - 1; i > 0; i--) {
    const j = Math.floor(random() * (i + 1));
    [order[i], order[j]] = [order[j], order[i]];
  }
  return order;
}

// A square image of `size` pixels (four bytes each) whose patch p is patch order[p] of another.
export function rearranged(pixels, size, patch, order) {
  const moved = new Uint8ClampedArray(pixels.length), grid = size / patch;
  order.forEach((from, to) => {
    for (let i = 0; i < patch; i++)
      for (let j = 0; j < patch; j++) {
        const at = p => 4 * ((Math.floor(p / grid) * patch + i) * size + (p % grid) * patch + j);
        for (let c = 0; c < 4; c++) moved[at(to) + c] = pixels[at(from) + c];
      }
  });
  return moved;
}

// Shrink a square image: each new pixel is the mean of the area it covers.
export function shrunk(pixels, from, to) {
  const spans = Array.from({ length: to }, (_, o) => {
    const begin = (o * from) / to, end = ((o + 1) * from) / to, parts = [];
    for (let i = Math.floor(begin); i < end; i++) parts.push([i, (Math.min(i + 1, end) - Math.max(i, begin)) / (end - begin)]);
    return parts;
  });
  const small = new Uint8ClampedArray(4 * to * to);
  for (let r = 0; r < to; r++)
    for (let s = 0; s < to; s++)
      for (let c = 0; c < 4; c++) {
        let sum = 0;
        for (const [i, a] of spans[r]) for (const [j, b] of spans[s]) sum += a * b * pixels[4 * (i * from + j) + c];
        small[4 * (r * to + s) + c] = sum;
      }
  return small;
}

// How strongly to color each number: 1 at the largest, or at `least` if that is larger.
export function strengths(values, least) {
  const top = values.reduce((a, b) => Math.max(a, b), least);
  return Array.from(values, x => x / top);
}

// Classes by probability, the likeliest first.
export const ranked = chances => Array.from(chances, (p, k) => [k, p]).sort((a, b) => b[1] - a[1]).map(([k]) => k);

// Attention distance of uniform attention over a grid.
export function uniformDistance(grid, patch) {
  let sum = 0;
  for (let r = -grid + 1; r < grid; r++)
    for (let s = -grid + 1; s < grid; s++) sum += (grid - Math.abs(r)) * (grid - Math.abs(s)) * Math.hypot(r, s);
  return (patch * sum) / grid ** 4;
}

export const percent = p => `${(100 * p).toFixed(p > 0 && p < 0.0995 ? 1 : 0)}%`;

export const label = "A Vision Transformer at work";

export function mount(stage, { signal }) {
  stage.classList.add("live_vit");
  const figure = stage.parentElement;
  figure?.classList.add("waiting");
  const status = html("output", { role: "status" });
  const load = button(`Load the model (${MEGABYTES} MB)`, async () => {
    load.disabled = true;
    status.textContent = "Loading …";
    try {
      const model = await open(signal);
      if (signal.aborted) return;
      figure?.classList.remove("waiting");
      show(stage, model, signal);
    } catch (error) {
      if (signal.aborted) return;
      load.disabled = false;
      status.textContent = `The model could not be loaded (${error.message}).`;
    }
  }, signal);
  stage.append(html("div", { class: "controls" }, load, status));
}

// Fetch everything, and start the Worker; `look` asks it for what there is to see.
async function open(signal) {
  const address = name => new URL(ASSETS + name, import.meta.url).href;
  const worker = new Worker(new URL("live_vit_worker.mjs", import.meta.url), { type: "module" });
  signal.addEventListener("abort", () => worker.terminate());
  const waiting = new Map();
  let count = 0;
  worker.onmessage = ({ data: { id, found, error } }) => {
    const { resolve, reject } = waiting.get(id);
    waiting.delete(id);
    if (error) reject(new Error(error));
    else resolve(found);
  };
  worker.onerror = () => waiting.forEach(({ reject }) => reject(new Error("its script failed")));
  const ask = message => new Promise((resolve, reject) => {
    waiting.set(++count, { resolve, reject });
    worker.postMessage({ id: count, ...message });
  });
  const get = async name => {
    const answer = await fetch(address(name), { signal });
    if (!answer.ok) throw new Error(`${answer.status} ${answer.statusText}`);
    return answer;
  };
  try {
    const [config, about, strip] = await Promise.all([
      ask({ load: address("vit.safetensors") }),
      get("vit.json").then(answer => answer.json()),
      get("samples.png").then(answer => answer.blob()).then(createImageBitmap),
    ]);
    const size = config.image_size[0], { mean, std, classes } = about;
    const samples = about.samples.map((label, i) => ({ label, pixels: bytes(strip, i * size, size, size) }));
    return { about, config, classes, samples, look: (pixels, positions) => ask({ pixels, positions, mean, std }) };
  } catch (error) {
    worker.terminate();
    throw error;
  }
}

// The pixels of a square part of an image, drawn at `size`; white where it is transparent.
function bytes(image, left, side, size, top = 0) {
  const context = html("canvas", { width: size, height: size }).getContext("2d");
  context.fillStyle = "#fff";
  context.fillRect(0, 0, size, size);
  context.imageSmoothingQuality = "high";
  context.drawImage(image, left, top, side, side, 0, 0, size, size);
  return context.getImageData(0, 0, size, size).data;
}

// A file as an image for the model: the square in its middle, made small.
async function imageOf(file, size) {
  const image = await createImageBitmap(file), { width, height } = image, side = Math.min(width, height), drawn = Math.min(side, 512);
  const pixels = bytes(image, Math.floor((width - side) / 2), side, drawn, Math.floor((height - side) / 2));
  image.close();
  return shrunk(pixels, drawn, size);
}

function show(stage, { about, config, classes, samples, look }, signal) {
  const { depth, heads } = config, size = config.image_size[0], patch = config.patch_size[0], grid = size / patch, n = grid * grid;
  const first = Math.max(0, samples.findIndex(({ label }) => label === about.shown)), start = about.patch[0] * grid + about.patch[1];
  const name = `live-vit-${Math.random().toString(36).slice(2)}`;
  let sample = samples[first], seed = 1, pinned = start, shown = start, overlay = "none";
  // What was computed for this image, by order and positions.
  let runs = new Map(), seen = null, painted = null, turn = 0;
  const colors = palette(signal, () => { drawMaps(); drawImage(); });
  const at = p => `row ${Math.floor(p / grid) + 1}, column ${(p % grid) + 1}`;

  // --- images to choose from ---
  const thumbnails = html("div", { class: "samples", role: "radiogroup", "aria-label": "Image" });
  const thumbnail = one => {
    const canvas = html("canvas", { width: size, height: size });
    canvas.getContext("2d").putImageData(new ImageData(one.pixels, size), 0, 0);
    const input = html("input", { type: "radio", name: `${name}-image`, "aria-label": one.label ?? "your own image" });
    input.addEventListener("change", () => { sample = one; begin(); }, { signal });
    thumbnails.append(html("label", { title: one.label ?? "your own image" }, input, canvas));
    one.input = input;
  };
  samples.forEach(thumbnail);
  const picker = html("input", { type: "file", accept: "image/*", hidden: "" });
  const own = { pixels: null };
  const take = async file => {
    try {
      const pixels = await imageOf(file, size);
      if (signal.aborted) return;
      own.pixels = pixels;
    } catch {
      status.textContent = "The browser cannot read this file as an image.";
      return;
    }
    own.input?.parentElement.remove();
    thumbnail(own);
    own.input.checked = true;
    sample = own;
    begin();
  };
  picker.addEventListener("change", () => { if (picker.files[0]) take(picker.files[0]); picker.value = ""; }, { signal });
  stage.addEventListener("dragover", event => { if (event.dataTransfer.types.includes("Files")) event.preventDefault(); }, { signal });
  stage.addEventListener("drop", event => {
    if (!event.dataTransfer.files.length) return;
    event.preventDefault();
    take(event.dataTransfer.files[0]);
  }, { signal });
  document.addEventListener("paste", event => {
    const file = [...event.clipboardData.files].find(({ type }) => type.startsWith("image/"));
    if (file && !event.target.closest?.("input, textarea")) take(file);
  }, { signal });

  // --- the image, with a patch to choose ---
  const view = cells(size, size, "The image"), root = drawing(grid, grid, "Patches of the image");
  let lines = "";
  for (let i = 1; i < grid; i++) lines += `M0 ${i}h${grid}M${i} 0v${grid}`;
  const marker = svg("g", { class: "marker" }, ...["edge", "line"].map(kind => svg("rect", { class: kind, width: 1, height: 1 })));
  root.append(svg("path", { class: "grid", d: lines }), marker);
  const cell = (x, y) => { const inside = z => Math.max(0, Math.min(grid - 1, Math.floor(z))); return inside(y) * grid + inside(x); };
  const choose = (p, pin = true) => { shown = p; if (pin) pinned = p; redraw(); };
  const told = draggable(marker, {
    root, signal, label: "Patch to attend from", text: () => at(shown),
    move: (x, y) => choose(cell(x, y)),
    nudge: (dx, dy) => choose(cell((pinned % grid) + dx, Math.floor(pinned / grid) + dy)),
  });
  const pointed = event => cell(...place(root, event));
  root.addEventListener("pointermove", event => { if (event.pointerType === "mouse" && !event.buttons) choose(pointed(event), false); }, { signal });
  root.addEventListener("pointerleave", () => { if (shown !== pinned) choose(pinned); }, { signal });
  root.addEventListener("click", event => choose(pointed(event)), { signal });

  // --- bars ---
  const bars = labels => labels.map(label => {
    const bar = html("i"), tick = html("b"), number = html("span", { class: "numbers" }), text = html("span", { class: "name" }, label);
    return { node: html("li", {}, text, html("span", { class: "track", "aria-hidden": "true" }, bar, tick), number), bar, tick, number };
  });
  const answers = bars(classes);
  const stages = bars(["patches", ...Array.from({ length: depth }, (_, i) => `layer ${i + 1}`)]);
  stages.forEach(({ tick }) => tick.remove());

  // --- maps; choosing one lays it over the image ---
  const maps = new Map();
  const option = (key, words, canvas) => {
    const input = html("input", { type: "radio", name: `${name}-map`, "aria-label": words });
    input.checked = key === overlay;
    input.addEventListener("change", () => { overlay = key; drawImage(); }, { signal });
    const number = html("span", { class: "numbers" }), box = html("span", { class: "box" }, canvas);
    maps.set(key, { words, canvas, input, number, values: null });
    return html("label", { class: "map" }, input, box, number);
  };
  const small = () => set(cells(grid, grid, ""), { "aria-hidden": "true", role: null, "aria-label": null });
  const sheet = html("div", { class: "maps", style: `--depth: ${depth}` });
  sheet.append(html("span", { class: "soft" }, "layer"), ...Array.from({ length: depth }, (_, i) => html("span", { class: "soft top" }, `${i + 1}`)));
  for (let head = 0; head < heads; head++) {
    sheet.append(html("span", { class: "soft" }, `head ${head + 1}`));
    for (let layer = 0; layer < depth; layer++) sheet.append(option(`${layer} ${head}`, `layer ${layer + 1}, head ${head + 1}`, small()));
  }
  const plain = html("label", { class: "toggle" }, html("input", { type: "radio", name: `${name}-map` }), html("span", {}, "no map over the image"));
  plain.firstChild.checked = true;
  plain.firstChild.addEventListener("change", () => { overlay = "none"; drawImage(); }, { signal });
  const rollouts = html("div", { class: "rollouts" },
    html("div", {}, option("rollout", "rollout from the patch", small()), "from this patch"),
    html("div", {}, option("pooled", "rollout of the answer", small()), "of the answer"));

  // --- what can be done to the image ---
  const shuffle = toggle({ label: "Shuffle the patches", change: () => compute(), signal });
  const again = button("Shuffle in a new order", () => { seed += 1; shuffle.input.checked = true; compute(); }, signal);
  const bare = toggle({ label: "Remove the positions", change: () => compute(), signal });
  const reset = button("Reset", () => {
    sample = samples[first];
    sample.input.checked = plain.firstChild.checked = true;
    seed = 1;
    overlay = "none";
    pinned = shown = start;
    begin();
  }, signal);
  const status = html("output", { role: "status" }), heading = html("strong"), lensNote = html("span");
  const uniform = uniformDistance(grid, patch).toFixed(1);

  // Start with another image, in order and with positions.
  function begin() {
    runs = new Map();
    shuffle.input.checked = bare.input.checked = false;
    compute();
  }

  const pixelsOf = order => order ? rearranged(sample.pixels, size, patch, permutation(n, order)) : sample.pixels;
  function run(order, positions) {
    const key = `${order} ${positions}`;
    if (!runs.has(key)) runs.set(key, look(pixelsOf(order), positions));
    return runs.get(key);
  }

  async function compute() {
    stage.setAttribute("aria-busy", "true");
    const mine = ++turn, order = shuffle.input.checked ? seed : 0, positions = !bare.input.checked;
    let found, given, ordered;
    try {
      [found, given, ordered] = await Promise.all([run(order, positions), run(0, true), run(0, positions)]);
    } catch (error) {
      status.textContent = `The model stopped (${error.message}).`;
      return;
    }
    if (signal.aborted || mine !== turn) return;
    stage.removeAttribute("aria-busy");
    seen = { ...found, given, pixels: pixelsOf(order) };
    stage.dataset.run = `${sample.label ?? "own"} ${order} ${positions}`;
    const [best] = ranked(found.probabilities), [before] = ranked(given.probabilities);
    const words = (k, chances) => `${classes[k]}, ${percent(chances[k])}`;
    const same = order && !positions && found.logits.every((y, k) => Math.abs(y - ordered.logits[k]) < 1e-9);
    status.textContent = `The model says ${words(best, found.probabilities)}.` +
      (order || !positions ? ` On the unchanged image (the marks): ${words(before, given.probabilities)}.` : "") +
      (same ? " Without positions the order makes no difference: shuffled or not, the logits are the same." : "") +
      (order || !positions ? "" : sample.label ? ` The label says ${sample.label}.` : " It knows these ten classes and no other.");
    answers.forEach(({ node, bar, tick, number }, k) => {
      node.classList.toggle("best", k === best);
      bar.style.width = `${100 * found.probabilities[k]}%`;
      tick.style.left = `${100 * given.probabilities[k]}%`;
      tick.hidden = !order && positions;
      number.textContent = percent(found.probabilities[k]);
    });
    lensNote.textContent = `Probability of ${classes[best]} if the final norm and the head read the tokens there, and the class that would lead:`;
    stages.forEach(({ bar, number }, i) => {
      const chances = found.lens[i], [leads] = ranked(chances);
      bar.style.width = `${100 * chances[best]}%`;
      number.textContent = `${percent(chances[best])} · ${classes[leads]}`;
    });
    redraw();
  }

  function drawMaps() {
    if (!seen) return;
    const shade = x => mix(colors.paper, colors.query, x);
    for (const [key, map] of maps) {
      const [layer, head] = key.split(" ").map(Number), index = layer * heads + head;
      const from = key === "rollout" ? seen.rollout.subarray(shown * n, (shown + 1) * n)
        : key === "pooled" ? seen.pooled : seen.maps.subarray((index * n + shown) * n, (index * n + shown + 1) * n);
      map.values = strengths(from, (key.includes(" ") ? 4 : 2) / n);
      paint(map.canvas, map.values, shade);
      const [most] = ranked(from);
      map.number.textContent = key.includes(" ") ? seen.distances[index].toFixed(1) : percent(from[most]);
      map.input.setAttribute("aria-label", `${map.words}: most on ${at(most)}, ${percent(from[most])}` +
        (key.includes(" ") ? `; attention distance ${map.number.textContent} pixels` : ""));
    }
    heading.textContent = `Attention from the patch in ${at(shown)}`;
    stage.style.setProperty("--row", Math.floor(shown / grid));
    stage.style.setProperty("--column", shown % grid);
  }

  function drawImage() {
    if (!seen) return;
    const values = maps.get(overlay)?.values;
    if (values || painted !== seen.pixels) paint(view, Array.from({ length: size * size }, (_, i) => i), i => {
      const pixel = [...seen.pixels.subarray(4 * i, 4 * i + 3)];
      if (!values) return pixel;
      const p = Math.floor(i / size / patch) * grid + Math.floor((i % size) / patch);
      return mix(colors.paper, pixel, 0.2 + 0.8 * Math.sqrt(values[p]));
    });
    painted = values ? null : seen.pixels;
    set(view, { "aria-label": `The image${seen.pixels === sample.pixels ? "" : ", its patches shuffled"}${values ? `, under the map of ${maps.get(overlay).words}` : ""}` });
    set(marker, { transform: `translate(${shown % grid} ${Math.floor(shown / grid)})` });
    told();
  }

  const redraw = eachFrame(() => { drawMaps(); drawImage(); }, signal);
  stage.replaceChildren(
    html("p", {}, "Choose an image, then point at its patches: every map shows where one head attends from the outlined patch. Choose a map to lay it over the image."),
    html("div", { class: "controls" }, thumbnails, button("Your own image …", () => picker.click(), signal), picker,
      html("span", { class: "soft" }, html("span", { class: "drop" }, "or drop or paste one: "), "it stays in your browser")),
    html("div", { class: "columns" },
      html("div", {}, html("div", { class: "view" }, view, root), status, html("div", { class: "controls" }, shuffle.node, again, bare.node, reset)),
      html("div", { class: "answers" }, html("ul", { class: "bars" }, ...answers.map(({ node }) => node)),
        html("p", { class: "soft" }, `Of ${about.test_images.toLocaleString("en-US")} test images it classifies ${(100 * about.test_accuracy).toFixed(1)}% correctly.`)),
      html("div", { class: "all", role: "radiogroup", "aria-label": "Map to lay over the image" },
        html("div", { class: "controls" }, heading, plain), sheet,
        html("p", { class: "soft" }, `Full color: the largest weight of a map, or four times an equal share if no weight is larger. The number is the head’s attention distance on this image, over all patches, in pixels; uniform attention has ${uniform}.`))),
    html("div", { class: "columns" },
      html("div", {}, html("strong", {}, "Rollout"), rollouts, html("p", { class: "soft" }, `The number is the largest share; an equal share is ${percent(1 / n)}.`)),
      html("div", {}, html("strong", {}, "Layer by layer"), html("p", {}, lensNote), html("ul", { class: "bars stages" }, ...stages.map(({ node }) => node)),
        html("p", { class: "soft" }, "A probe: the head was trained to read the last layer only."))));
  samples[first].input.checked = true;
  begin();
}
