"""Prior knowledge of a campaign: the guesses of files, columns, models and class names, as columns.

The inputs of the exact learner are features followed by the deviations g − 1/C of every guesser
(`labelahead.inference.trust`).
"""

import hashlib
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from labelahead.data.class_names import ClassNameGuesser
from labelahead.data.columns import GuessColumn
from labelahead.data.dataset import Data, Guesses, Images
from labelahead.data.guesses import (
    MODEL_PREFIX,
    is_guess_function,
    is_guess_model,
    is_language_model,
    parse_guesses,
    stack_deviations,
)
from labelahead.data.joined_embeddings import split_joined_embedding
from labelahead.data.label_values import normalise_name
from labelahead.data.preprocessing import COLUMN_INPUTS, Preprocessor
from labelahead.data.table_writer import probability_column_name, write_csv
from labelahead.errors import InputError
from labelahead.files import make_folder, replace_file
from labelahead.inference.exact_model import find_kernel_model
from labelahead.learner.config import Source
from labelahead.learner.encoding import (
    CUSTOM_ENCODER_PIXELS,
    MAX_ENCODER_BATCH,
    SENTENCES,
    EncodedInputs,
    is_encoder,
    read_items_for_code,
)
from labelahead.learner.export import load_exported
from labelahead.learner.guess_quality import assess_guessers
from labelahead.learner.language_model import Item
from labelahead.learner.model_kind import get_model_kind
from labelahead.models.encoder_names import TEXT
from labelahead.models.encoders import load_encoder
from labelahead.models.sentence_encoder import embed_texts
from labelahead.models.user_code import import_object

__all__ = [
    "CLASS_NAMES",
    "PriorGuesses",
    "compute_guesses",
    "describe_guesser",
    "gather_guesses",
    "list_items",
    "offer_class_names",
    "reads_class_names",
    "write_guesses",
]

CLASS_NAMES: Final = "class-names"
TEXT_PROMPT = "This text is about {}."
IMAGE_PROMPT = "a photo of {}"
SOUND_PROMPT = "This is a sound of {}."
PICTURE_PIXELS = 512  # longer side of a picture that a language model gets


@dataclass(frozen=True, eq=False)
class PriorGuesses:
    """The guesses of a campaign.

    Attributes:
        names: Of the guessers, in the order of their columns.
        classes: The classes of the columns.
        deviations: (n, G·C) g − 1/C.
        class_names: The guesser by class names, the last one, if there is one.
        former: Normalised former names of classes -> present name; None: removed.
    """

    names: tuple[str, ...]
    classes: tuple[str, ...]
    deviations: Tensor
    class_names: ClassNameGuesser | None = None
    former: Mapping[str, str | None] = field(default_factory=dict)

    def describe(self) -> str:
        """Return one sentence for the user."""
        names = ", ".join(map(describe_guesser, self.names))
        return f"prior knowledge: {names}; its weight is estimated from the labels"

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

    def describe_quality(self, model: nn.Module, labels: Tensor) -> tuple[str, ...]:
        """Return a sentence on every guesser: how often it was right, what it is worth, mistakes.

        Args:
            model: Fitted on the labels.
            labels: (L, or more) their class numbers, first those of the fit, in its order.
        """
        fitted = find_kernel_model(model)
        if fitted is None:
            return ()
        found = assess_guessers(fitted, labels[: len(fitted.support)], self.titles)
        return tuple(quality.describe(self.classes) for quality in found)

    @property
    def titles(self) -> tuple[str, ...]:
        """The names of the guessers, for people."""
        return tuple(describe_guesser(name) for name in self.names)

    def extend(self, preprocessor: Preprocessor | None) -> Preprocessor | None:
        """Return a preprocessor that adds the guesses of further items.

        Class names are known of every item. Of a table, columns of guesses are read if it has them.
        """
        if preprocessor is None:
            return None
        others = self.names[: len(self.names) - (self.class_names is not None)]
        width = len(others) * len(self.classes)
        if preprocessor.kind != COLUMN_INPUTS:
            return replace(preprocessor, class_names=self.class_names, guess_width=width)
        (features,) = preprocessor.shape
        columns = tuple(
            GuessColumn(_column_name(name), self.classes, self.former) for name in others
        )
        mean, std = (
            part.double().expand(features) for part in (preprocessor.mean, preprocessor.std)
        )
        return replace(
            preprocessor,
            shape=(features + width,),
            mean=torch.cat([mean, torch.zeros(width).double()]),
            std=torch.cat([std, torch.ones(width).double()]),
            columns=(*preprocessor.columns, *columns),
            class_names=self.class_names,
        )


def _column_name(guesser: str) -> str:
    """Return the column in which a table has the guesses of a column, a file, a model or code."""
    if is_guess_function(guesser):
        return guesser.rpartition(":")[2]
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
    functions = [name for name in source.guesses if is_guess_function(name)]
    _refuse_language_model(source.guesses)
    if not (data.guesses or models or functions) and source.prior != CLASS_NAMES:
        return None
    classes = tuple(data.classes or source.classes)
    if len(classes) < 2:
        raise InputError(
            "guesses need the names of the classes; expected them by --classes, two or more"
        )
    computed = {
        name: compute_guesses(name, classes, source, data) for name in (*models, *functions)
    }
    guesses = {**data.guesses, **computed}
    if source.prior == CLASS_NAMES:
        texts = _describe_classes(classes, source, _choose_prompt(data))
        names = _fit_class_names(texts, data, encoded, device)
        assert encoded.embeddings is not None
        guesses[CLASS_NAMES] = Guesses(classes, names.guess(encoded.embeddings))
    else:
        names = None
    former = data.former_classes
    deviations = stack_deviations(list(guesses.values()), classes, former)
    return PriorGuesses(tuple(guesses), classes, deviations, names, former)


def compute_guesses(name: str, classes: Sequence[str], source: Source, data: Data) -> Guesses:
    """Return the guesses of an exported model or of the user's own function.

    Args:
        name: model:FOLDER or file.py:function.
        classes: the class names.
        source: where the data come from.
        data: the items.
    """
    if is_guess_model(name):
        return _predict_by_model(name, source, data)
    return _guess_with_function(name, classes, source, data)


def list_items(data: Data) -> Sequence[Item]:
    """Return the items as a language model gets them: texts, rows of a table, or pictures.

    A row has all columns except the one with the ids; a table with one column of texts is a list of
    texts.
    """
    if data.images is not None:
        return _Pictures(data.images, len(data))
    if data.rows is None:
        raise InputError(
            f"{data.name} has neither texts nor columns nor pictures, and a language model reads "
            "nothing else; expected other data, or guesses from a file"
        )
    ids = None if data.records is None else data.records.id_column
    columns = {name: values for name, values in data.rows.columns.items() if name != ids}
    if len(columns) == 1:
        return ["" if value is None else str(value) for value in next(iter(columns.values()))]
    if data.rows.files and data.rows.text is not None:
        return [str(value) for value in columns[data.rows.text]]
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


class _Pictures(Sequence[Item]):
    """Pictures that are read when they are needed."""

    def __init__(self, images: Images, count: int) -> None:
        self._images, self._count = images, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        if not 0 <= index < self._count:
            raise IndexError(index)
        return self._images.render_picture(int(index), PICTURE_PIXELS)


def write_guesses(
    to: Path, name: str | None, ids: Sequence[str], classes: Sequence[str], probabilities: Tensor
) -> Path:
    """Write guesses as a table with id, guess and the probability of every class.

    Args:
        to: The file; with a `name`, the folder of a file for these items.
        name: The guesser, which names the file.
        ids: (n,) of the items.
        classes: (C,) class names.
        probabilities: (n, C); a row of zeros is no guess, and its fields are empty.

    Returns:
        The file.
    """
    if name is not None:
        of_items = hashlib.sha256("\0".join(ids).encode("utf-8", "surrogateescape")).hexdigest()
        folder = to / of_items[:16]
        make_folder(folder)
        to = folder / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', name).strip('.-') or 'guesses'}.csv"
    given = probabilities.any(1).tolist()
    best = probabilities.argmax(1).tolist()
    columns: dict[str, list[Any]] = {
        "id": list(ids),
        "guess": [classes[b] if has else None for b, has in zip(best, given, strict=True)],
    }
    for c, column in zip(classes, probabilities.T.tolist(), strict=True):
        rounded = [round(p, 6) if has else None for p, has in zip(column, given, strict=True)]
        columns[probability_column_name(c)] = rounded
    text = io.StringIO()
    write_csv(text, columns)
    replace_file(to, text.getvalue())
    return to


def _choose_prompt(data: Data) -> str:
    """Return the sentence into which the name of a class is put."""
    if data.images is not None:
        return IMAGE_PROMPT
    return TEXT_PROMPT if data.sounds is None else SOUND_PROMPT


def _describe_classes(classes: Sequence[str], source: Source, prompt: str) -> list[tuple[str, ...]]:
    """Return the texts of each class: a sentence with name and description, then its examples."""
    description = {normalise_name(k): v for k, v in source.class_descriptions.items()}
    examples = {normalise_name(k): v for k, v in source.class_examples.items()}
    described = []
    for name in classes:
        key, about = normalise_name(name), spell_out_class(name)
        if key in description:
            about = f"{about}: {description[key].rstrip('.')}"
        described.append((prompt.format(about), *examples.get(key, ())))
    return described


def _fit_class_names(
    described: Sequence[Sequence[str]], data: Data, encoded: EncodedInputs, device: str
) -> ClassNameGuesser:
    """Embed the texts of every class by the encoder of the items, and average them."""
    name = encoded.embedding
    alone = len(split_joined_embedding(name)) == 1
    known = alone and (name == SENTENCES or is_encoder(name, data))
    if not known or encoded.embeddings is None:
        raise InputError(
            f"prior is {CLASS_NAMES}, but the embedding {name!r} does not read class names; "
            f"expected texts with {SENTENCES} or an encoder by name, or pictures with a "
            "two-tower encoder such as openai/clip-vit-base-patch32, or sounds with laion/clap-htsat-unfused"
        )
    texts = [text for texts in described for text in texts]
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
    made = _average_texts(made, [len(texts) for texts in described])
    pool = torch.ones(len(data), dtype=torch.bool).index_fill_(0, data.test, False)
    # several text columns are embedded side by side
    return ClassNameGuesser.fit(made.repeat(1, width // made.shape[1]), encoded.embeddings[pool])


def _average_texts(embeddings: Tensor, counts: Sequence[int]) -> Tensor:
    """Return the mean direction (C, d) of the embeddings of so many texts per class, (sum, d)."""
    if max(counts) == 1:
        return embeddings
    rows = torch.nn.functional.normalize(embeddings.double(), dim=1)
    return torch.stack([part.mean(0) for part in torch.split(rows, list(counts))]).to(
        embeddings.dtype
    )


def spell_out_class(name: str) -> str:
    """Return a class name as words: comp.sys_mac-hardware is comp sys mac hardware."""
    for sign in "._-/":
        name = name.replace(sign, " ")
    return name


def reads_class_names(source: Source, data: Data, embedding: str, model: str) -> bool:
    """Return whether class names are guesses that may help: words, and items that are texts.

    Args:
        source: Where the data come from; with other guesses, class names are not considered.
        data: The items.
        embedding: How the items are embedded.
        model: The kind of model.
    """
    classes = tuple(data.classes or source.classes)
    return (
        not source.guesses
        and source.task == "classes"
        and not get_model_kind(model).needs_training
        and data.texts is not None
        and len(classes) > 1
        and (embedding == SENTENCES or is_encoder(embedding, data))
        and all(re.search(r"[^\W\d_]{3}", spell_out_class(name)) for name in classes)
    )


def offer_class_names(source: Source, data: Data, embedding: str, model: str) -> tuple[str, ...]:
    """Return a line that offers the class names as guesses, if they would be readable words."""
    if source.has_guesses or not reads_class_names(source, data, embedding, model):
        return ()
    return (
        "the class names are words: --prior class-names starts from their similarity to the texts "
        "and may save labels",
    )


def _refuse_language_model(sources: Sequence[str]) -> None:
    """Raise if a language model has not been asked yet: that costs money and takes a command."""
    name = next((name for name in sources if is_language_model(name)), None)
    if name is not None:
        raise InputError(
            f"guesses is {name}, and a language model is only asked by a command that can show the "
            "cost first; expected a file: `labelahead guess DATA --guesses llm:URL ... --out "
            "guesses.csv`, or in Python la.LanguageModelGuesser"
        )


def _guess_with_function(name: str, classes: Sequence[str], source: Source, data: Data) -> Guesses:
    """Call the user's function on all items, block by block."""
    function = import_object(name, "function that guesses")
    if not callable(function):
        raise InputError(
            f"guesses {name!r} is a {type(function).__name__}; expected a function of items"
        )
    items, _ = read_items_for_code(data, source.size or CUSTOM_ENCODER_PIXELS)
    parts = []
    for begin in range(0, len(data), MAX_ENCODER_BATCH):
        at = list(range(begin, min(begin + MAX_ENCODER_BATCH, len(data))))
        try:
            found = function(items(at))
        except Exception as error:
            cause = (str(error).strip().splitlines() or [""])[0]
            raise InputError(
                f"the guesses {name!r} failed on {len(at)} items with {type(error).__name__}: "
                f"{cause}; expected a class or None for each of them, or (q, C) probabilities"
            ) from error
        if found is None or isinstance(found, str) or not hasattr(found, "__len__"):
            raise InputError(
                f"the guesses {name!r} returned a {type(found).__name__} for {len(at)} items; "
                "expected a list with a class or None for each of them, or (q, C) probabilities"
            )
        parts.append(parse_guesses(found, len(at), classes, name, data.former_classes))
    return Guesses(tuple(classes), torch.cat(parts))


def _predict_by_model(name: str, source: Source, data: Data) -> Guesses:
    """Return the predictions of an exported model for the items."""
    folder = name.removeprefix(MODEL_PREFIX)
    model = load_exported(folder)
    wanted = {normalise_name(c) for c in (data.classes or source.classes)}
    wanted |= data.former_classes.keys()
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
