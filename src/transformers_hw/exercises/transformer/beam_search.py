"""Beam search.

A tiny decoder knows its last token only: row i of `table`, of shape (v, v), holds the
log-probabilities of the token that follows token i. Write `beam_search(table, begin,
end, beams, max_length)`. Start from a single prefix, `[begin]`, with the score 0. At
each step, extend every kept prefix by every token, and add the token's log-probability
to its score. A prefix that ends with `end` is finished: it is not extended, keeps its
score, and competes with the others. Of all these candidates together, keep the `beams`
with the highest scores. Stop after `max_length` steps, or when all kept prefixes are
finished. Return the list `[tokens, score]` of the best kept prefix, finished or not:
its tokens without `begin` (with `end`, if it is there), as a list of integers, and its
score. No two candidates tie, and scores have no length penalty.
"""

import heapq

import numpy as np

from transformers_hw.exercises.kinds import Code

exercise = Code(
    level="challenge",
    read="transformer#writing-greedy-search-the-cache-beams",
    hints=(
        "Keep a list of pairs (score, tokens), and build the list of candidates anew "
        "at each step.",
        "A finished prefix is its own only candidate, with the score it has.",
        "sorted(candidates, reverse=True)[:beams] compares the scores of pairs first.",
    ),
    points=4,
)


@exercise.cases
def cases(rng):
    """Yield a word that greedy search misses, random tables, and small limits."""
    table = [
        [0.01, 0.02, 0.57, 0.40],
        [0.25, 0.25, 0.25, 0.25],
        [0.05, 0.35, 0.32, 0.28],
        [0.02, 0.90, 0.05, 0.03],
    ]
    yield np.log(table), 0, 1, 2, 3
    pruned = [
        [0.02, 0.03, 0.50, 0.40, 0.03, 0.02],
        [0.15, 0.16, 0.17, 0.18, 0.19, 0.15],
        [0.03, 0.04, 0.43, 0.03, 0.45, 0.02],
        [0.11, 0.12, 0.10, 0.09, 0.08, 0.50],
        [0.13, 0.30, 0.14, 0.15, 0.16, 0.12],
        [0.01, 0.93, 0.02, 0.01, 0.02, 0.01],
    ]
    yield np.log(pruned), 0, 1, 2, 3
    for v, begin, end, beams, length in (
        (6, 0, 1, 2, 5),
        (8, 2, 0, 3, 6),
        (7, 1, 6, 2, 7),
        (5, 4, 2, 3, 4),
        (9, 0, 3, 2, 8),
    ):
        scores = 1.5 * rng.normal(size=(v, v))
        scores[:, end] += 0.8
        log_p = scores - np.logaddexp.reduce(scores, axis=1, keepdims=True)
        yield log_p, begin, end, beams, length
    late = [
        [0.04, 0.24, 0.66, 0.06],
        [0.24, 0.26, 0.23, 0.27],
        [0.01, 0.02, 0.55, 0.42],
        [0.23, 0.24, 0.25, 0.28],
    ]
    yield np.log(late), 0, 1, 2, 4
    yield np.log(table), 0, 1, 1, 3
    yield np.log(table), 0, 1, 5, 1


@exercise.solution
def beam_search(table, begin, end, beams, max_length):
    """Return the best prefix, and its log-probability."""
    kept = [(0.0, [begin])]
    for _ in range(max_length):
        candidates = []
        for score, tokens in kept:
            if tokens[-1] == end:
                candidates.append((score, tokens))
                continue
            for token, gain in enumerate(table[tokens[-1]]):
                candidates.append((score + gain, [*tokens, token]))
        kept = sorted(candidates, reverse=True)[:beams]
    score, tokens = kept[0]
    return [tokens[1:], score]


@exercise.right
def by_tables(table, begin, end, beams, max_length):
    """Let finished prefixes go on with a padding token, at no cost."""
    v = len(table)
    gain = np.full((v + 1, v + 1), -np.inf)
    gain[:v, :v] = table
    gain[end], gain[v] = -np.inf, -np.inf
    gain[end, v], gain[v, v] = 0.0, 0.0
    tokens, scores = np.array([[begin]]), np.zeros(1)
    for _ in range(max_length):
        total = (scores[:, None] + gain[tokens[:, -1]]).ravel()
        best = np.argsort(-total)[:beams]
        parent, token = np.divmod(best, v + 1)
        tokens = np.concatenate([tokens[parent], token[:, None]], axis=1)
        scores = total[best]
    return [[int(token) for token in tokens[0, 1:] if token < v], scores[0]]


@exercise.right
def by_two_lists(table, begin, end, beams, max_length):
    """Keep finished and open prefixes apart, and pick the best of both by a heap."""
    done, pending = [], [(0.0, (begin,))]
    for _ in range(max_length):
        grown = [
            (score + table[tokens[-1], token], (*tokens, token))
            for score, tokens in pending
            for token in range(len(table))
        ]
        best = heapq.nlargest(beams, done + grown)
        done = [pair for pair in best if pair[1][-1] == end]
        pending = [pair for pair in best if pair[1][-1] != end]
        if not pending:
            break
    score, tokens = max(done + pending)
    return [list(tokens[1:]), score]


def _search(table, begin, end, beams, max_length, rank=None, per_prefix=False):
    # Beam search over triples of score, gain of the last step, and tokens.
    kept = [(0.0, 0.0, [begin])]
    rank = rank or (lambda entry: entry[0])
    for _ in range(max_length):
        candidates = []
        for score, gain, tokens in kept:
            own = [(score, gain, tokens)]
            if tokens[-1] != end:
                own = [
                    (score + more, more, [*tokens, token])
                    for token, more in enumerate(table[tokens[-1]])
                ]
            own.sort(key=rank, reverse=True)
            candidates += own[:beams]
        candidates.sort(key=rank, reverse=True)
        kept = candidates if per_prefix else candidates[:beams]
    return kept


@exercise.wrong(
    "That is greedy search: only one prefix survives each step. Keep `beams` of them, "
    "so that a start that is a little less likely can still win."
)
def greedy(table, begin, end, beams, max_length):
    """Keep the best prefix only."""
    score, _, tokens = _search(table, begin, end, 1, max_length)[0]
    return [tokens[1:], score]


@exercise.wrong(
    "Candidates are ranked by the log-probability of their last token alone. The score "
    "of a prefix is the sum over all of its tokens; add the gain to the score so far."
)
def last_step_only(table, begin, end, beams, max_length):
    """Forget to add up."""
    kept = _search(table, begin, end, beams, max_length, rank=lambda entry: entry[1])
    _, gain, tokens = kept[0]
    return [tokens[1:], gain]


@exercise.wrong(
    "You keep the best `beams` extensions of *each* prefix, so the number of prefixes "
    "grows at every step. Let all candidates compete, and keep `beams` in total."
)
def some_of_each(table, begin, end, beams, max_length):
    """Prune within each prefix only."""
    score, _, tokens = _search(table, begin, end, beams, max_length, None, True)[0]
    return [tokens[1:], score]


@exercise.wrong(
    "Finished prefixes are extended like all others: your text goes on after its end "
    "token. Leave a prefix that ends with `end` as it is."
)
def writing_on(table, begin, end, beams, max_length):
    """Treat the end token like any other."""
    score, _, tokens = _search(table, begin, -1, beams, max_length)[0]
    return [tokens[1:], score]


@exercise.wrong(
    "You stop at the first finished prefix. Another one that is still open may have a "
    "higher score, and may keep it to its end: go on until all kept prefixes are "
    "finished."
)
def stopping_early(table, begin, end, beams, max_length):
    """Return the first prefix that is finished."""
    for length in range(1, max_length + 1):
        for score, _, tokens in _search(table, begin, end, beams, length):
            if tokens[-1] == end:
                return [tokens[1:], score]
    score, _, tokens = _search(table, begin, end, beams, max_length)[0]
    return [tokens[1:], score]


@exercise.wrong(
    "Finished prefixes drop out of the competition: they are neither extended nor "
    "kept, so only texts without an end are left. Carry them along with their scores."
)
def losing_the_finished(table, begin, end, beams, max_length):
    """Drop what is finished."""
    kept = [(0.0, [begin])]
    for _ in range(max_length):
        grown = [
            (score + gain, [*tokens, token])
            for score, tokens in kept
            if tokens[-1] != end
            for token, gain in enumerate(table[tokens[-1]])
        ]
        if not grown:
            break
        kept = sorted(grown, reverse=True)[:beams]
    return [kept[0][1][1:], kept[0][0]]


@exercise.wrong(
    "You return the best *finished* prefix, though an open one has a higher score. "
    "Return the best of all kept prefixes, finished or not."
)
def finished_first(table, begin, end, beams, max_length):
    """Prefer prefixes that have ended."""
    kept = _search(table, begin, end, beams, max_length)
    finished = [entry for entry in kept if entry[2][-1] == end]
    score, _, tokens = (finished or kept)[0]
    return [tokens[1:], score]


@exercise.wrong(
    "You divide scores by the length of the prefix. That is a length penalty, which "
    "many systems use; here the score is the plain sum."
)
def by_mean_gain(table, begin, end, beams, max_length):
    """Rank by the mean log-probability of a token."""
    kept = _search(
        table,
        begin,
        end,
        beams,
        max_length,
        rank=lambda entry: entry[0] / max(1, len(entry[2]) - 1),
    )
    score, _, tokens = kept[0]
    return [tokens[1:], score]


@exercise.wrong(
    "You set finished prefixes aside, so that none of them can be dropped. Some "
    "systems do so; here they compete, and `beams` better candidates push them out."
)
def set_aside(table, begin, end, beams, max_length):
    """Keep all finished prefixes to the end."""
    done, pending = [], [(0.0, [begin])]
    for _ in range(max_length):
        grown = [
            (score + gain, [*tokens, token])
            for score, tokens in pending
            for token, gain in enumerate(table[tokens[-1]])
        ]
        best = sorted(grown, reverse=True)[:beams]
        done += [pair for pair in best if pair[1][-1] == end]
        pending = [pair for pair in best if pair[1][-1] != end]
    score, tokens = max(done + pending)
    return [tokens[1:], score]
