"""Top-p: the nucleus.

Write `nucleus(logits, p, temperature)`: the probabilities that a language model samples
its next token from. `logits` has shape (v,), one score per token of the vocabulary.
First divide by the temperature and take the softmax. Then keep the *smallest* set of
most probable tokens whose probabilities add up to at least `p`; at least one token is
always kept. Set all others to zero, and divide by the sum, so that the result is a
distribution again. It has shape (v,), in the order of `logits`. Large scores, such as
1000, must not overflow, and no two scores are equal.
"""

import numpy as np

from transformers_hw.exercises.kinds import Code

exercise = Code(
    level="core",
    read="transformer#choosing-the-next-token",
    hints=(
        "By hand: of 0.40, 0.25, 0.15, 0.12 and 0.08, p = 0.75 keeps three tokens. Two "
        "add up to 0.65 only; the third is the one that crosses 0.75, and it stays.",
        "Sort in descending order, and take running sums with np.cumsum. A token is "
        "kept if the sum of those *before* it is still less than p.",
        "np.argsort says where each sorted token came from. Assigning to "
        "result[order[:count]] puts the kept ones back in their positions.",
    ),
    points=2,
)


@exercise.cases
def cases(rng):
    """Yield the chapter's example, two temperatures, large scores, one token, all."""
    yield np.log([0.12, 0.40, 0.08, 0.25, 0.15]), 0.75, 1.0
    yield np.log([0.12, 0.40, 0.08, 0.25, 0.15]), 0.75, 2.0
    for v, p, temperature in ((7, 0.9, 0.5), (9, 0.62, 1.5), (6, 0.83, 0.8)):
        yield 1.5 * rng.normal(size=v), p, temperature
    yield np.array([1000.0, 998.5, 1001.0, 0.0]), 0.9, 1.0
    yield np.log([0.03, 0.9, 0.02, 0.05]), 0.6, 1.0
    yield np.log([0.1, 0.6, 0.3]), 1.0, 2.0


@exercise.solution
def nucleus(logits, p, temperature):
    """Return the probabilities of the kept tokens, and zeros."""
    scores = np.exp((logits - logits.max()) / temperature)
    probability = scores / scores.sum()
    order = np.argsort(-probability)
    before = np.cumsum(probability[order]) - probability[order]
    kept = order[before < p]
    result = np.zeros(len(logits))
    result[kept] = probability[kept] / probability[kept].sum()
    return result


@exercise.right
def by_counting(logits, p, temperature):
    """Take one token after the other until the sum reaches p."""
    scores = np.exp((logits - max(logits)) / temperature)
    probability = scores / sum(scores)
    kept, total = [], 0.0
    for token in sorted(range(len(logits)), key=lambda i: -logits[i]):
        kept.append(token)
        total += probability[token]
        if total >= p:
            break
    return np.array([x / total * (i in kept) for i, x in enumerate(probability)])


@exercise.right
def by_infinite_scores(logits, p, temperature):
    """Set the dropped scores to minus infinity, and take the softmax again."""
    scaled = logits / temperature

    def softmax(x):
        return np.exp(x - np.logaddexp.reduce(x))

    order = np.argsort(scaled)[::-1]
    probability = softmax(scaled[order])
    drop = np.concatenate([[False], np.cumsum(probability)[:-1] >= p])
    filtered = scaled.copy()
    filtered[order[drop]] = -np.inf
    return softmax(filtered)


@exercise.right
def by_comparing_all(logits, p, temperature):
    """Compare every token with every other: who is more probable, and by how much?"""
    probability = np.exp((logits - logits.max()) / temperature)
    probability /= probability.sum()
    ahead = (logits[None, :] > logits[:, None]) @ probability
    kept = probability * (ahead < p)
    return kept / kept.sum()


def _softmax(scores):
    scores = np.exp(scores - scores.max())
    return scores / scores.sum()


def _kept(probability, p):
    order = np.argsort(-probability)
    before = np.cumsum(probability[order]) - probability[order]
    kept = np.zeros(len(probability), dtype=bool)
    kept[order[before < p]] = True
    return kept


def _share(probability, kept):
    return probability * kept / (probability * kept).sum()


@exercise.wrong(
    "You drop the token that crosses p, so the kept ones add up to *less* than p. If "
    "the first token alone exceeds p, nothing is left. Keep the one that crosses."
)
def drops_the_crossing(logits, p, temperature):
    """Keep tokens while their sum is at most p."""
    probability = _softmax(logits / temperature)
    order = np.argsort(-probability)
    kept = np.zeros(len(logits), dtype=bool)
    kept[order[np.cumsum(probability[order]) <= p]] = True
    return _share(probability, kept)


@exercise.wrong(
    "You drop the token that crosses p, unless it is the first. The kept tokens must "
    "add up to at least p, so the one that crosses belongs to them."
)
def drops_all_but_the_first(logits, p, temperature):
    """Keep tokens while their sum is at most p, and the first."""
    probability = _softmax(logits / temperature)
    order = np.argsort(-probability)
    kept = np.zeros(len(logits), dtype=bool)
    kept[order[np.cumsum(probability[order]) <= p]] = True
    kept[order[0]] = True
    return _share(probability, kept)


@exercise.wrong(
    "You keep one token too many: after the sum has reached p, none is added. A token "
    "stays if the sum of those before it is less than p."
)
def one_too_many(logits, p, temperature):
    """Keep the token after the one that crosses, too."""
    probability = _softmax(logits / temperature)
    order = np.argsort(-probability)
    count = _kept(probability, p).sum()
    kept = np.zeros(len(logits), dtype=bool)
    kept[order[: count + 1]] = True
    return _share(probability, kept)


@exercise.wrong(
    "The right tokens are left, but their probabilities do not add up to 1. Divide by "
    "their sum."
)
def not_renormalized(logits, p, temperature):
    """Set the others to zero, and stop there."""
    probability = _softmax(logits / temperature)
    return probability * _kept(probability, p)


@exercise.wrong(
    "You sort in ascending order, so you collect the *least* probable tokens until "
    "they add up to p. Begin with the most probable one."
)
def ascending(logits, p, temperature):
    """Collect from the bottom."""
    probability = _softmax(logits / temperature)
    order = np.argsort(probability)
    before = np.cumsum(probability[order]) - probability[order]
    kept = np.zeros(len(logits), dtype=bool)
    kept[order[before < p]] = True
    return _share(probability, kept)


@exercise.wrong(
    "You filter first and apply the temperature to what is left. Here the temperature "
    "comes first: it changes the probabilities, and with them who is in the nucleus."
)
def temperature_last(logits, p, temperature):
    """Filter at temperature 1."""
    kept = _kept(_softmax(logits), p)
    return _share(_softmax(logits / temperature), kept)


@exercise.wrong(
    "You multiply the scores by the temperature. Divide by it: a temperature above 1 "
    "makes the probabilities more equal."
)
def temperature_inverted(logits, p, temperature):
    """Multiply by the temperature."""
    return nucleus(logits, p, 1 / temperature)


@exercise.wrong(
    "You divide probabilities by the temperature, which cancels when they are "
    "normalized. Divide the *logits*, before the softmax."
)
def temperature_cancels(logits, p, temperature):
    """Divide probabilities by the temperature."""
    return nucleus(logits, p, 1.0)


@exercise.wrong(
    "Your probabilities are in sorted order. Put each back in the position of its "
    "token: result[order[i]] belongs to the i-th token in sorted order."
)
def left_in_order(logits, p, temperature):
    """Return the sorted probabilities."""
    return -np.sort(-nucleus(logits, p, temperature))


@exercise.wrong(
    "You keep a share p of the *tokens*. The nucleus has a share p of the "
    "*probability*, however many tokens that takes."
)
def share_of_tokens(logits, p, temperature):
    """Keep as many tokens as p says."""
    probability = _softmax(logits / temperature)
    count = int(np.ceil(p * len(logits)))
    kept = np.zeros(len(logits), dtype=bool)
    kept[np.argsort(-probability)[:count]] = True
    return _share(probability, kept)


@exercise.wrong(
    "You set the dropped logits to 0 and take the softmax, but exp(0) is 1, not 0. Set "
    "them to minus infinity, or set the probabilities to 0."
)
def zero_logits(logits, p, temperature):
    """Replace the dropped scores by zero."""
    scaled = logits / temperature
    return _softmax(np.where(_kept(_softmax(scaled), p), scaled, 0.0))


@exercise.wrong(
    "Large scores overflow in your softmax: exp(1000) is infinite. Subtract the "
    "largest score first."
)
def overflowing(logits, p, temperature):
    """Take exponentials of the scores as they are."""
    scores = np.exp(logits / temperature)
    probability = scores / scores.sum()
    return _share(probability, _kept(probability, p))
