"""Good in training, poor in use.

A recurrent encoder–decoder was trained with teacher forcing. On *new* texts, fed the
right tokens, it predicts 98% of the next tokens right, at late positions as often as at
early ones. On the same texts, writing on its own, it starts well; after its first wrong
token, most of what follows is wrong. What is the best explanation?
"""

from transformers_hw.exercises.kinds import Choice

exercise = Choice(
    level="core",
    read="seq2seq#teacher-forcing",
    hints=(
        "The texts are the same in both tests. What differs between them?",
        "What does the decoder read at the step after its first mistake, and has it "
        "ever read such a thing in training?",
    ),
    questions=("eecs-1a",),
    options={
        "a": "It has overfitted: it knows its training texts by heart.",
        "b": "The last encoder state is too small to hold the text.",
        "c": "In training it has only read correct beginnings. Its own mistakes lead "
        "it into situations that it was never trained for.",
        "d": "The target was not shifted, so it has learned to copy its input.",
    },
    answer="c",
    reasons={
        "a": "Overfitting would show on new texts in both tests. Fed the right tokens, "
        "the model does well on them.",
        "b": "A bottleneck that loses the text would also hurt under teacher forcing: "
        "the previous token alone does not determine the next one.",
        "c": "This is exposure bias. The two tests differ only in where the decoder's "
        "inputs come from: from the right answer, or from the model itself.",
        "d": "Then it would fail from its first token on. In use, the token to be "
        "written is not there to be copied.",
    },
)
