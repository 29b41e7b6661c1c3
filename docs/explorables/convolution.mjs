// Attention and convolution, side by side: nine heads to drag, sharpen and train, and the
// heads of chapter 8's model to replay. All arithmetic is in convolution_math.mjs.
import { animation, button, cells, choice, draggable, drawing, eachFrame, html, palette, place, set, slider, stillness, svg } from "./controls.mjs";
import { alphaAt, brightness, compare, effectiveKernel, HARD, KERNELS, largest, moved, OFFSETS, picture, positionFor, sharpHeads, show, showAlpha, weightText, whereabouts } from "./convolution_math.mjs";

const SIDE = 48, SIZE = 324;
const STEPS_A_FRAME = 5, SECONDS_AN_EPOCH = 0.3;
const KERNEL_NAMES = { outline: "outline", edge: "vertical edges", sharpen: "sharpen", emboss: "emboss", blur: "blur", shift: "shift", identity: "identity", own: "your own" };
const IMAGES = { house: "house", stripes: "rings", pixel: "one bright pixel" };
const BORDERS = { replicate: "repeat edge pixels", zeros: "zeros", padded: "zeros, added to the image first" };
const PROMPTS = {
  drag: "Drag a head off its tap, change the sharpness, or drag the square in the image to another pixel. Compare the two outputs.",
  learned: "These heads have been trained. Drag them, or put them on the taps to start over.",
  learn: "Nine heads start at random; gradient descent moves them until their sum is the kernel.",
  replay: "The heads of a trained image model, epoch by epoch. Shades: where the layer attends.",
};

// Paint a canvas cell by cell: `color(bytes, n)` writes the color of cell n.
function fillCells(canvas, color) {
  const context = canvas.getContext("2d");
  if (canvas.cells?.width !== canvas.width) {
    canvas.cells = context.createImageData(canvas.width, canvas.height);
    canvas.cells.data.fill(255);
  }
  const bytes = canvas.cells.data;
  for (let n = 0; n < bytes.length / 4; n++) color(bytes, n);
  context.putImageData(canvas.cells, 0, 0);
}

// Paint numbers in gray, from black at `low` to white at `high`, unless they are there already.
function shade(canvas, values, low, high) {
  if (canvas.painted === values && canvas.cells.width === canvas.width) return;
  canvas.painted = values;
  fillCells(canvas, (bytes, n) => { bytes[4 * n] = bytes[4 * n + 1] = bytes[4 * n + 2] = (255 * (values[n] - low)) / (high - low); });
}

export const label = "Nine heads and a convolution";

export function mount(stage, { signal }) {
  stage.classList.add("convolution");
  const still = stillness();
  const fresh = () => ({
    mode: "drag", kernel: [...KERNELS.outline], kernelName: "outline", image: picture("house", SIDE),
    dilation: 1, stride: 1, border: "replicate", query: [24, 17], tied: true, alpha: 4,
    heads: [], trails: null, run: null, seed: 0, record: null, layer: 0, epoch: 0,
  });
  let state = fresh(), learning; // a module, loaded when it is asked for
  const kept = [];
  const onTaps = () => OFFSETS.map(([i, j], h) => [i * state.dilation, j * state.dilation, state.alpha, state.kernel[h]]);
  state.heads = onTaps();

  // The heads to show: those of the record have a spread, sigma = 1 / sqrt(2 alpha).
  const shown = () => (state.mode === "replay" && state.record
    ? state.record.heads[state.epoch][state.layer].map(([row, column, sigma]) => [row, column, 0.5 / sigma ** 2, 1 / 9])
    : state.heads);

  const draw = eachFrame(render, signal);
  const colors = palette(signal, draw);

  // --- The neighborhood: pixels around the query, and the heads over them.
  const ground = html("canvas", { class: "cells", "aria-hidden": "true" });
  const scene = drawing(SIZE, SIZE, "Neighborhood of the query, with nine heads");
  const mesh = svg("path", { class: "mesh" }), square = svg("rect", { class: "query" }), lines = svg("path", { class: "ties" }), taps = svg("path", { class: "taps" });
  scene.append(mesh, square, taps, lines);
  const nodes = OFFSETS.map((_, h) => {
    const spread = svg("circle", { class: "spread" }), trail = svg("path", { class: "trail" });
    const text = svg("text", { y: 21, class: "weight" }), dot = svg("circle", { r: 8, class: "dot" });
    const node = svg("g", {}, svg("circle", { r: 15, class: "hit" }), dot, text);
    scene.append(spread, trail);
    const told = draggable(node, {
      root: scene, label: `Head ${h + 1}`, signal,
      text: () => {
        const [row, column, , weight] = shown()[h];
        return `attends ${whereabouts(row, column)}${state.mode === "replay" ? "" : `; weight ${weightText(weight)}`}`;
      },
      from: () => { const [row, column] = shown()[h]; return [toPlace(column), toPlace(row)]; },
      move: (x, y) => moveTo(h, toOffset(y), toOffset(x), true),
      nudge: (dx, dy) => moveTo(h, round(state.heads[h][0] + dy / 10), round(state.heads[h][1] + dx / 10), false),
    });
    return { node, spread, trail, text, dot, told };
  });
  scene.append(...nodes.map(x => x.node));

  const round = x => Math.round(10 * x) / 10;
  // Pixels (in a replay, tokens) from the query to the edge of the drawing, without a half.
  const reach = () => (state.mode === "replay" ? state.record.reach[state.layer] : 2 * state.dilation + 1);
  const unit = () => SIZE / (2 * reach() + 1);
  const toPlace = offset => SIZE / 2 + offset * unit();
  const toOffset = at => (at - SIZE / 2) / unit();

  function moveTo(h, row, column, snap) {
    if (state.mode === "replay") return;
    stopLearning();
    if (state.mode === "learn") setMode("drag");
    const near = x => Math.abs(x - Math.round(x)) < 0.17;
    const place = snap && near(row) && near(column) ? [Math.round(row), Math.round(column)] : [row, column];
    const limit = reach() + 0.4;
    state.heads[h] = [...place.map(x => Math.min(limit, Math.max(-limit, x))), ...state.heads[h].slice(2)];
    state.trails = null;
    draw();
  }

  // --- The four images.
  const views = Object.fromEntries(["image", "attention", "convolution", "difference"].map(name => {
    const canvas = cells(SIDE, SIDE, { image: "The image", attention: "Output of attention", convolution: "Output of the convolution", difference: "" }[name]);
    const title = html("span", {}, { image: "Image", attention: "Attention", convolution: "Convolution", difference: "Difference" }[name]);
    return [name, { canvas, title, node: html("div", { class: "view" }, title, html("div", { class: "over" }, canvas)) }];
  }));
  const over = drawing(SIDE, SIDE, "The query in the image");
  const window_ = svg("rect", { class: "window" });
  const mark = svg("g", { class: "mark" }, svg("circle", { r: 5, class: "hit" }), window_, svg("rect", { class: "pixel", x: -0.5, y: -0.5, width: 1, height: 1 }));
  over.append(mark);
  views.image.canvas.after(over);
  const toldQuery = draggable(mark, {
    root: over, label: "Query pixel", signal,
    text: () => `row ${state.query[0] + 1}, column ${state.query[1] + 1}`,
    from: () => [state.query[1] + 0.5, state.query[0] + 0.5],
    move: (x, y) => moveQuery(Math.floor(y), Math.floor(x)),
    nudge: (dx, dy) => moveQuery(state.query[0] + dy, state.query[1] + dx),
  });
  const moveQuery = (...at) => {
    state.query = at.map(x => Math.min(SIDE - 1, Math.max(0, x)));
    draw();
  };
  // A press anywhere on the image brings the query there.
  over.addEventListener("click", event => { const [x, y] = place(over, event); moveQuery(Math.floor(y), Math.floor(x)); }, { signal });

  // --- Error and bound, as numbers and on a logarithmic axis.
  const error = html("output"), limit = html("output"), why = html("p", { class: "why soft" });
  const axis = drawing(320, 40, "Largest error and bound on a logarithmic axis");
  const at = value => 12 + 296 * Math.min(1, Math.max(0, (Math.log10(value || 1e-99) + 9) / 11));
  const bar = svg("path", { class: "bar" }), dot = svg("circle", { r: 6, cy: 12, class: "error" }), edge = svg("path", { class: "bound" });
  axis.append(svg("path", { class: "axis", d: "M12 12H308" + [-9, -6, -3, 0].map(p => `M${at(10 ** p)} 8v8`).join("") }), bar, edge, dot);
  for (const [power, text] of [[-9, "≤ 10⁻⁹"], [-6, "10⁻⁶"], [-3, "10⁻³"], [0, "1"]]) axis.append(svg("text", { x: at(10 ** power), y: 36, class: "tick" }, text));
  const numbers = html("div", { class: "measures numbers" },
    html("span", {}, svg("svg", { viewBox: "0 0 14 14", "aria-hidden": "true" }, svg("circle", { cx: 7, cy: 7, r: 5, class: "error" })), "largest error ", error),
    html("span", {}, svg("svg", { viewBox: "0 0 14 14", "aria-hidden": "true" }, svg("path", { d: "M7 1v12", class: "bound" })), "proved bound ", limit), axis, why);

  // --- Controls.
  const alpha = slider({
    label: "Sharpness α", min: 0, max: 73, step: 1, value: positionFor(4), signal,
    show: position => showAlpha(alphaAt(position)),
    change: position => {
      stopLearning();
      Object.assign(state, { alpha: alphaAt(position), ownAlphas: false });
      state.heads = state.heads.map(([row, column, , weight]) => [row, column, state.alpha, weight]);
      draw();
    },
  });
  const place_ = button("Put heads on the taps", () => { tie(); draw(); }, signal);
  const begin = choice({ label: "Start", options: { soft: "soft heads", sharp: "sharp heads, α = 20" }, change: () => startLearning(), signal });
  const again = button("New random start", () => startLearning(), signal);
  const go = button("Pause", () => (still ? learnSome(150) : running.running ? running.stop() : running.start(), draw()), signal);
  const told = html("p", { class: "told numbers" }), status = html("p", { class: "spoken", role: "status" });
  const layer = choice({ label: "Layer", options: { 0: "1" }, change: value => { state.layer = Number(value); draw(); }, signal });
  const epoch = slider({ label: "Epoch", min: 0, max: 1, step: 1, value: 0, change: value => { replaying.stop(); state.epoch = value; draw(); }, signal });
  const play = button("Play", () => {
    if (replaying.running) replaying.stop();
    else { if (state.epoch === lastEpoch()) state.epoch = 0; replaying.start(); }
    draw();
  }, signal);
  const groups = {
    drag: html("div", { class: "controls" }, alpha.node, place_),
    learn: html("div", { class: "controls" }, go, again, begin.node),
    replay: html("div", { class: "controls" }, ...(still ? [] : [play]), layer.node, epoch.node),
  };

  const kernel = choice({ label: "Kernel", options: KERNEL_NAMES, value: "outline", signal, change: name => {
    state.kernelName = name;
    if (name !== "own") setKernel(KERNELS[name]);
  } });
  const taps9 = OFFSETS.map(([i, j], tap) => {
    const input = html("input", { type: "number", step: "any", min: -1000, max: 1000, "aria-label": `Tap at row ${i}, column ${j}`.replaceAll("-", "−") });
    input.addEventListener("input", () => {
      const value = input.valueAsNumber;
      if (!Number.isFinite(value)) return;
      kernel.select.value = state.kernelName = "own";
      setKernel(state.kernel.map((x, n) => (n === tap ? Math.min(1000, Math.max(-1000, value)) : x)), input);
    }, { signal });
    // What is in use stands in the box, also after an empty or a huge number.
    input.addEventListener("change", () => { input.value = Number(state.kernel[tap].toFixed(4)); }, { signal });
    return input;
  });
  const image = choice({ label: "Image", options: IMAGES, signal, change: name => setImage(picture(name, SIDE)) });
  const file = html("input", { type: "file", accept: "image/*" });
  file.addEventListener("change", () => { readImage(file.files[0]); file.value = ""; }, { signal });
  const upload = html("label", { class: "md-button upload" }, "Your own image", file);
  const stays = "It stays in your browser.", said = html("span", { class: "soft", role: "status" }, stays);
  const option = (label, options, name, change = () => {}) => choice({ label, options, signal, change: value => {
    const before = state[name];
    state[name] = name === "border" ? value : Number(value);
    change(before);
    draw();
  } });
  const border = option("Border", BORDERS, "border"), stride = option("Stride", { 1: "1", 2: "2", 3: "3" }, "stride");
  // Dilation moves the taps; heads keep their places between them, unless they are learned.
  const dilation = option("Dilation", { 1: "1", 2: "2", 3: "3" }, "dilation", before => {
    if (state.tied) state.heads = state.heads.map(([row, column, ...rest]) => [row, column].map(x => (x * state.dilation) / before).concat(rest));
    if (state.mode === "learn") startLearning();
  });
  const modes = Object.entries({ drag: "Drag", learn: "Learn", replay: "Replay" }).map(([mode, text]) => [mode, button(text, () => enter(mode), signal)]);
  const prompt = html("p", { class: "prompt" });
  const made = html("div", { class: "made" }, html("div", { class: "views" }, ...Object.values(views).map(x => x.node)), numbers);
  const settings = html("div", { class: "settings" },
    html("div", { class: "kernel" }, kernel.node, html("div", { class: "nine", role: "group", "aria-label": "Numbers of the kernel" }, ...taps9)),
    html("div", { class: "controls" }, image.node, upload, said, border.node, stride.node, dilation.node));
  stage.append(
    html("div", { class: "controls modes" }, ...modes.map(x => x[1]), button("Reset", reset, signal)), prompt,
    html("div", { class: "two" }, html("div", { class: "left" }, html("div", { class: "over neighborhood" }, ground, scene), ...Object.values(groups), told, status), made), settings);

  // --- What the controls do.
  function tie() {
    stopLearning();
    if (state.mode !== "drag") setMode("drag");
    state.tied = true;
    state.trails = null;
    state.ownAlphas = false;
    alpha.set(positionFor(state.alpha));
    state.heads = onTaps();
  }

  function setKernel(numbers, edited) {
    state.kernel = [...numbers];
    taps9.forEach((input, tap) => { if (input !== edited) input.value = Number(numbers[tap].toFixed(4)); });
    if (state.mode === "learn") return startLearning();
    if (state.tied) state.heads = state.heads.map((head, h) => [...head.slice(0, 3), state.kernel[h]]);
    draw();
  }

  function setImage(values) { state.image = values; said.textContent = stays; draw(); }

  // Decoded and scaled in the page; nothing leaves it.
  async function readImage(blob) {
    if (!blob) return;
    try {
      const bitmap = await createImageBitmap(blob);
      const context = html("canvas", { width: SIDE, height: SIDE }).getContext("2d", { willReadFrequently: true });
      const scale = SIDE / Math.min(bitmap.width, bitmap.height), width = bitmap.width * scale, height = bitmap.height * scale;
      context.imageSmoothingQuality = "high";
      context.drawImage(bitmap, (SIDE - width) / 2, (SIDE - height) / 2, width, height);
      if (!image.select.querySelector("[value=own]")) image.select.append(html("option", { value: "own", disabled: "" }, "your own"));
      image.select.value = "own";
      setImage(brightness(context.getImageData(0, 0, SIDE, SIDE).data));
    } catch {
      said.textContent = "Your browser cannot read this file as an image.";
    }
  }
  stage.addEventListener("dragover", event => event.preventDefault(), { signal });
  stage.addEventListener("drop", event => { event.preventDefault(); readImage(event.dataTransfer.files[0]); }, { signal });

  const running = animation(() => learnSome(STEPS_A_FRAME), signal);
  let waited = 0;
  const replaying = animation(seconds => {
    waited += seconds;
    if (waited < SECONDS_AN_EPOCH) return true;
    waited = 0;
    state.epoch++;
    draw();
    return state.epoch < lastEpoch();
  }, signal);
  const lastEpoch = () => state.record.heads.length - 1;
  const stopLearning = () => { running.stop(); state.run = null; };

  function startLearning() {
    state.tied = false;
    state.ownAlphas = true;
    state.seed++;
    state.heads = learning.randomHeads(state.seed, state.kernel, state.dilation, begin.select.value === "sharp");
    state.run = learning.learner(state.heads, state.kernel, state.dilation);
    state.trails = state.heads.map(() => []);
    status.textContent = "";
    if (!still) running.start();
    draw();
  }

  function learnSome(steps) {
    if (!state.run) startLearning();
    while (steps-- && !state.run.done) state.run.step();
    state.heads = state.run.heads();
    state.trails.forEach((trail, h) => trail.push(state.heads[h].slice(0, 2)));
    draw();
    if (!state.run.done) return true;
    running.stop();
    status.textContent = learned();
    return false;
  }

  // What the training has reached so far.
  function learned() {
    const { steps, done } = state.run, off = state.run.error(), reached = off < 0.01 * largest(state.kernel);
    const verdict = !done ? "" : reached ? "Target kernel reached. " : "Stuck before the target kernel. ";
    return `${verdict}Start ${state.seed}, step ${steps} of ${learning.STEPS}: the heads add up to the kernel, within ${show(off)} in every entry.${reached && done ? " They need not sit on its taps: only their sum counts." : ""}`;
  }

  async function enter(mode) {
    if (mode === "replay" && !state.record) {
      const answer = await fetch(new URL("heads.json", import.meta.url), { signal });
      state.record = await answer.json();
      const { heads } = state.record;
      layer.select.replaceChildren(...heads[0].map((_, n) => html("option", { value: n }, String(n + 1))));
      set(epoch.input, { max: heads.length - 1 });
      state.record.reach = heads[0].map((_, n) => Math.ceil(largest(heads.flatMap(frame => frame[n].flatMap(x => x.slice(0, 2))))));
    }
    if (mode === "learn") learning ??= await import("./convolution_learning.mjs");
    const again = mode !== state.mode;
    setMode(mode);
    if (mode === "learn" && (again || !state.run)) startLearning();
    if (mode === "replay" && again && !still) { state.epoch = 0; replaying.start(); }
    draw();
  }

  function setMode(mode) {
    state.mode = mode;
    running.stop();
    replaying.stop();
    waited = 0;
    status.textContent = "";
    draw();
  }

  function reset() {
    running.stop();
    replaying.stop();
    state = { ...fresh(), record: state.record };
    status.textContent = "";
    said.textContent = stays;
    state.heads = onTaps();
    for (const [control, value] of [[kernel, "outline"], [image, "house"], [border, "replicate"], [stride, "1"], [dilation, "1"], [begin, "soft"], [layer, "0"]]) control.select.value = value;
    alpha.set(positionFor(4));
    setKernel(state.kernel);
  }

  // --- Drawing.
  function render() {
    const replay = state.mode === "replay";
    for (const [mode, node] of modes) node.setAttribute("aria-pressed", mode === state.mode);
    for (const [mode, node] of Object.entries(groups)) node.hidden = mode !== state.mode;
    prompt.textContent = PROMPTS[state.mode === "drag" && state.ownAlphas ? "learned" : state.mode];
    made.hidden = settings.hidden = replay;
    stage.classList.toggle("replaying", replay);
    drawNeighborhood(shown());
    if (replay) drawReplay();
    else drawOutputs();
    const done = state.run?.done;
    go.textContent = still ? "150 steps" : running.running ? "Pause" : "Continue";
    go.hidden = Boolean(done);
    play.textContent = replaying.running ? "Pause" : "Play";
    if (state.ownAlphas && !replay) {
      const middle = Math.exp(state.heads.reduce((sum, x) => sum + Math.log(x[2]), 0) / 9);
      alpha.set(Math.min(72, positionFor(middle)));
    }
    told.hidden = !replay && state.mode !== "learn";
    if (!replay && state.run) told.textContent = learned();
  }

  function drawNeighborhood(heads) {
    const far = reach(), side = 2 * far + 1, replay = state.mode === "replay", arm = Math.min(6, unit() / 5);
    drawGround(heads, far, side);
    set(square, { x: toPlace(-0.5), y: toPlace(-0.5), width: unit(), height: unit() });
    set(taps, { d: OFFSETS.map(([i, j]) => { const d = replay ? 1 : state.dilation; return `M${toPlace(j * d) - arm} ${toPlace(i * d)}h${2 * arm}m${-arm} ${-arm}v${2 * arm}`; }).join("") });
    let ties = "";
    heads.forEach(([row, column, alpha, weight], h) => {
      const { node, spread, trail, text, dot, told } = nodes[h], x = toPlace(column), y = toPlace(row);
      set(node, { transform: `translate(${x} ${y})`, "data-weight": Math.sign(weight), "aria-disabled": replay ? true : null });
      set(dot, { r: replay ? 5 : 8 });
      set(spread, { cx: x, cy: y, r: Math.min(2 * SIZE, unit() / Math.sqrt(2 * alpha)) });
      // Where heads meet, one number is enough: the largest.
      const hidden = heads.some((other, k) => Math.hypot(other[0] - row, other[1] - column) < 0.4 && (Math.abs(other[3]) - Math.abs(weight) || h - k) > 0);
      text.textContent = replay || hidden || (state.ownAlphas && Math.abs(weight) < 0.1) ? "" : weightText(weight);
      // A target outside the image: the head attends to the nearest pixel.
      const target = [row, column].map((offset, axis) => offset + state.query[axis]);
      const nearest = target.map((at, axis) => Math.min(SIDE - 1, Math.max(0, at)) - state.query[axis]);
      if (!replay && target.some(at => at < 0 || at > SIDE - 1) && state.border !== "padded") ties += `M${x} ${y}L${toPlace(nearest[1])} ${toPlace(nearest[0])}`;
      else if (!replay && state.tied) ties += `M${x} ${y}L${toPlace(OFFSETS[h][1] * state.dilation)} ${toPlace(OFFSETS[h][0] * state.dilation)}`;
      const path = replay ? state.record.heads.slice(0, state.epoch + 1).map(frame => frame[state.layer][h]) : state.trails?.[h] ?? [];
      set(trail, { d: path.map(([i, j], n) => `${n ? "L" : "M"}${toPlace(j).toFixed(1)} ${toPlace(i).toFixed(1)}`).join("") });
      told();
    });
    set(lines, { d: ties });
    set(scene, { class: `drawing${replay ? " fixed" : ""}` });
  }

  // Pixels around the query, pale; in a replay, the layer's mean weight on each offset.
  function drawGround(heads, far, side) {
    if (ground.width !== side) {
      set(ground, { width: side, height: side });
      set(mesh, { d: Array.from({ length: side - 1 }, (_, n) => `M${((n + 1) * SIZE) / side} 0v${SIZE}M0 ${((n + 1) * SIZE) / side}h${SIZE}`).join("") });
    }
    const weights = state.mode === "replay" ? effectiveKernel(heads, far) : null, most = weights && largest(weights);
    const { paper, query } = colors;
    fillCells(ground, (bytes, n) => {
      const i = state.query[0] + Math.floor(n / side) - far, j = state.query[1] + (n % side) - far;
      const inside = weights || (i >= 0 && j >= 0 && i < SIDE && j < SIDE);
      const gray = inside && !weights ? 255 * state.image[i * SIDE + j] : 0;
      const part = weights ? 0.75 * Math.sqrt(weights[n] / most) : 0.45;
      for (let c = 0; c < 3; c++) bytes[4 * n + c] = paper[c] + part * ((weights ? query[c] : gray) - paper[c]);
      bytes[4 * n + 3] = inside ? 255 : 0; // clear outside the image: the style sheet hatches it
    });
  }

  let range = {};
  function drawOutputs() {
    const { dilation, stride, border } = state;
    const found = compare(state.image, SIDE, SIDE, state.heads, state.kernel, { dilation, stride, border }, kept);
    const side = Math.ceil(SIDE / stride);
    for (const name of ["attention", "convolution", "difference"]) if (views[name].canvas.width !== side) set(views[name].canvas, { width: side, height: side });
    // One gray scale for both outputs: that of the convolution.
    if (range.of !== found.convolution) {
      range = { of: found.convolution, low: Infinity, high: -Infinity };
      for (const x of found.convolution) { range.low = Math.min(range.low, x); range.high = Math.max(range.high, x); }
      if (range.high - range.low < 1e-9) { range.low = Math.min(range.low, 0); range.high = Math.max(range.high, 1); }
    }
    const { low, high } = range, { paper, query } = colors, full = (high - low) / 4;
    shade(views.image.canvas, state.image, 0, 1);
    shade(views.attention.canvas, found.attention, low, high);
    shade(views.convolution.canvas, found.convolution, low, high);
    fillCells(views.difference.canvas, (bytes, n) => {
      const part = Math.min(1, Math.sqrt(Math.abs(found.attention[n] - found.convolution[n]) / full));
      for (let c = 0; c < 3; c++) bytes[4 * n + c] = paper[c] + part * (query[c] - paper[c]);
    });
    set(window_, { x: -dilation - 0.5, y: -dilation - 0.5, width: 2 * dilation + 1, height: 2 * dilation + 1 });
    set(mark, { transform: `translate(${state.query[1] + 0.5} ${state.query[0] + 0.5})` });
    toldQuery();
    const zeros = border === "zeros", worst = zeros ? found.inside : Math.max(found.inside, found.edge);
    error.textContent = show(worst);
    limit.textContent = show(found.bound);
    set(dot, { cx: at(worst) });
    set(bar, { d: `M12 12H${at(found.bound)}` });
    set(edge, { d: `M${at(found.bound)} 2v20` });
    why.textContent = (zeros ? `Inside the image. At the border the error is ${show(found.edge)}: attention cannot pad with zeros. ` : "")
      + (found.proved ? "Heads on the taps: this is the theorem’s bound, with ε(α)." : "Heads off the taps: the bound counts the weight each head leaves off its nearest tap.");
    views.difference.title.textContent = `Difference (0 to ${show(full)})`;
    views.difference.canvas.setAttribute("aria-label", `Difference of the two outputs; largest ${show(Math.max(found.inside, found.edge))}`);
  }

  function drawReplay() {
    const { heads, side } = state.record, now = heads[state.epoch][state.layer], start = heads[0][state.layer];
    if (epoch.input.valueAsNumber !== state.epoch) epoch.set(state.epoch);
    const wide = now.filter(([, , sigma]) => sigma > reach()).length;
    told.textContent = `Layer ${state.layer + 1} after ${state.epoch} of ${lastEpoch()} epochs, on images of ${side} × ${side} tokens. `
      + `Heads have moved by ${moved(start, now).toFixed(2)} tokens on average, and ${sharpHeads(now)} of ${now.length} have more than half of their weight on one token. Circles: one standard deviation${wide ? `; ${wide === 1 ? "one is" : `${wide} are`} larger than the picture` : ""}.`;
  }

  setKernel(state.kernel);
  render();
}
