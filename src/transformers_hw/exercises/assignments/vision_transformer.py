"""The parts of the assignment on the Vision Transformer."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from transformers_hw.exercises.assignments import Part, filled, tensor
from transformers_hw.exercises.kinds import Code, Function
from transformers_hw.transformer import EncoderLayer, FeedForward, LayerNorm

# Images of 8 x 8 pixels in 16 patches of 2 x 2, as the notebook has them.
PATCH, PATCHES, CLASSES = 2, 16, 10

# --- joining heads ---

join = Code(
    level="warm-up",
    read="multi_head_attention#splitting-and-joining",
    hints=(
        "It is `split_heads` backwards: move the axis of heads behind the tokens, then "
        "merge it with the last axis.",
        "In einops the pattern is `b h n d -> b n (h d)`.",
    ),
)


@join.cases
def join_cases(rng):
    """Yield one image with integers, then random ones."""
    yield np.arange(12.0).reshape(1, 2, 3, 2)
    for shape in ((2, 3, 4, 5), (1, 4, 2, 3), (3, 2, 5, 1)):
        yield rng.normal(size=shape)


@join.solution
def join_heads(x):
    """Put the columns of all heads side by side."""
    return rearrange(x, "b h n d -> b n (h d)")


@join.wrong(
    "A reshape alone fills the new shape in reading order, so the numbers of one head "
    "fill whole tokens. Move the axis of heads behind the tokens first."
)
def joined_by_reshape(x):
    """Reshape without moving an axis."""
    b, h, n, d = x.shape
    return x.reshape(b, n, h * d)


@join.wrong(
    "The heads take turns in your columns. Head 1 must fill the first d columns, as "
    "`split_heads` took them: (h d), not (d h)."
)
def joined_interleaved(x):
    """Put the heads inside."""
    return rearrange(x, "b h n d -> b n (d h)")


# --- multi-head attention: an exercise with matrices, and a class with biases ---


def with_matrices(layer_class: Any) -> Function:
    """Wrap a class as the exercise's function of matrices."""

    def multi_head(x, w_q, w_k, w_v, w_o, heads):
        layer = layer_class(x.shape[1], heads).double()
        own = {"query": w_q, "key": w_k, "value": w_v, "output": w_o}
        with torch.no_grad():
            for name, matrix in own.items():
                projection = getattr(layer, f"{name}_proj")
                projection.weight.copy_(matrix.mT)  # nn.Linear stores it transposed
                projection.bias.zero_()
        return layer(x[None])[0]

    return multi_head


# --- feed-forward network ---

feed_forward = Code(
    level="core",
    read="transformer#a-softer-switch-the-gelu",
    hints=(
        "Two linear maps with a nonlinearity between them.",
        "F.gelu(x) is the exact GELU.",
    ),
)


def feed_forward_of(network_class: Any) -> Function:
    """Wrap a class as a function of tokens and sizes."""

    def run(x, dim, hidden_dim):
        like = FeedForward(dim, hidden_dim)
        return filled(network_class(dim, hidden_dim), like)(x)

    return run


@feed_forward.cases
def feed_forward_cases(rng):
    """Yield one token, then sequences."""
    yield np.array([[1.0, -2.0]]), 2, 3
    yield rng.normal(size=(2, 3, 4)), 4, 6
    yield 3 * rng.normal(size=(1, 5, 6)), 6, 2


def _network(x, dim, hidden_dim, act, last=lambda output: output):
    network: Any = filled(FeedForward(dim, hidden_dim))
    return last(network.output_proj(act(network.hidden_proj(tensor(x)))))


@feed_forward.solution
def feed_forward_solution(x, dim, hidden_dim):
    """Compute the book's network."""
    return _network(x, dim, hidden_dim, F.gelu)


@feed_forward.wrong(
    "Your nonlinearity is the ReLU, as in the first Transformer. The Vision "
    "Transformer uses the GELU."
)
def relu(x, dim, hidden_dim):
    """Use the ReLU."""
    return _network(x, dim, hidden_dim, F.relu)


@feed_forward.wrong(
    "The nonlinearity is missing, so the two linear maps act as one. Apply the GELU "
    "between them."
)
def linear(x, dim, hidden_dim):
    """Forget the GELU."""
    return _network(x, dim, hidden_dim, lambda hidden: hidden)


@feed_forward.wrong(
    "The GELU comes last in your network. It belongs between the two linear maps; "
    "behind them, it would keep the network from subtracting more than a little."
)
def gelu_last(x, dim, hidden_dim):
    """Apply the GELU to the output."""
    return _network(x, dim, hidden_dim, lambda hidden: hidden, last=F.gelu)


@feed_forward.wrong(
    "You use the approximation of the GELU by tanh. Use the exact one here, with the "
    "error function."
)
def gelu_by_tanh(x, dim, hidden_dim):
    """Approximate the GELU."""
    return _network(x, dim, hidden_dim, lambda y: F.gelu(y, approximate="tanh"))


# --- encoder layer ---

encoder_layer = Code(
    level="core",
    read="transformer#residual-connections-and-where-to-put-the-norm",
    hints=(
        "There are two steps of the same form, x + f(N(x)).",
        "In the first, f is the attention; in the second, the feed-forward network. "
        "Each has a norm of its own.",
    ),
)


def encoder_layer_of(layer_class: Any) -> Function:
    """Wrap a class as a function of tokens and sizes."""

    def run(x, dim, heads, hidden_dim):
        like = _encoder_layer(dim, heads, hidden_dim)
        return filled(layer_class(dim, heads, hidden_dim), like)(x)

    return run


def _encoder_layer(dim: int, heads: int, hidden_dim: int) -> Any:
    return filled(
        EncoderLayer(dim, heads, hidden_dim, norm="pre", activation="gelu", eps=1e-6)
    )


@encoder_layer.cases
def encoder_layer_cases(rng):
    """Yield two tokens, then batches."""
    yield np.array([[[1.0, 3.0], [-1.0, 0.0]]]), 2, 1, 3
    yield 2 * rng.normal(size=(2, 5, 6)) + 1, 6, 2, 4
    yield rng.normal(size=(1, 3, 8)), 8, 4, 5


@encoder_layer.solution
def encoder_layer_solution(x, dim, heads, hidden_dim):
    """Compute the book's layer."""
    return _encoder_layer(dim, heads, hidden_dim)(tensor(x))


@encoder_layer.wrong(
    "That is post-norm, N(x + f(x)), the order of the first Transformer. The Vision "
    "Transformer is pre-norm: x + f(N(x))."
)
def post_norm(x, dim, heads, hidden_dim):
    """Normalize the sums."""
    layer, x = _encoder_layer(dim, heads, hidden_dim), tensor(x)
    x = layer.attention_norm(x + layer.attention(x))
    return layer.feed_forward_norm(x + layer.feed_forward(x))


@encoder_layer.wrong(
    "The residual connections are missing: each half replaces the tokens. Add its "
    "result to x instead."
)
def without_residuals(x, dim, heads, hidden_dim):
    """Replace instead of adding."""
    layer, x = _encoder_layer(dim, heads, hidden_dim), tensor(x)
    x = layer.attention(layer.attention_norm(x))
    return layer.feed_forward(layer.feed_forward_norm(x))


@encoder_layer.wrong(
    "You add the normalized tokens, N(x) + f(N(x)). The residual path carries x "
    "itself; only the branch reads N(x)."
)
def normalized_residuals(x, dim, heads, hidden_dim):
    """Overwrite the tokens by their norm."""
    layer, x = _encoder_layer(dim, heads, hidden_dim), tensor(x)
    x = layer.attention_norm(x)
    x = layer.feed_forward_norm(x + layer.attention(x))
    return x + layer.feed_forward(x)


@encoder_layer.wrong(
    "Both halves read the same tokens. The feed-forward network comes second: it reads "
    "the tokens after attention has been added."
)
def in_parallel(x, dim, heads, hidden_dim):
    """Run both halves on the input."""
    layer, x = _encoder_layer(dim, heads, hidden_dim), tensor(x)
    first = layer.attention(layer.attention_norm(x))
    return x + first + layer.feed_forward(layer.feed_forward_norm(x))


@encoder_layer.wrong(
    "The norms are missing. In pre-norm, each half reads normalized tokens: "
    "x + f(N(x))."
)
def without_norms(x, dim, heads, hidden_dim):
    """Forget the norms."""
    layer, x = _encoder_layer(dim, heads, hidden_dim), tensor(x)
    x = x + layer.attention(x)
    return x + layer.feed_forward(x)


# --- the whole model ---

vision_transformer = Code(
    level="core",
    read="vision_transformer#the-model-in-four-formulas",
    hints=(
        "Five steps: patches, input tokens, all layers, the final norm, the head.",
        "nn.Linear stores its weight as (outputs, inputs). `input_tokens` wants "
        "(inputs, outputs): self.embed.weight.mT.",
        "The head reads the class token, tokens[:, 0].",
    ),
)


class _Reference(nn.Module):
    """The notebook's model, made of the book's parts."""

    def __init__(self, dim: int, depth: int, heads: int, hidden_dim: int) -> None:
        super().__init__()
        self.embed = nn.Linear(PATCH**2, dim)
        self.class_token = nn.Parameter(torch.zeros(dim))
        self.positions = nn.Parameter(torch.zeros(PATCHES + 1, dim))
        self.layers = nn.ModuleList(
            _encoder_layer(dim, heads, hidden_dim) for _ in range(depth)
        )
        self.norm = LayerNorm(dim, eps=1e-6)
        self.head = nn.Linear(dim, CLASSES)

    def forward(self, images: Tensor, *, depth: int | None = None) -> Tensor:
        """Return the tokens after the encoder, or after some of its layers."""
        pattern = "b (r i) (s j) c -> b (r s) (c i j)"
        patches = rearrange(images, pattern, i=PATCH, j=PATCH)
        first = self.class_token.expand(len(images), 1, -1)
        tokens = torch.cat([first, self.embed(patches)], dim=1) + self.positions
        for layer in self.layers[:depth]:
            tokens = layer(tokens)
        return tokens


def vision_transformer_of(model_class: Any) -> Function:
    """Wrap a class as a function of images and sizes."""

    def run(images, dim, depth, heads, hidden_dim):
        sizes = dim, depth, heads, hidden_dim
        return filled(model_class(*sizes), _Reference(*sizes))(images)

    return run


def _tokens(images: Any, sizes: tuple[int, ...], depth: int | None = None) -> Any:
    model: Any = filled(_Reference(*sizes))
    return model, model(tensor(images), depth=depth)


@vision_transformer.cases
def vision_transformer_cases(rng):
    """Yield one image, then several, for one layer and for two."""
    yield rng.normal(size=(1, 8, 8, 1)), 4, 1, 2, 3
    yield rng.normal(size=(3, 8, 8, 1)), 6, 2, 3, 5
    yield rng.normal(size=(2, 8, 8, 1)), 4, 3, 1, 6


@vision_transformer.solution
def vision_transformer_solution(images, dim, depth, heads, hidden_dim):
    """Normalize, and read the class token."""
    model, tokens = _tokens(images, (dim, depth, heads, hidden_dim))
    return model.head(model.norm(tokens)[:, 0])


@vision_transformer.wrong(
    "The final norm is missing. Pre-norm layers leave their sums unnormalized, so one "
    "more norm comes before the head."
)
def without_final_norm(images, *sizes):
    """Apply the head directly."""
    model, tokens = _tokens(images, sizes)
    return model.head(tokens[:, 0])


@vision_transformer.wrong(
    "You average over the tokens. This model reads the class token, row 0, which has "
    "collected what it needs by attention."
)
def mean_pooling(images, *sizes):
    """Read the mean of all tokens."""
    model, tokens = _tokens(images, sizes)
    return model.head(model.norm(tokens).mean(dim=1))


@vision_transformer.wrong(
    "You read the last token, a habit from language models. Here the class token comes "
    "first."
)
def last_token(images, *sizes):
    """Read the last token."""
    model, tokens = _tokens(images, sizes)
    return model.head(model.norm(tokens)[:, -1])


@vision_transformer.wrong(
    "The encoder layers are not applied. Feed the tokens through every layer of "
    "self.layers, each one reading what the one before it returned."
)
def without_layers(images, *sizes):
    """Skip the encoder."""
    model, tokens = _tokens(images, sizes, depth=0)
    return model.head(model.norm(tokens)[:, 0])


@vision_transformer.wrong(
    "You return logits for every token. Only the class token is read: pick row 0 of "
    "each image before or after the head."
)
def all_tokens(images, *sizes):
    """Apply the head to every token."""
    model, tokens = _tokens(images, sizes)
    return model.head(model.norm(tokens))


# --- one step of training ---

train_step = Code(
    level="warm-up",
    read="transformer#training",
    hints=(
        "Five lines: logits, loss, zero_grad, backward, step.",
        "F.cross_entropy takes logits and the numbers of the right classes. It applies "
        "the softmax itself.",
    ),
)


def steps_of(function: Any) -> Function:
    """Wrap one step as two, of a linear model."""

    def run(inputs, labels, weight, rate):
        return _two_steps(function, inputs, labels, weight, rate)

    return run


def _two_steps(
    function: Any, inputs: Any, labels: Any, weight: Any, rate: float
) -> Any:
    model = nn.Linear(weight.shape[1], weight.shape[0], bias=False).double()
    with torch.no_grad():
        model.weight.copy_(tensor(weight))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    inputs, labels = tensor(inputs), tensor(labels)
    losses = [function(model, optimizer, inputs, labels) for _ in range(2)]
    return [*losses, model.weight]


@train_step.cases
def train_step_cases(rng):
    """Yield batches of three sizes."""
    for n, d, k in ((2, 3, 2), (5, 4, 3), (8, 2, 6)):
        yield (
            rng.normal(size=(n, d)),
            rng.integers(0, k, size=n),
            rng.normal(size=(k, d)),
            0.5,
        )


def _step(model, optimizer, inputs, labels, act=lambda x: x, zero=True, step=True):
    loss = F.cross_entropy(act(model(inputs)), labels)
    if zero:
        optimizer.zero_grad()
    if step:
        loss.backward()
        optimizer.step()
    return loss.item()


@train_step.solution
def train_step_solution(inputs, labels, weight, rate):
    """Take two steps, each with fresh gradients."""
    return _two_steps(_step, inputs, labels, weight, rate)


@train_step.wrong(
    "The second step still has the gradients of the first: PyTorch adds to them. Call "
    "optimizer.zero_grad() before loss.backward()."
)
def without_zero_grad(inputs, labels, weight, rate):
    """Let gradients add up."""

    def step(*arguments):
        return _step(*arguments, zero=False)

    return _two_steps(step, inputs, labels, weight, rate)


@train_step.wrong(
    "The weights do not change. loss.backward() computes the gradients, and after it "
    "optimizer.step() uses them; zero_grad() between the two would erase them."
)
def without_step(inputs, labels, weight, rate):
    """Compute the loss only."""

    def step(*arguments):
        return _step(*arguments, step=False)

    return _two_steps(step, inputs, labels, weight, rate)


@train_step.wrong(
    "You apply a softmax before F.cross_entropy, which applies one itself. Give it the "
    "logits; two softmaxes in a row make the gradients small."
)
def softmax_twice(inputs, labels, weight, rate):
    """Apply softmax before the loss."""

    def step(*arguments):
        return _step(*arguments, act=lambda logits: logits.softmax(dim=-1))

    return _two_steps(step, inputs, labels, weight, rate)


# --- similarity of positions ---

similarity = Code(
    level="warm-up",
    read="vision_transformer#positions",
    hints=(
        "The cosine of two vectors is their dot product divided by both lengths.",
        "Divide every row by its length first. Then one matrix product gives all "
        "cosines.",
    ),
)


@similarity.cases
def similarity_cases(rng):
    """Yield two vectors, then tables."""
    yield np.array([[3.0, 4.0], [0.0, 2.0]])
    yield rng.normal(size=(5, 3))
    yield rng.normal(size=(4, 8)) + 1


@similarity.solution
def position_similarity(positions):
    """Return the cosine of each pair of rows."""
    rows = positions / np.linalg.norm(positions, axis=-1, keepdims=True)
    return rows @ rows.T


@similarity.wrong(
    "These are dot products. Divide by the lengths of both vectors, so that each "
    "position has similarity 1 with itself."
)
def dot_products(positions):
    """Forget the lengths."""
    return positions @ positions.T


@similarity.wrong(
    "You compare the columns, which are features. Each row belongs to a position: the "
    "result must have as many rows and columns as there are positions."
)
def of_columns(positions):
    """Compare features."""
    columns = positions / np.linalg.norm(positions, axis=0, keepdims=True)
    return columns.T @ columns


PARTS = {
    "patchify": Part(
        3,
        "vision_transformer/patchify",
        lambda written: lambda image, size: written(image[None], size)[0],
    ),
    "input_tokens": Part(3, "vision_transformer/input_tokens"),
    "attention": Part(3, "attention/attention_by_einsum"),
    "split_heads": Part(1, "multi_head_attention/split_heads"),
    "join_heads": Part(1, join),
    "multi_head": Part(
        3,
        "multi_head_attention/multi_head",
        with_matrices,
        needs=("attention", "split_heads", "join_heads"),
    ),
    "layer_norm": Part(3, "transformer/layer_norm"),
    "feed_forward": Part(2, feed_forward, feed_forward_of),
    "encoder_layer": Part(
        3,
        encoder_layer,
        encoder_layer_of,
        needs=(
            "attention",
            "split_heads",
            "join_heads",
            "multi_head",
            "layer_norm",
            "feed_forward",
        ),
    ),
    "vision_transformer": Part(
        3,
        vision_transformer,
        vision_transformer_of,
        needs=("patchify", "input_tokens", "layer_norm", "encoder_layer"),
    ),
    "train_step": Part(2, train_step, steps_of),
    "position_similarity": Part(1, similarity),
}
