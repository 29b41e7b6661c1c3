// Nine Gaussian heads and the convolution they make, as in chapter 8: a head is
// [row, column, alpha, weight]. Its center is an offset, key minus query; its weights are
// the softmax of -alpha * (squared distance to the center) over all pixels of the image.
// Images are arrays of numbers, row by row.

// From here on a head is hard, as in the library: pixels that tie for nearest share it.
export const HARD = 1e30;
// The offsets of a 3 x 3 kernel, row by row.
export const OFFSETS = [-1, 0, 1].flatMap(i => [-1, 0, 1].map(j => [i, j]));

export const KERNELS = {
  outline: [-1, -1, -1, -1, 8, -1, -1, -1, -1],
  edge: [-1, 0, 1, -2, 0, 2, -1, 0, 1],
  sharpen: [0, -1, 0, -1, 5, -1, 0, -1, 0],
  emboss: [-2, -1, 0, -1, 1, 1, 0, 1, 2],
  blur: [1, 2, 1, 2, 4, 2, 1, 2, 1].map(x => x / 16),
  shift: [0, 0, 1, 0, 0, 0, 0, 0, 0],
  identity: [0, 0, 0, 0, 1, 0, 0, 0, 0],
};

const clamp = (x, low, high) => Math.min(high, Math.max(low, x));

// Weights below this share of the largest are left out: they change no digit that is shown.
const LEAST = 1e-30;

// One head's weights along one axis: a row of `length` numbers for each query, which are
// `count` positions from `first` on, `step` apart. Scores are relative to the nearest
// pixel's, n: (n-t)^2 - (k-t)^2 = (n-k)((n-t)+(k-t)), which is exact however far outside
// the target t lies. They fall on both sides of it.
export function axisWeights(center, alpha, length, count = length, first = 0, step = 1) {
  const weights = new Float64Array(count * length), shift = Math.round(center), rest = 2 * (center - shift);
  for (let i = 0; i < count; i++) {
    const row = i * length, target = first + i * step + shift, nearest = clamp(target, 0, length - 1);
    let total = 1, from = nearest, to = nearest;
    weights[row + nearest] = 1;
    const fill = k => {
      const weight = Math.exp(alpha * (nearest - k) * (nearest - target + (k - target) - rest));
      if (!(weight > LEAST)) return false;
      total += weights[row + k] = weight;
      return true;
    };
    while (from > 0 && fill(from - 1)) from--;
    while (to < length - 1 && fill(to + 1)) to++;
    for (let k = from; k <= to; k++) weights[row + k] /= total;
  }
  return weights;
}

const outputs = (length, stride) => Math.ceil(length / stride);

export function padZeros(image, rows, columns, by) {
  const wide = columns + 2 * by, padded = new Float64Array((rows + 2 * by) * wide);
  for (let i = 0; i < rows; i++)
    for (let j = 0; j < columns; j++) padded[(i + by) * wide + j + by] = image[i * columns + j];
  return padded;
}

// What the layer makes of an image: average along the rows, then along the columns, since
// the softmax over all pixels factors. With `pad`, the image gets so many zeros around it
// first, and only its own pixels are queries. `kept` keeps what heads fetched from one call
// to the next, for as long as the image is the same.
export function attend(image, rows, columns, heads, { stride = 1, pad = 0 } = {}, kept = []) {
  const down = outputs(rows, stride), across = outputs(columns, stride), result = new Float64Array(down * across);
  heads.forEach(([row, column, alpha, weight], h) => {
    if (!weight) return;
    const key = [row, column, alpha, stride, pad].join();
    if (kept[h]?.key !== key || kept[h].image !== image)
      kept[h] = { key, image, fetched: fetchBy(image, rows, columns, row, column, alpha, stride, pad) };
    const { fetched } = kept[h];
    for (let at = 0; at < result.length; at++) result[at] += weight * fetched[at];
  });
  return result;
}

function fetchBy(image, rows, columns, row, column, alpha, stride, pad) {
  const x = pad ? padZeros(image, rows, columns, pad) : image, height = rows + 2 * pad, width = columns + 2 * pad;
  const down = outputs(rows, stride), across = outputs(columns, stride);
  const fetched = new Float64Array(down * across), averaged = new Float64Array(width);
  const byRow = axisWeights(row, alpha, height, down, pad, stride);
  const byColumn = axisWeights(column, alpha, width, across, pad, stride);
  // The first and last keys that have weight.
  const from = new Int32Array(across), to = new Int32Array(across);
  for (let j = 0; j < across; j++) {
    for (from[j] = 0; !byColumn[j * width + from[j]];) from[j]++;
    for (to[j] = width - 1; !byColumn[j * width + to[j]];) to[j]--;
  }
  for (let i = 0; i < down; i++) {
    averaged.fill(0);
    for (let k = 0; k < height; k++) {
      const a = byRow[i * height + k];
      if (a) for (let l = 0, at = k * width; l < width; l++, at++) averaged[l] += a * x[at];
    }
    for (let j = 0; j < across; j++) {
      let sum = 0;
      for (let l = from[j]; l <= to[j]; l++) sum += byColumn[j * width + l] * averaged[l];
      fetched[i * across + j] = sum;
    }
  }
  return fetched;
}

// The convolution, with as much padding as keeps the size: `border` is "replicate" or "zeros".
export function convolve(image, rows, columns, kernel, { dilation = 1, stride = 1, border = "replicate" } = {}) {
  const down = outputs(rows, stride), across = outputs(columns, stride);
  const result = new Float64Array(down * across), zeros = border !== "replicate";
  OFFSETS.forEach(([u, v], tap) => {
    if (!kernel[tap]) return;
    for (let i = 0; i < down; i++) {
      const k = i * stride + u * dilation, row = clamp(k, 0, rows - 1);
      for (let j = 0; j < across; j++) {
        const l = j * stride + v * dilation, column = clamp(l, 0, columns - 1);
        if (zeros && (k !== row || l !== column)) continue;
        result[i * across + j] += kernel[tap] * image[row * columns + column];
      }
    }
  });
  return result;
}

// The chapter's bound on the weight that a head on an integer offset leaves off its target.
export const leak = alpha => Math.min(1, 4 * Math.exp(-alpha) / -Math.expm1(-3 * alpha));

// The largest share of a head's weight, over all queries, that is not on the pixel at an
// offset from the query, or on the one nearest to that if it lies outside.
export function leakFrom(head, [u, v], rows, columns, { stride = 1, pad = 0 } = {}) {
  const along = (center, offset, size) => {
    const length = size + 2 * pad, count = outputs(size, stride);
    const weights = axisWeights(center, head[2], length, count, pad, stride);
    let most = 0;
    for (let i = 0; i < count; i++) {
      const target = clamp(pad + i * stride + offset, 0, length - 1);
      let off = 0;
      for (let k = 0; k < length; k++) if (k !== target) off += weights[i * length + k];
      most = Math.max(most, off);
    }
    return most;
  };
  const a = along(head[0], u, rows), b = along(head[1], v, columns);
  return a + b - a * b;
}

// The tap that is nearest to a head.
export const nearestTap = ([row, column], dilation) =>
  3 * clamp(Math.round(row / dilation), -1, 1) + clamp(Math.round(column / dilation), -1, 1) + 4;

// How far the layer can be from the convolution, for images with entries of at most `most`:
// every head is compared with a hard one on its nearest tap, which costs 2 |w| times what it
// leaves elsewhere (the theorem's bound if it is on the tap), and then the hard heads' sums
// with the taps. `proved` says that the theorem alone gives the bound.
export function bound(heads, kernel, most, rows, columns, { dilation = 1, stride = 1, pad = 0 } = {}) {
  const missing = [...kernel];
  let total = 0, proved = true;
  for (const head of heads) {
    const tap = nearestTap(head, dilation), offset = OFFSETS[tap].map(x => x * dilation);
    const on = offset[0] === head[0] && offset[1] === head[1];
    missing[tap] -= head[3];
    proved &&= on;
    if (head[3]) total += 2 * Math.abs(head[3]) * (on ? leak(head[2]) : leakFrom(head, offset, rows, columns, { stride, pad }));
  }
  for (const rest of missing) {
    total += Math.abs(rest);
    proved &&= Math.abs(rest) < 1e-12;
  }
  return { bound: total * most, proved };
}

// Both outputs, their largest difference inside (where all taps are in the image) and at
// the border, and the bound. It covers the border too, unless only the convolution has zeros.
export function compare(image, rows, columns, heads, kernel, { dilation = 1, stride = 1, border = "replicate" } = {}, kept = []) {
  const pad = border === "padded" ? dilation : 0;
  const attention = attend(image, rows, columns, heads, { stride, pad }, kept);
  const key = [...kernel, dilation, stride, border].join();
  if (kept.convolution?.key !== key || kept.convolution.image !== image)
    kept.convolution = { key, image, values: convolve(image, rows, columns, kernel, { dilation, stride, border }) };
  const convolution = kept.convolution.values;
  const across = outputs(columns, stride);
  let inside = 0, edge = 0, most = 0;
  for (let at = 0; at < attention.length; at++) {
    const off = Math.abs(attention[at] - convolution[at]);
    const i = Math.floor(at / across) * stride, j = (at % across) * stride;
    if (i >= dilation && j >= dilation && i < rows - dilation && j < columns - dilation) inside = Math.max(inside, off);
    else edge = Math.max(edge, off);
  }
  for (const x of image) most = Math.max(most, Math.abs(x));
  return { attention, convolution, inside, edge, ...bound(heads, kernel, most, rows, columns, { dilation, stride, pad }) };
}

// The kernel that heads make at the middle of an image that reaches `radius` pixels each way.
export function effectiveKernel(heads, radius) {
  const side = 2 * radius + 1, result = new Float64Array(side * side);
  for (const [row, column, alpha, weight] of heads) {
    const p = axisWeights(row, alpha, side, 1, radius), q = axisWeights(column, alpha, side, 1, radius);
    for (let i = 0; i < side; i++) for (let j = 0; j < side; j++) result[i * side + j] += weight * p[i] * q[j];
  }
  return result;
}

export const largest = values => values.reduce((most, x) => Math.max(most, Math.abs(x)), 0);

// ---------------------------------------------------------------------------------------
// Images, with values from 0 to 1.

const SCENES = {
  // A house before a hill, below the sun.
  house(x, y) {
    if (Math.hypot(x - 0.78, y - 0.2) < 0.11) return 1;
    if (x > 0.16 && x < 0.56 && y > 0.5 && y < 0.86) {
      if (x > 0.23 && x < 0.33 && y > 0.58 && y < 0.68) return 0.1;
      if (x > 0.4 && x < 0.5 && y > 0.62) return 0.2;
      return 0.9;
    }
    if (y > 0.26 && y <= 0.5 && Math.abs(x - 0.36) < 1.1 * (y - 0.26)) return 0.3;
    if (y > 0.86) return 0.45;
    if (y > 0.62 + 0.1 * Math.cos(7 * x + 1)) return 0.35 + 0.25 * x;
    return 0.7 - 0.25 * y;
  },
  stripes: (x, y) => 0.5 + 0.5 * Math.sin(60 * (x * x + y * y)),
  // Its convolution shows the kernel, turned by 180 degrees.
  pixel: (x, y, side) => +(Math.floor(x * side) === side >> 1 && Math.floor(y * side) === side >> 1),
};

export function picture(name, side) {
  return Float64Array.from({ length: side * side }, (_, at) =>
    SCENES[name](((at % side) + 0.5) / side, (Math.floor(at / side) + 0.5) / side, side));
}

// The brightness of pixels that a canvas gives, four bytes each; clear ones are white.
export function brightness(bytes) {
  return Float64Array.from({ length: bytes.length / 4 }, (_, at) => {
    const [r, g, b, a] = bytes.slice(4 * at, 4 * at + 4);
    return 1 - (a / 255) * (1 - (0.299 * r + 0.587 * g + 0.114 * b) / 255);
  });
}

// How many heads have more than half of their weight on one offset; heads as of a record:
// [row, column, spread], where the spread is 1 / sqrt(2 alpha).
export function sharpHeads(heads, radius = 40) {
  const most = (center, alpha) => Math.max(...axisWeights(center, alpha, 2 * radius + 1, 1, radius));
  return heads.filter(([row, column, spread]) => {
    const alpha = 0.5 / spread ** 2;
    return most(row, alpha) * most(column, alpha) > 0.5;
  }).length;
}

// How far heads are from where they were, on average.
export const moved = (before, after) =>
  after.reduce((sum, [row, column], h) => sum + Math.hypot(row - before[h][0], column - before[h][1]), 0) / after.length;

// ---------------------------------------------------------------------------------------
// What the controls say.

// Sharpness at a slider's position, eight to an octave from 1/16 to 32; at its end, hard.
export const alphaAt = position => (position > 72 ? HARD : 2 ** (position / 8 - 4));
export const positionFor = alpha => clamp(8 * (Math.log2(alpha) + 4), 0, 73);
export const showAlpha = alpha => (alpha >= HARD ? "∞ (hard)" : alpha.toPrecision(2));

// A number with a minus sign and as many digits as help.
export function show(x) {
  const size = Math.abs(x);
  if (size === 0) return "0";
  if (size >= 0.001 && size < 1e5) return String(Number(x.toPrecision(3))).replace("-", "−");
  const [digits, power] = x.toExponential(1).split("e");
  const raised = [...power.replace("+", "")].map(c => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(c)]).join("");
  return `${digits} × 10${raised}`.replace("-", "−");
}

export const weightText = w => String(Number(w.toFixed(Math.abs(w) < 1 ? 2 : 1)) || 0).replace("-", "−");

// Where a head attends, in words.
export function whereabouts(row, column) {
  const part = (x, less, more) => {
    const far = Number(Math.abs(x).toFixed(2));
    return far ? `${far} ${x < 0 ? less : more}` : "";
  };
  return [part(row, "up", "down"), part(column, "left", "right")].filter(Boolean).join(", ") || "to the query itself";
}
