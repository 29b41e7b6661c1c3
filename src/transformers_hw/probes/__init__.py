r"""Probes: inspect what a model has learned.

No module of the book stores its attention weights. A probe captures them while the
model runs, or reads the parameters, and leaves the model unchanged. Read the modules in
this order:

1. `capture`: [`capture_weights`][transformers_hw.probes.capture_weights] records the
   attention weights of a model, ours or another library's.
2. `measures`: what the weights and parameters say in numbers, such as
   [`attention_rollout`][transformers_hw.probes.attention_rollout] and
   [`attention_distance`][transformers_hw.probes.attention_distance].
3. `view`: [`show`][transformers_hw.probes.show] puts the weights over the image or the
   tokens, in one HTML file or in a notebook.
"""

from transformers_hw.probes.capture import capture_weights
from transformers_hw.probes.measures import (
    attention_distance,
    attention_rollout,
    patch_filters,
    position_similarity,
)
from transformers_hw.probes.view import AttentionView, show

__all__ = [
    "AttentionView",
    "attention_distance",
    "attention_rollout",
    "capture_weights",
    "patch_filters",
    "position_similarity",
    "show",
]
