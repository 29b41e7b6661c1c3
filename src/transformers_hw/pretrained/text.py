"""BERT's weights into the book's encoder of texts."""

from transformers_hw.pretrained.weights import Weights, _Unpacking
from transformers_hw.transformer.bert import Bert

# A layer's parts, by our names of them.
PARTS = {
    "attention.query_proj": "attention.self.query",
    "attention.key_proj": "attention.self.key",
    "attention.value_proj": "attention.self.value",
    "attention.output_proj": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "feed_forward.hidden_proj": "intermediate.dense",
    "feed_forward.output_proj": "output.dense",
    "feed_forward_norm": "output.LayerNorm",
}


def bert_from_huggingface(weights: Weights, *, heads: int, eps: float = 1e-12) -> Bert:
    """Take the weights of a Hugging Face `BertModel`.

    Args:
        weights: Its state dict, or a safetensors file; names may begin with `bert.`.
        heads: Number of heads, `num_attention_heads` of its configuration, whose
            `hidden_act` must be `"gelu"`.
        eps: Of the layer normalisations, `layer_norm_eps` of its configuration.

    Returns:
        A model that gives the same hidden states.

    Raises:
        WeightsError: If these are other weights.
    """
    unpacking = _Unpacking(weights, "a Hugging Face BertModel")
    left = unpacking.left
    base = "bert." if "bert.embeddings.word_embeddings.weight" in left else ""
    embeddings, layers = f"{base}embeddings", f"{base}encoder.layer."
    pooler = f"{base}pooler.dense"
    vocabulary, dim = unpacking.shape(f"{embeddings}.word_embeddings.weight", 2)
    positions = f"{embeddings}.position_embeddings.weight"
    segments = f"{embeddings}.token_type_embeddings.weight"
    length = unpacking.shape(positions, 2)[0]
    # Kept by older versions, and nothing but the numbers 0, 1, 2, …
    numbers = left.get(f"{embeddings}.position_ids")
    if numbers is not None and numbers.flatten().tolist() == list(range(length)):
        del left[f"{embeddings}.position_ids"]
    model = Bert(
        vocabulary,
        dim=dim,
        depth=unpacking.depth(layers),
        heads=heads,
        hidden_dim=unpacking.shape(f"{layers}0.intermediate.dense.weight", 2)[0],
        length=length,
        segments=unpacking.shape(segments, 2)[0],
        summary=f"{pooler}.weight" in left,
        eps=eps,
        **unpacking.place,
    )
    unpacking.build(model)
    unpacking.move(positions, "positions.table")
    unpacking.part(f"{embeddings}.word_embeddings", "tokens")
    unpacking.part(f"{embeddings}.token_type_embeddings", "segments")
    unpacking.part(f"{embeddings}.LayerNorm", "norm")
    for number in range(len(model.encoder.layers)):
        for ours, theirs in PARTS.items():
            unpacking.part(
                f"{layers}{number}.{theirs}", f"encoder.layers.{number}.{ours}"
            )
    unpacking.part(pooler, "summary")
    return unpacking.fill(model)
