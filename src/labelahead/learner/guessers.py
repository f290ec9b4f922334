"""Prior knowledge of a campaign: the guesses of files, columns, models and class names, as columns.

The inputs of the exact learner are features followed by the deviations g − 1/C of every guesser
(`labelahead.inference.trust`).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from labelahead.data.class_names import ClassNameGuesser
from labelahead.data.columns import GuessColumn
from labelahead.data.dataset import Data, Guesses
from labelahead.data.guesses import MODEL_PREFIX, is_guess_model, stack_deviations
from labelahead.data.label_values import normalise_name
from labelahead.data.preprocessing import COLUMNS, Preprocessor
from labelahead.data.vector_files import split_joined_embedding
from labelahead.errors import InputError
from labelahead.learner.config import Source
from labelahead.learner.encoding import SENTENCES, EncodedInputs, is_encoder
from labelahead.learner.export import load_exported
from labelahead.learner.stopping import wilson_interval
from labelahead.models.encoders import TEXT, load_encoder
from labelahead.models.sentence_encoder import embed_texts

__all__ = ["CLASS_NAMES", "PriorGuesses", "describe_guesser", "gather_guesses"]

CLASS_NAMES = "class-names"
MAX_CONFUSIONS = 3  # shown to the user
TEXT_PROMPT = "This text is about {}."
IMAGE_PROMPT = "a photo of {}"


@dataclass(frozen=True, eq=False)
class PriorGuesses:
    """The guesses of a campaign.

    Attributes:
        names: Of the guessers, in the order of their columns.
        classes: The classes of the columns.
        deviations: (n, G·C) g − 1/C.
        class_names: The guesser by class names, the last one, if there is one.
    """

    names: tuple[str, ...]
    classes: tuple[str, ...]
    deviations: Tensor
    class_names: ClassNameGuesser | None = None

    def describe(self) -> str:
        """Return one sentence for the user."""
        names = ", ".join(map(describe_guesser, self.names))
        return f"prior knowledge: {names}; how much it counts is learnt from the labels"

    def append_to(self, inputs: Tensor) -> Tensor:
        """Return features (n, ...) with the columns of the guesses, (n, d + G·C)."""
        rows = inputs.flatten(1)
        return torch.cat([rows, self.deviations.to(rows.dtype)], 1)

    def rearrange(self, classes: Sequence[str]) -> "PriorGuesses":
        """Return the guesses with columns for other classes, or for the same in another order."""
        number = {normalise_name(name): i for i, name in enumerate(self.classes)}
        at = [number.get(normalise_name(name), -1) for name in classes]
        blocks = self.deviations.view(-1, len(self.names), len(self.classes))
        blocks = torch.nn.functional.pad(blocks, (0, 1))[:, :, at]  # the last column is zero
        return replace(self, classes=tuple(classes), deviations=blocks.flatten(1))

    def describe_quality(self, labelled: Tensor, labels: Tensor, trust: Tensor) -> tuple[str, ...]:
        """Return a sentence on every guesser: how often it was right, and where it was wrong.

        Args:
            labelled: (L,) positions of the labelled items.
            labels: (L,) their class numbers.
            trust: (G,) in each guesser.
        """
        blocks = self.deviations.view(-1, len(self.names), len(self.classes))[labelled]
        notes = []
        for name, block, weight in zip(self.names, blocks.unbind(1), trust.tolist(), strict=True):
            given = block.abs().sum(1) > 0
            guess, truth = block.argmax(1)[given], labels[given]
            right, count = int((guess == truth).sum()), int(given.sum())
            if not count:
                continue
            low, high = wilson_interval(right, count)
            wrong = Counter(
                (int(g), int(t)) for g, t in zip(guess, truth, strict=True) if g != t
            ).most_common(MAX_CONFUSIONS)
            said = "; ".join(
                f"{self.classes[g]!r} where it is {self.classes[t]!r} ({n})" for (g, t), n in wrong
            )
            notes.append(
                f"{describe_guesser(name)}: right for {right} of {count} labelled items "
                f"({low:.0%} to {high:.0%}), trust {weight:.2f}"
                + (f"; mistakes: {said}" if said else "")
            )
        return tuple(notes)

    def extend(self, reading: Preprocessor | None) -> Preprocessor | None:
        """Return a preprocessor that adds the guesses of further items.

        Class names are known of every item. Of a table, columns of guesses are read if it has them.
        """
        if reading is None:
            return None
        others = self.names[: len(self.names) - (self.class_names is not None)]
        width = len(others) * len(self.classes)
        if reading.kind != COLUMNS:
            return replace(reading, class_names=self.class_names, guess_width=width)
        (features,) = reading.shape
        columns = tuple(GuessColumn(_column_name(name), self.classes) for name in others)
        mean, std = (part.double().expand(features) for part in (reading.mean, reading.std))
        return replace(
            reading,
            shape=(features + width,),
            mean=torch.cat([mean, torch.zeros(width).double()]),
            std=torch.cat([std, torch.ones(width).double()]),
            columns=(*reading.columns, *columns),
            class_names=self.class_names,
        )


def _column_name(guesser: str) -> str:
    """Return the column in which a table has the guesses of a column, a file or a model."""
    return Path(guesser.removeprefix(MODEL_PREFIX)).stem


def describe_guesser(name: str) -> str:
    """Return the name of a guesser for people."""
    return "class names" if name == CLASS_NAMES else _column_name(name)


def gather_guesses(
    source: Source, data: Data, encoded: EncodedInputs, device: str = "cpu"
) -> PriorGuesses | None:
    """Collect what is known about the items before any label; None if nothing is.

    Args:
        source: Which guesses are wanted.
        data: The data set, with the guesses of its columns and of files.
        encoded: Its inputs.
        device: Where encoders run.

    Raises:
        InputError: The classes are not known, or class names cannot be compared with the items.
    """
    models = [name for name in source.guesses if is_guess_model(name)]
    if not data.guesses and not models and source.prior != CLASS_NAMES:
        return None
    classes = tuple(data.classes or source.classes)
    if len(classes) < 2:
        raise InputError(
            "guesses need the names of the classes; expected them by --classes, two or more"
        )
    guesses = {**data.guesses, **{name: _predict_by_model(name, source, data) for name in models}}
    if source.prior == CLASS_NAMES:
        names = _fit_class_names(classes, data, encoded, device)
        assert encoded.embeddings is not None
        guesses[CLASS_NAMES] = Guesses(classes, names.guess(encoded.embeddings))
    else:
        names = None
    return PriorGuesses(
        tuple(guesses), classes, stack_deviations(list(guesses.values()), classes), names
    )


def _fit_class_names(
    classes: Sequence[str], data: Data, encoded: EncodedInputs, device: str
) -> ClassNameGuesser:
    """Embed the names of the classes by the encoder of the items."""
    name = encoded.embedding
    alone = len(split_joined_embedding(name)) == 1
    known = alone and (name == SENTENCES or is_encoder(name, data))
    if not known or encoded.embeddings is None:
        raise InputError(
            f"prior is {CLASS_NAMES}, but the embedding {name!r} does not read class names; "
            f"expected texts with {SENTENCES} or an encoder by name, or pictures with a "
            "two-tower encoder such as openai/clip-vit-base-patch32"
        )
    prompt = IMAGE_PROMPT if data.images is not None else TEXT_PROMPT
    texts = [prompt.format(_spell_out(c)) for c in classes]
    made = (
        embed_texts(texts, cache=None)
        if name == SENTENCES
        else load_encoder(name, TEXT, device=device).encode_all(texts)
    )
    width = encoded.embeddings.shape[1]
    if width % made.shape[1]:
        raise InputError(
            f"prior is {CLASS_NAMES}, but {name} gives {made.shape[1]} numbers for a text and "
            f"{width} for an item; expected an encoder with one space for both"
        )
    pool = torch.ones(len(data), dtype=torch.bool).index_fill_(0, data.test, False)
    # several text columns are embedded side by side
    return ClassNameGuesser.fit(made.repeat(1, width // made.shape[1]), encoded.embeddings[pool])


def _spell_out(name: str) -> str:
    """Return a class name as words: comp.sys_mac-hardware is comp sys mac hardware."""
    for sign in "._-/":
        name = name.replace(sign, " ")
    return name


def _predict_by_model(name: str, source: Source, data: Data) -> Guesses:
    """Return the predictions of an exported model for the items."""
    folder = name.removeprefix(MODEL_PREFIX)
    model = load_exported(folder)
    wanted = {normalise_name(c) for c in (data.classes or source.classes)}
    if not any(normalise_name(c) in wanted for c in model.classes):
        raise InputError(
            f"the model {folder} knows {', '.join(model.classes[:5])}, none of which is a class of "
            "this project; expected a model that shares classes with it"
        )
    found = model.predict(source.name, id=source.id)
    row_of = {item: i for i, item in enumerate(found.items)}
    rows = [row_of.get(item, -1) for item in data.ids]
    at = torch.tensor(rows)
    p = found.probabilities[at.clamp_min(0)]
    return Guesses(model.classes, torch.where((at >= 0)[:, None], p, torch.zeros(()).double()))
