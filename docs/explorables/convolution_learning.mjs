// Nine heads learn a kernel, in the page. The loss is the squared difference between the
// layer's kernel, at the middle of an image that reaches `radius` pixels each way, and the
// kernel that is wanted: the mean squared error on images of independent pixels with
// variance one.
import { axisWeights, effectiveKernel, largest, OFFSETS } from "./convolution_math.mjs";

// The wanted kernel on the (2 radius + 1)^2 offsets.
export function spreadKernel(kernel, dilation, radius) {
  const side = 2 * radius + 1, wanted = new Float64Array(side * side);
  OFFSETS.forEach(([i, j], tap) => { wanted[(radius + i * dilation) * side + radius + j * dilation] += kernel[tap]; });
  return wanted;
}

// Loss and gradient. `parameters` has four numbers a head: row, column, log alpha, weight.
export function lossAndGradient(parameters, wanted, radius) {
  const side = 2 * radius + 1, count = parameters.length / 4, gradient = new Float64Array(parameters.length);
  const error = Float64Array.from(wanted, x => -x), weights = [];
  for (let h = 0; h < count; h++) {
    const [row, column, log, w] = parameters.slice(4 * h, 4 * h + 4);
    const p = axisWeights(row, Math.exp(log), side, 1, radius), q = axisWeights(column, Math.exp(log), side, 1, radius);
    weights.push([p, q]);
    for (let i = 0; i < side; i++) for (let j = 0; j < side; j++) error[i * side + j] += w * p[i] * q[j];
  }
  let loss = 0;
  for (const e of error) loss += e * e;
  const along = new Float64Array(side), across = new Float64Array(side);
  for (let h = 0; h < count; h++) {
    const [p, q] = weights[h], [row, column, log, w] = parameters.slice(4 * h, 4 * h + 4), alpha = Math.exp(log);
    along.fill(0);
    across.fill(0);
    for (let i = 0; i < side; i++)
      for (let j = 0; j < side; j++) {
        const e = 2 * error[i * side + j];
        along[i] += e * q[j];
        across[j] += e * p[i];
      }
    const [byWeight, byRow, byLogRow] = axisGradient(p, along, row, alpha, radius);
    const [, byColumn, byLogColumn] = axisGradient(q, across, column, alpha, radius);
    gradient.set([w * byRow, w * byColumn, w * (byLogRow + byLogColumn), byWeight], 4 * h);
  }
  return { loss, gradient };
}

// For y = sum of p_x f_x: y, dy/dcenter = 2 alpha Cov(x, f), dy/dlog alpha = -alpha Cov((x - center)^2, f).
function axisGradient(p, f, center, alpha, radius) {
  let mean = 0, square = 0, y = 0, xf = 0, sf = 0;
  for (let i = 0; i < p.length; i++) {
    const x = i - radius - center;
    mean += p[i] * x;
    square += p[i] * x * x;
    y += p[i] * f[i];
    xf += p[i] * x * f[i];
    sf += p[i] * x * x * f[i];
  }
  return [y, 2 * alpha * (xf - mean * y), -alpha * (sf - square * y)];
}

// Numbers in [0, 1) that a seed determines.
export function random(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let x = Math.imul(state ^ (state >>> 15), state | 1);
    x ^= x + Math.imul(x ^ (x >>> 7), x | 61);
    return ((x ^ (x >>> 14)) >>> 0) / 4294967296;
  };
}

// Where nine heads start: anywhere within two taps of the query, soft or sharp, with small
// weights of either sign.
export function randomHeads(seed, kernel, dilation, sharp = false) {
  const next = random(seed), even = () => 2 * next() - 1, reach = 2 * dilation;
  const alpha = () => (sharp ? 20 : (0.4 / dilation ** 2) * (1 + 0.3 * even()));
  return OFFSETS.map(() => [reach * even(), reach * even(), alpha(), 0.2 * even() * largest(kernel)]);
}

export const STEPS = 1500;

// Adam from given heads toward a kernel. Sharpness has a floor that rises from 0.3 to 8, so
// that heads first find each other and then settle; large weights that cancel cost a little
// for the first half. step() makes one step; heads() gives where they are.
export function learner(start, kernel, dilation) {
  const radius = dilation + 4, wanted = spreadKernel(kernel, dilation, radius), scale = largest(kernel) || 1;
  const x = Float64Array.from(start.flatMap(([row, column, alpha, weight]) => [row, column, Math.log(alpha), weight]));
  const first = new Float64Array(x.length), second = new Float64Array(x.length);
  let steps = 0;
  const heads = () => start.map((_, h) => [x[4 * h], x[4 * h + 1], Math.exp(x[4 * h + 2]), x[4 * h + 3]]);
  function step() {
    const done = ++steps / STEPS, rise = Math.min(1, done / 0.8), low = Math.log(0.3 / dilation ** 2);
    const floor = low + rise * (Math.log(8) - low), cost = 0.02 * scale * Math.max(0, 1 - done / 0.5);
    const rate = 0.04 * (done < 0.7 ? 1 : Math.max(0, 1 + Math.cos((Math.PI * (done - 0.7)) / 0.3)) / 2);
    const { loss, gradient } = lossAndGradient(x, wanted, radius);
    for (let i = 0; i < x.length; i++) {
      const kind = i % 4, size = kind === 3 ? scale : kind === 2 ? 1 : dilation;
      const slope = gradient[i] + (kind === 3 ? (cost * x[i]) / Math.hypot(x[i], 0.01 * scale) : 0);
      first[i] += 0.1 * (slope - first[i]);
      second[i] += 0.01 * (slope * slope - second[i]);
      const mean = first[i] / (1 - 0.9 ** steps), square = second[i] / (1 - 0.99 ** steps);
      x[i] -= (rate * size * mean) / (Math.sqrt(square) + 1e-10 * scale * scale);
      if (kind === 2) x[i] = Math.max(floor, x[i]);
    }
    return loss;
  }
  // The largest difference between the kernels, at any offset.
  const error = () => largest(effectiveKernel(heads(), radius).map((y, i) => y - wanted[i]));
  return { step, heads, error, get steps() { return steps; }, get done() { return steps >= STEPS; } };
}

// A whole run: the heads at its end, and the kernels' largest difference.
export function learn(kernel, dilation, seed, sharp = false) {
  const run = learner(randomHeads(seed, kernel, dilation, sharp), kernel, dilation);
  while (run.steps < STEPS) run.step();
  return { heads: run.heads(), error: run.error() };
}
