"""Greedy decoding: with our key-value cache, without it, and by other libraries.

Heads that share keys and values are compared with heads that have copies of them.
"""

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from einops import repeat
from measuring import Pair, Row
from torch import Tensor, nn

from transformers_hw.pretrained import from_torch
from transformers_hw.transformer import LanguageModel, Transformer

VOCAB_SIZE, DIM, HEADS, HIDDEN, DEPTH = 1000, 256, 4, 1024, 3
SOURCE, BATCH, PADDING, BEGIN, END = 32, 4, 0, 1, 2
# Of a language model: heads, width of a head, layers, and tokens to decode.
LM_HEADS, LM_HEAD_DIM, LM_DEPTH, STEPS = 8, 64, 2, 16


def rows() -> Iterator[Row]:
    """Yield all comparisons."""
    for length in (64, 256):
        case = f"{length} tokens, {DEPTH} + {DEPTH} layers, dim {DIM}, batch {BATCH}"
        for peer, build in (
            ("ours, no cache", _without_cache),
            ("torch", _torch),
            ("Hugging Face", _hugging_face),
        ):
            built, quick = build(length), length == 64
            yield Row("decoding", case, peer, "generation", built, quick)
    for length in (1024, 4096):
        for groups in (2, 1):
            case = f"{LM_HEADS} heads, {groups} of keys and values, {length} tokens so"
            case = f"{case} far, {LM_DEPTH} layers, batch {BATCH}"
            built, quick = _shared(groups, length), length == 1024
            peer = f"{LM_HEADS} of keys and values"
            yield Row("grouped_queries", case, peer, "decoding", built, quick)


def _source() -> Tensor:
    return torch.randint(3, VOCAB_SIZE, (BATCH, SOURCE))


def _model(*, final_norm: bool) -> Transformer:
    model = Transformer(
        VOCAB_SIZE,
        dim=DIM,
        heads=HEADS,
        hidden_dim=HIDDEN,
        depth=DEPTH,
        norm="post",
        final_norm=final_norm,
        padding_token=PADDING,
    )
    # Larger embeddings give varied tokens; without the end token, every sequence has
    # the same length.
    with torch.no_grad():
        model.embedding.weight.mul_(3.0)
        model.embedding.weight[END].zero_()
    return model.eval()


def _pair(ours: Transformer, theirs: Callable[[Tensor], Tensor], length: int) -> Pair:
    source = _source()

    def generate() -> Tensor:
        options = {"begin": BEGIN, "end": END, "max_length": length}
        with torch.inference_mode():
            return ours.generate(source, **options)

    def peer() -> Tensor:
        with torch.inference_mode():
            return theirs(source)

    written = generate()
    if written.shape != (BATCH, length):
        raise RuntimeError(f"expected {length} tokens, got {tuple(written.shape)}.")
    count = BATCH * length
    return Pair(generate, peer, unit="tokens", count=count, tolerance=0.0)


def _greedy(
    logits: Callable[[Tensor, Tensor], Tensor], memory: Tensor, length: int
) -> Tensor:
    tokens = torch.full((BATCH, 1), BEGIN)
    for _ in range(length):
        following = logits(tokens, memory)[:, -1]
        following[:, PADDING] = -torch.inf
        tokens = torch.cat([tokens, following.argmax(-1, keepdim=True)], dim=1)
    return tokens[:, 1:]


def _without_cache(length: int) -> Callable[[], Pair]:
    def build() -> Pair:
        model = _model(final_norm=False)

        def theirs(source: Tensor) -> Tensor:
            def logits(tokens: Tensor, memory: Tensor) -> Tensor:
                return model.decode(tokens, memory, source)

            return _greedy(logits, model.encode(source), length)

        return _pair(model, theirs, length)

    return build


def _torch(length: int) -> Callable[[], Pair]:
    def build() -> Pair:
        theirs = nn.Transformer(
            DIM, HEADS, DEPTH, DEPTH, HIDDEN, dropout=0.0, batch_first=True
        ).eval()
        ours = _model(final_norm=True)
        encoder, decoder = from_torch(theirs)
        ours.encoder.load_state_dict(encoder.state_dict())
        ours.decoder.load_state_dict(decoder.state_dict())
        table, positions = ours.embedding.weight, ours.positions

        def embed(tokens: Tensor) -> Tensor:
            return positions(F.embedding(tokens, table) * DIM**0.5)

        def logits(tokens: Tensor, memory: Tensor) -> Tensor:
            mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
            seen = theirs.decoder(
                embed(tokens), memory, tgt_mask=mask, tgt_is_causal=True
            )
            return F.linear(seen, table)

        def generate(source: Tensor) -> Tensor:
            return _greedy(logits, theirs.encoder(embed(source)), length)

        return _pair(ours, generate, length)

    return build


def _hugging_face(length: int) -> Callable[[], Pair]:
    def build() -> Pair:
        from transformers import MarianConfig, MarianMTModel

        ours = _model(final_norm=False)
        sizes = {"attention_heads": HEADS, "ffn_dim": HIDDEN, "layers": DEPTH}
        config = MarianConfig(
            vocab_size=VOCAB_SIZE,
            d_model=DIM,
            max_position_embeddings=length + SOURCE,
            scale_embedding=True,
            activation_function="relu",
            pad_token_id=PADDING,
            eos_token_id=END,
            forced_eos_token_id=None,
            decoder_start_token_id=BEGIN,
            attn_implementation="sdpa",
            **{f"{side}_{k}": n for k, n in sizes.items() for side in SIDES},
        )
        theirs = MarianMTModel(config).eval()
        theirs.load_state_dict(_marian(ours, length + SOURCE), strict=False)
        options = {
            "do_sample": False,
            "max_new_tokens": length,
            "suppress_tokens": [PADDING],
        }

        def generate(source: Tensor) -> Tensor:
            seen = torch.ones_like(source)
            return theirs.generate(source, attention_mask=seen, **options)[:, 1:]

        return _pair(ours, generate, length)

    return build


def _shared(groups: int, length: int) -> Callable[[], Pair]:
    """Decode from a full cache, with shared heads and with copies of them."""
    size = LM_HEADS // groups

    def model(kv_heads: int) -> LanguageModel:
        width = LM_HEADS * LM_HEAD_DIM
        sizes = {"dim": width, "heads": LM_HEADS, "depth": LM_DEPTH}
        options = {"kv_heads": kv_heads, "positions": "rotary"}
        return LanguageModel(VOCAB_SIZE, **sizes, **options).eval()

    def build() -> Pair:
        ours, theirs = model(groups), model(LM_HEADS)
        weights = ours.state_dict()
        for name in weights:
            if ".key_proj." in name or ".value_proj." in name:
                axes = "(g d) ... -> (g r d) ..."
                weights[name] = repeat(weights[name], axes, g=groups, r=size)
        theirs.load_state_dict(weights)
        tokens = torch.randint(VOCAB_SIZE, (BATCH, STEPS))
        shape = (2, LM_DEPTH, BATCH, groups, length, LM_HEAD_DIM)
        earlier = torch.randn(shape)
        copies = repeat(earlier, "two n b g k d -> two n b (g r) k d", r=size)

        def decode(model: LanguageModel, keys: Tensor, values: Tensor) -> Tensor:
            cache, logits = model.make_cache(), []
            for (own, _), key, value in zip(cache.layers, keys, values, strict=True):
                own.append(key, value)
            with torch.inference_mode():
                for token in tokens.split(1, dim=1):
                    logits.append(model(token, cache=cache))
            return torch.cat(logits, dim=1)

        return Pair(
            lambda: decode(ours, *earlier),
            lambda: decode(theirs, *copies),
            unit="tokens",
            count=BATCH * STEPS,
        )

    return build


SIDES = ("encoder", "decoder")
NAMES = {
    "self_attention_norm": "self_attn_layer_norm",
    "cross_attention_norm": "encoder_attn_layer_norm",
    "attention_norm": "self_attn_layer_norm",
    "feed_forward_norm": "final_layer_norm",
    "self_attention": "self_attn",
    "cross_attention": "encoder_attn",
    "attention": "self_attn",
    "feed_forward.hidden_proj": "fc1",
    "feed_forward.output_proj": "fc2",
    "query_proj": "q_proj",
    "key_proj": "k_proj",
    "value_proj": "v_proj",
    "output_proj": "out_proj",
}


def _marian(ours: Transformer, length: int) -> dict[str, Tensor]:
    """Return our weights under Marian's names."""
    table = ours.embedding.weight
    weights = {
        "model.shared.weight": table,
        "lm_head.weight": table,
        "final_logits_bias": torch.zeros(1, len(table)),
    }
    for side in SIDES:
        weights[f"model.{side}.embed_tokens.weight"] = table
        embeddings = ours.positions.embeddings(length)
        weights[f"model.{side}.embed_positions.weight"] = embeddings
        for name, x in ours.get_submodule(side).state_dict().items():
            for own, marian in NAMES.items():
                if f".{own}." in name:
                    name = name.replace(f".{own}.", f".{marian}.")
            weights[f"model.{side}.{name}"] = x
    return weights
