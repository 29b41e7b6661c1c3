// What explorables are made of: elements, sliders, draggable points, frames. Everything
// that listens or repeats takes the signal that ends it.

export function html(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(node, attributes, children) {
  set(node, attributes);
  node.append(...children);
  return node;
}

// Set attributes; null takes one away.
export function set(node, attributes) {
  for (const [name, value] of Object.entries(attributes))
    if (value === null) node.removeAttribute(name);
    else node.setAttribute(name, value);
  return node;
}

// A drawing of so many units, which scales with the page; `label` names it.
export function drawing(width, height, label) {
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "drawing", role: "group", "aria-label": label });
}

// A labeled slider. `show` writes its value; `change(value)` is called on every move.
export function slider({ label, min, max, step = "any", value, show = x => String(x), change, signal }) {
  const input = html("input", { type: "range", min, max, step });
  const output = html("output", { "aria-live": "off" }); // the input tells its value
  const node = html("label", { class: "slider" }, html("span", {}, label), input, output);
  const update = () => {
    output.textContent = show(input.valueAsNumber);
    input.setAttribute("aria-valuetext", output.textContent);
  };
  input.value = value;
  update();
  input.addEventListener("input", () => { update(); change(input.valueAsNumber); }, { signal });
  return { node, input, set(x) { input.value = x; update(); } };
}

export function button(text, action, signal) {
  const node = html("button", { type: "button", class: "md-button" }, text);
  node.addEventListener("click", () => action(node), { signal });
  return node;
}

// A checkbox with its label; `change(checked)`.
export function toggle({ label, value = false, change, signal }) {
  const input = html("input", { type: "checkbox" });
  input.checked = value;
  input.addEventListener("change", () => change(input.checked), { signal });
  return { node: html("label", { class: "toggle" }, input, html("span", {}, label)), input };
}

// A list to choose from: `options` maps values to texts; `change(value)`.
export function choice({ label, options, value, change, signal }) {
  const select = html("select", {}, ...Object.entries(options).map(([key, text]) => html("option", { value: key }, text)));
  select.value = value ?? Object.keys(options)[0];
  select.addEventListener("change", () => change(select.value), { signal });
  return { node: html("label", { class: "choice" }, html("span", {}, label), select), select };
}

// Where a pointer is, in the units of a drawing.
export function place(root, event) {
  const { x, y } = new DOMPoint(event.clientX, event.clientY).matrixTransform(root.getScreenCTM().inverse());
  return [x, y];
}

// Let a node of a drawing be dragged by mouse or finger, and moved by the keyboard.
//   root: the drawing · label: what it is · text(): its value in words, for screen readers
//   from(): where it is, in the drawing's units, so that it keeps its distance from the
//     pointer; without it, it comes to the pointer
//   move(x, y): it is dragged to a place, in the drawing's units
//   nudge(dx, dy): an arrow key moved it by steps of 1 (with Shift: 10), y pointing down;
//     Home and End ask for more than there is room for
//   range: { min, max, now() }, if its value is one number
// Call the returned function after the value changed in any way.
export function draggable(node, { root, label, text, from, move, nudge, range, signal }) {
  set(node, { tabindex: 0, role: "slider", "aria-label": label, "aria-valuenow": 0, class: `${node.getAttribute("class") ?? ""} handle` });
  if (range) set(node, { "aria-valuemin": range.min, "aria-valuemax": range.max });
  else set(node, { "aria-roledescription": "movable point" });
  const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1], PageUp: [0, -10], PageDown: [0, 10], Home: [-1000, 0], End: [1000, 0] };
  let held = [0, 0];
  node.addEventListener("pointerdown", event => {
    event.preventDefault();
    node.classList.add("pointed"); // no focus ring for mouse and finger
    node.focus({ preventScroll: true });
    node.setPointerCapture(event.pointerId);
    if (from) { const at = place(root, event); held = from().map((x, c) => x - at[c]); }
  }, { signal });
  node.addEventListener("blur", () => node.classList.remove("pointed"), { signal });
  // Chromium scrolls the page from parts of an SVG, whatever their touch-action.
  node.addEventListener("touchstart", event => event.preventDefault(), { passive: false, signal });
  node.addEventListener("pointermove", event => {
    if (node.hasPointerCapture(event.pointerId)) move(...place(root, event).map((x, c) => x + held[c]));
  }, { signal });
  node.addEventListener("keydown", event => {
    const step = steps[event.key];
    if (!step) return;
    event.preventDefault();
    node.classList.remove("pointed");
    nudge(...step.map(x => x * (event.shiftKey ? 10 : 1)));
  }, { signal });
  const told = () => set(node, { "aria-valuetext": text(), "aria-valuenow": range ? range.now() : 0 });
  told();
  return told;
}

// Call `draw` once in the next frame, however often it is asked for.
export function eachFrame(draw, signal) {
  let asked = 0;
  signal.addEventListener("abort", () => cancelAnimationFrame(asked));
  return () => {
    if (!asked && !signal.aborted) asked = requestAnimationFrame(time => { asked = 0; draw(time); });
  };
}

// Repeat `step(seconds since the last)` in every frame, from start() until it returns
// false, stop() or the page is left.
export function animation(step, signal) {
  let frame = 0, last = 0;
  const run = time => {
    frame = requestAnimationFrame(run);
    const passed = Math.min(0.1, (time - (last || time)) / 1000);
    last = time;
    if (step(passed) === false) stop();
  };
  const stop = () => { cancelAnimationFrame(frame); frame = last = 0; };
  signal.addEventListener("abort", stop);
  return { start() { if (!frame && !signal.aborted) frame = requestAnimationFrame(run); }, stop, get running() { return frame !== 0; } };
}

export const stillness = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

// A canvas of so many cells, for heat maps and images; cells stay sharp when it is scaled.
export function cells(rows, columns, label) {
  return html("canvas", { width: columns, height: rows, class: "cells", role: "img", "aria-label": label });
}

// Paint numbers on such a canvas: `colors(x)` gives [r, g, b], each from 0 to 255.
export function paint(canvas, values, colors) {
  const context = canvas.getContext("2d"), image = context.createImageData(canvas.width, canvas.height);
  for (let i = 0; i < values.length; i++) {
    const [r, g, b] = colors(values[i]);
    image.data.set([r, g, b, 255], 4 * i);
  }
  context.putImageData(image, 0, 0);
}

// The page's colors, as [r, g, b]; `changed` is called when the reader switches light and dark.
export function palette(signal, changed = () => {}) {
  const names = { ink: "--md-default-fg-color", paper: "--md-default-bg-color", query: "--book-query", key: "--book-key", value: "--book-value" };
  const probe = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const found = {};
  const read = () => {
    const style = getComputedStyle(document.body);
    for (const [name, variable] of Object.entries(names)) {
      probe.fillStyle = style.getPropertyValue(variable).trim() || "#888";
      probe.fillRect(0, 0, 1, 1);
      found[name] = [...probe.getImageData(0, 0, 1, 1).data.slice(0, 3)];
    }
  };
  read();
  const watch = new MutationObserver(() => { read(); changed(); });
  watch.observe(document.body, { attributes: true, attributeFilter: ["data-md-color-scheme"] });
  signal.addEventListener("abort", () => watch.disconnect());
  return found;
}

// Mix two colors: t = 0 gives the first.
export const mix = (a, b, t) => a.map((x, i) => Math.round(x + (b[i] - x) * Math.min(1, Math.max(0, t))));
