"""The assignments: starters come from solutions, and checks say what is wrong."""

import re
import runpy
from pathlib import Path
from typing import Any

import nbformat
import pytest
import torch
from einops import rearrange
from IPython.core.inputtransformer2 import TransformerManager
from torch import nn

import transformers_hw
from transformers_hw.exercises.assignments import NAMES, Assignment, filled
from transformers_hw.exercises.assignments.vision_transformer import _Reference
from transformers_hw.exercises.kinds import Code, run

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs/assignments"
TOOL = runpy.run_path(str(ROOT / "tools/starters.py"))
CHECKED = re.compile(r'assignment\.check\(\s*"(\w+)",\s*(\w+)')
PARTS = [(name, part) for name in NAMES for part in Assignment(name).parts]


def read(name: str, kind: str) -> nbformat.NotebookNode:
    return nbformat.read(FOLDER / f"{name}_{kind}.ipynb", as_version=4)


def sources(notebook: nbformat.NotebookNode) -> list[str]:
    return [cell.source for cell in notebook.cells if cell.cell_type == "code"]


def parts_of(notebook: nbformat.NotebookNode) -> dict[str, str]:
    """Give the name of what is checked, for each part."""
    return dict(CHECKED.findall("\n".join(sources(notebook))))


def definitions(notebook: nbformat.NotebookNode) -> dict[str, Any]:
    """Run the imports and definitions of a notebook, and nothing else."""
    names: dict[str, Any] = {}
    for source in sources(notebook):
        if source.startswith("import math"):
            imports = source.partition("%matplotlib")[0]
            exec(imports, names)
        elif source.startswith(("def ", "class ")):
            kept = re.split(r"^(?=\w)(?!def |class )", source, flags=re.M)[0]
            exec(TransformerManager().transform_cell(kept), names)
    return names


@pytest.mark.parametrize("name", NAMES)
def test_the_starter_is_what_the_tool_makes_of_the_solution(name: str) -> None:
    made = nbformat.writes(TOOL["starter_of"](read(name, "solution")))
    assert made.rstrip() == (FOLDER / f"{name}_starter.ipynb").read_text().rstrip()


@pytest.mark.parametrize("name", NAMES)
def test_a_starter_gives_nothing_of_the_solution_away(name: str) -> None:
    text = "\n".join(cell.source for cell in read(name, "starter").cells)
    answers = [
        cell.source
        for cell in read(name, "solution").cells
        if "answer" in cell.metadata.get("tags", [])
    ]
    assert len(answers) in (3, 4)
    hidden = [line for answer in answers for line in answer.splitlines()]
    for source in sources(read(name, "solution")):
        for blank in TOOL["BLANK"].finditer(source + "\n"):
            hidden += blank[2].splitlines()
    # Short lines, such as closing brackets, stand in given code as well.
    hidden = [line.strip() for line in hidden if len(line.strip()) > 30]
    assert len(hidden) > 30
    assert [line for line in hidden if line in text] == []
    assert "# ---" not in text
    assert text.count("NotImplementedError(") >= len(Assignment(name).parts)
    assert text.count(TOOL["OPEN"]) == len(answers)
    for cell in read(name, "starter").cells:
        if cell.cell_type == "code":
            assert not cell.outputs
            assert cell.execution_count is None


def test_a_blank_says_where_it_is() -> None:
    source = (
        "class A:\n    def f(self):\n        # --- your code\n        x = 1\n"
        "        return x\n        # --- end\n\n\ndef g():\n    # --- your code\n"
        "    return 2\n    # --- end\n\n\nprint(g())"
    )
    cell = nbformat.v4.new_code_cell(source, metadata={"alt": "no image is left"})
    blanked = TOOL["blanked"](cell)
    assert blanked.source == (
        "class A:\n    def f(self):\n        # Your code; 2 lines are enough.\n"
        '        raise NotImplementedError("A.f")\n\n\ndef g():\n'
        '    # Your code; one line is enough.\n    raise NotImplementedError("g")\n\n\n'
        "print(g())"
    )
    assert blanked.metadata == {}
    assert cell.source == source


@pytest.mark.parametrize("name", NAMES)
def test_every_part_is_checked_once_and_counted(name: str) -> None:
    solution, assignment = read(name, "solution"), Assignment(name)
    assert list(parts_of(solution)) == list(assignment.parts)
    assert sum(part.points for part in assignment.parts.values()) == 28
    text = "\n".join(cell.source for cell in solution.cells)
    headings = re.findall(r"^## \d\..*\((\d+) points?\)$", text, re.M)
    assert sum(map(int, headings)) == 28
    assert "The code gives 28 points, and four questions give 3 points each" in text
    asked = re.findall(r"^\*\*Question (\d) \(3 points\)\.\*\*", text, re.M)
    assert asked == ["1", "2", "3", "4"]


@pytest.mark.parametrize("name", NAMES)
def test_the_committed_solution_passed_every_check(name: str) -> None:
    cells = [x for x in read(name, "solution").cells if x.cell_type == "code"]
    printed = "".join(out.get("text", "") for cell in cells for out in cell.outputs)
    assert len(re.findall(r"Right\. \d points?\.", printed)) == len(
        Assignment(name).parts
    )
    assert printed.rstrip().endswith("28 of 28 points")
    (accuracy,) = re.findall(r"test accuracy ([\d.]+)%", printed)
    assert float(accuracy) > {"vision_transformer": 95}.get(name, 90)
    drawn = [
        c for c in cells if any("image/png" in x.get("data", {}) for x in c.outputs)
    ]
    assert len(drawn) >= 4
    assert all(len(cell.metadata.get("alt", "")) > 60 for cell in drawn)


@pytest.mark.parametrize("name", NAMES)
def test_filled_in_parts_are_right_and_blank_ones_are_said_to_be_blank(
    name: str,
) -> None:
    right, blank = Assignment(name), Assignment(name)
    filled_in = definitions(read(name, "solution"))
    empty = definitions(read(name, "starter"))
    for part, written in parts_of(read(name, "starter")).items():
        assert right.check(part, filled_in[written]).passed, part
        feedback = blank.check(part, empty[written])
        assert not feedback.passed, part
        assert re.fullmatch(r"Not filled in yet: [\w.]+", str(feedback)), part
    assert right.summary().endswith("28 of 28 points")
    assert blank.summary().endswith("0 of 28 points")
    assert "not yet" in blank.summary()
    assert "not checked" in Assignment(name).summary()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("one", [0, 3, -1])
def test_a_single_blank_fails_its_own_check(name: str, one: int) -> None:
    """Other parts are filled in; what calls the blank names it."""
    parts = parts_of(read(name, "solution"))
    part = list(parts)[one]
    names = definitions(read(name, "solution"))
    names[parts[part]] = definitions(read(name, "starter"))[parts[part]]
    feedback = Assignment(name).check(part, names[parts[part]])
    assert feedback.sentence.startswith(f"Not filled in yet: {parts[part]}")


@pytest.mark.parametrize(("name", "part"), PARTS)
def test_the_known_mistakes_of_a_part_are_told_apart(name: str, part: str) -> None:
    exercise = Assignment(name).parts[part].code
    cases = exercise.inputs()
    expected = run(exercise._answer, cases, exercise.arguments)
    assert [x.error for x in expected] == [None] * len(cases)
    assert exercise.feedback(cases, expected).passed
    assert len(exercise.mistakes) >= 2
    assert exercise.hints
    for mistake, wrong in exercise.mistakes.items():
        outcomes = run(wrong.answer, cases, exercise.arguments)
        feedback = exercise.feedback(cases, outcomes)
        assert feedback.mistake == mistake
        assert feedback.sentence == wrong.sentence


VIT, CONV = NAMES
PRE_NORM = """x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.feed_forward_norm(x))"""
POST_NORM = """x = self.attention_norm(x + self.attention(x))
        return self.feed_forward_norm(x + self.feed_forward(x))"""
# What a student might write instead of a line of the solution, and what is said then.
WRONG = [
    (VIT, "patchify", "(c i j)", "(i j c)", "(i, j, c), pixel by pixel"),
    (VIT, "patchify", "(r i) (s j) c", "(i r) (j s) c", "regular gaps"),
    (VIT, "input_tokens", "[first, tokens]", "[tokens, first]", "at the end"),
    (VIT, "attention", " / math.sqrt(query.shape[-1])", "", "not scaled"),
    (VIT, "attention", "dim=-1)", "dim=-2)", "over the queries"),
    (VIT, "split_heads", '"b n (h d) ->', '"b n (d h) ->', "take turns"),
    (VIT, "join_heads", '-> b n (h d)"', '-> b n (d h)"', "take turns"),
    (VIT, "multi_head", "self.output_proj(joined)", "joined", "Heads only meet there"),
    (
        VIT,
        "layer_norm",
        "centered.square().mean(dim=-1, keepdim=True)",
        "x.var(dim=-1, keepdim=True)",
        "divides by d - 1",
    ),
    (
        VIT,
        "layer_norm",
        "(variance + eps).sqrt()",
        "(variance.sqrt() + eps)",
        "under the root",
    ),
    (VIT, "feed_forward", "F.gelu(", "F.relu(", "the ReLU"),
    (VIT, "encoder_layer", "return x + self.feed", "return self.feed", None),
    (VIT, "encoder_layer", PRE_NORM, POST_NORM, "That is post-norm"),
    (
        VIT,
        "vision_transformer",
        "self.norm(tokens)[:, 0]",
        "tokens[:, 0]",
        "final norm is missing",
    ),
    (VIT, "vision_transformer", "[:, 0]", ".mean(dim=1)", "average over the tokens"),
    (VIT, "train_step", "    optimizer.zero_grad()\n", "", "PyTorch adds to them"),
    (
        VIT,
        "train_step",
        "model(images), labels",
        "model(images).softmax(-1), labels",
        "softmax before F.cross_entropy",
    ),
    (
        VIT,
        "position_similarity",
        "unit @ unit.mT",
        "positions @ positions.mT",
        "dot products",
    ),
    (
        CONV,
        "absolute_positions",
        "[down, across]",
        "[across, down]",
        "halves are exchanged",
    ),
    (CONV, "gaussian_scores", "- query[0] - center[0]", "- query[0] + center[0]", None),
    (CONV, "score_vectors", "-2 * centers", "2 * centers", "opposite side"),
    (
        CONV,
        "relative_positions",
        "pixels[None, :] - pixels[:, None]",
        "pixels[:, None] - pixels[None, :]",
        "to the *right*",
    ),
    (
        CONV,
        "verify_limit",
        "if sharpness.isinf():",
        "if False:",
        "infinity is multiplied by 0",
    ),
    (CONV, "gelus", "torch.erf(x / math.sqrt(2))", "torch.erf(x)", "erf(x/√2)"),
    (
        CONV,
        "bert_half",
        "self.norm(x + self.output_proj(exact))",
        "x + self.output_proj(gelus(self.hidden_proj(self.norm(x)))[0])",
        "That is pre-norm",
    ),
    (CONV, "convolution", "+ a - size // 2", "- a + size // 2", None),
    (
        CONV,
        "convolution",
        "kernel[:, :, a, b].mT",
        "kernel.flip(2, 3)[:, :, a, b].mT",
        "kernel is flipped",
    ),
    (CONV, "gaussian_attention", "sums + self.bias", "sums", "bias is missing"),
    (CONV, "gaussian_attention", "h d e ->", "h e d ->", "transposed"),
    (
        CONV,
        "smoothed_loss",
        "(1 - smoothing) * right - smoothing * log_p.mean()",
        "right",
        "not smoothed",
    ),
]


@pytest.mark.parametrize(
    ("name", "part", "line", "instead", "said"),
    WRONG,
    ids=[f"{x[1]}-{i}" for i, x in enumerate(WRONG)],
)
def test_a_usual_mistake_in_the_notebook_gets_its_sentence(
    name: str, part: str, line: str, instead: str, said: str | None
) -> None:
    notebook = read(name, "solution")
    written = parts_of(notebook)[part]
    defined = re.compile(rf"^(?:def|class) {written}\(", re.M)
    count = 0
    for cell in notebook.cells:
        if cell.cell_type == "code" and defined.search(cell.source):
            count += cell.source.count(line)
            cell.source = cell.source.replace(line, instead)
    assert count, "the line is in the solution"
    feedback = Assignment(name).check(part, definitions(notebook)[written])
    assert not feedback.passed
    if said is None:  # no usual mistake, but a wrong result that is shown
        assert feedback.mistake is None
        assert feedback.detail
    else:
        assert said in feedback.sentence


def test_a_part_that_uses_a_wrong_one_says_so() -> None:
    names = definitions(read("vision_transformer", "solution"))
    assignment = Assignment("vision_transformer")
    assignment.check("layer_norm", lambda x, gamma, beta, eps: x)
    names["layer_norm"] = lambda x, gamma, beta, eps: x
    layer = names["EncoderLayer"]
    layer.forward.__globals__["layer_norm"] = names["layer_norm"]
    feedback = assignment.check("encoder_layer", layer)
    assert not feedback.passed
    assert "It uses layer_norm: mend that first." in feedback.sentence


def test_a_changed_constructor_is_noticed() -> None:
    class Network(nn.Module):
        def __init__(self, dim: int, hidden_dim: int) -> None:
            super().__init__()
            self.first = nn.Linear(dim, hidden_dim)
            self.output_proj = nn.Linear(hidden_dim, dim)

    feedback = Assignment("vision_transformer").check("feed_forward", Network)
    assert "leave it as it was" in feedback.sentence
    assert "first.weight" in feedback.sentence


def test_hints_grow_and_then_repeat() -> None:
    assignment = Assignment("vision_transformer")
    hints = assignment.parts["patchify"].code.hints
    given = [assignment.hint("patchify") for _ in range(len(hints) + 1)]
    assert given[0] == f"Hint 1 of 3: {hints[0]}"
    assert given[-2].startswith("Hint 3 of 3")
    assert given[-1].endswith("That was the last hint.")
    assert all(hint in given[-1] for hint in hints)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match="one of vision_transformer, attention"):
        Assignment("bert")
    with pytest.raises(ValueError, match="part must be one of patchify"):
        Assignment("vision_transformer").hint("gelus")
    with pytest.raises(ValueError, match="part must be one of sinusoids"):
        Assignment("attention_as_convolution").check("patchify", None)


def test_the_reference_of_the_model_is_the_books() -> None:
    """Copy weights into the book's Vision Transformer, and compare the tokens."""
    model = filled(_Reference(12, 2, 3, 20))
    book = transformers_hw.VisionTransformer(
        8, 2, num_classes=10, dim=12, depth=2, heads=3, hidden_dim=20, channels=1
    ).double()
    named = {}
    for name, tensor in model.state_dict().items():
        if name == "positions":
            named["class_position"] = tensor[0]
            named["positions.weight"] = rearrange(tensor[1:], "(r s) d -> r s d", r=4)
        else:
            new = name.replace("embed.", "patch_embedding.proj.")
            new = new.replace("layers.", "encoder.layers.")
            named[f"encoder.final_{new}" if new.startswith("norm.") else new] = tensor
    book.load_state_dict(named)
    images = torch.randn(2, 8, 8, 1, dtype=torch.float64)
    logits = model.head(model.norm(model(images))[:, 0])
    wanted = book(rearrange(images, "b i j c -> b c i j"))
    torch.testing.assert_close(logits, wanted)


def test_a_part_must_be_a_function_to_check() -> None:
    part = transformers_hw.exercises.assignments.Part(1, "attention/why_scale")
    assert not isinstance(transformers_hw.exercises.load("attention/why_scale"), Code)
    with pytest.raises(TypeError, match="has no function"):
        part.check(None)
