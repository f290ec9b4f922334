"""What people leave with: a learnt model, how items become its inputs, its classes, and what is known of it.

    model.json     classes, how items are read, which network, the data, the labels, the accuracy
    weights.pt     tensors alone
    model.onnx     the same for other programs, if it was asked for
    README.md      a card for people

Nothing in such a folder is run when it is loaded.
"""

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import version
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from labelahead.acquisition.probability import probabilities
from labelahead.campaign.card import card
from labelahead.campaign.config import parse, read_stored
from labelahead.campaign.graph import LEAST, Front, Graph, Spread, write_onnx
from labelahead.campaign.prepare import Prepared, prepare
from labelahead.campaign.run import remember
from labelahead.campaign.store import Store
from labelahead.data.columns import entry_of
from labelahead.data.dataset import Loaded
from labelahead.data.fresh import Fresh, brought_to, fresh_items, table_rows
from labelahead.data.loading import TABLES
from labelahead.data.reading import COLUMNS, PICTURES, Reading
from labelahead.data.table import Table
from labelahead.data.text import guarded
from labelahead.errors import InputError, LabelaheadError, MissingExtra, ModelError
from labelahead.extras import need
from labelahead.files import in_one_step, replace
from labelahead.learners.exact import EXACT, ExactModel, spread_of
from labelahead.linear.calibration import likelihoods
from labelahead.models import MODELS, build
from labelahead.models.sentences import DIMENSIONS, SentenceEncoder
from labelahead.train import predict

__all__ = ["BIASED", "Finished", "Predictions", "finish", "load_finished", "run_model", "write_predictions"]

FORMAT = 1
ROWS = 64  # items seen at a time
EXAMPLES = 5
NAMED = 5  # items that a message names
# An item is unlike anything labelled if its variance exceeds that of this share of the labelled items, each of which
# was left out of the labels for it.
SHARE = 0.95
BIASED = "by leaving out each label in turn; those that were chosen are hard ones, so it is commonly lower than on all"


@dataclass(frozen=True, eq=False)
class Predictions:
    """What a model says of items. variance: of the exact learner, 1 before any label; unlike: see `Finished`."""

    items: tuple[str, ...]
    classes: tuple[str, ...]
    probabilities: Tensor  # (n, C)
    variance: Tensor | None = None  # (n,)
    unlike: Tensor | None = None  # (n,) bool
    failed: Mapping[str, str] = field(default_factory=dict)  # items that could not be read, and why

    def __len__(self) -> int:
        return len(self.items)

    @property
    def labels(self) -> list[str]:
        """The likeliest class of each."""
        return [self.classes[i] for i in self.probabilities.argmax(1).tolist()]

    def columns(self) -> dict[str, list[Any]]:
        """As a table: item, class, probability, unlike_labelled (None where nobody can tell)."""
        unlike = [None] * len(self) if self.unlike is None else self.unlike.tolist()
        sure = [round(p, 6) for p in self.probabilities.amax(1).tolist()]
        return {"item": list(self.items), "class": self.labels, "probability": sure, "unlike_labelled": unlike}


@dataclass(frozen=True, eq=False)
class Finished:
    """A learnt model that predicts items it has never met.

    network: inputs -> outputs (n, C). reading: how items become inputs; None: they are handed over as the network takes
    them. about: data, labels, accuracy, and how to build the network; plain values.

    The exact learner also says which items are unlike anything labelled: those whose posterior variance exceeds
    `threshold`, the 95 % quantile of the variances that the labelled items have, each left out in turn.
    """

    network: nn.Module
    classes: tuple[str, ...]
    reading: Reading | None
    loss: str
    about: Mapping[str, Any]

    @cached_property
    def front(self) -> Front | None:
        """What stands before the network."""
        return None if self.reading is None else Front(self.reading).eval()

    @cached_property
    def spread(self) -> Spread | None:
        """Of the exact learner, once it knows a label."""
        exact = isinstance(self.network, ExactModel) and len(self.network.support)
        return Spread(self.network).eval() if exact else None  # type: ignore[arg-type]

    @cached_property
    def threshold(self) -> float | None:
        """Variances above it are unlike anything labelled."""
        return None if self.spread is None else float(torch.quantile(self.spread.alone, SHARE))

    def predict(self, items: Any, progress: Callable[[int], None] | None = None) -> Predictions:
        """What it says of items: a path or several, arrays (n, ...) as they were read, or columns by name.

        A path is a folder or zip of pictures, a picture, a table or an .npz, whatever the model was made from.
        """
        if isinstance(items, str | Path):
            items = [items]
        if isinstance(items, Sequence) and items and all(isinstance(i, str | Path) for i in items):
            parts = [self._of(part, progress) for source in items for part in self._named(source, len(items) > 1)]
            return _joined(parts)  # raises where nothing could be read
        return self._of(self._given(items), progress)

    def outputs(self, values: Tensor) -> tuple[Tensor, Tensor | None]:
        """(n, C) probabilities and (n,) variances of items as they were read, (n, *shape).

        The exact learner is as sure as its labels are right when each is left out.
        """
        out, spread = self._outputs(values)
        factor = self.about.get("spread")
        if spread is not None and factor is not None:
            return likelihoods(out[:, : len(self.classes)], factor * spread.double().clamp_min(LEAST)), spread
        p = probabilities(out, "softmax" if self.loss == "cross-entropy" else "simplex")[:, : len(self.classes)]
        return p / p.sum(1, keepdim=True).clamp_min(1e-30), spread

    def _outputs(self, values: Tensor) -> tuple[Tensor, Tensor | None]:
        out, spread = [], []
        for start in range(0, len(values), ROWS):
            part = values[start : start + ROWS]
            with torch.no_grad():
                x = part if self.front is None else self.front(part)
                if self.spread is not None:
                    assert isinstance(self.network, ExactModel)
                    spread.append(self.spread(self.spread.kernel(self.network.unit(x))))
            out.append(predict(self.network, x).double())
        both = torch.cat(out) if out else torch.zeros((0, max(len(self.classes), 2)), dtype=torch.float64)
        return both, torch.cat(spread) if spread else None

    def _encode(self, texts: list[str]) -> Tensor:
        """(n, 384) what the sentence encoder reads in texts."""
        rows = torch.empty(len(texts), DIMENSIONS)
        for _ in self._encoder.fill(texts, rows):
            pass
        return rows

    @cached_property
    def _encoder(self) -> SentenceEncoder:
        return SentenceEncoder()

    def _of(self, fresh: Fresh, progress: Callable[[int], None] | None) -> Predictions:
        if not len(fresh.values):
            none = torch.zeros((0, len(self.classes)), dtype=torch.float64)
            return Predictions((), self.classes, none, failed=fresh.failed)
        p, variance = self.outputs(fresh.values)
        if progress is not None:
            progress(len(p))
        unlike = None if variance is None or self.threshold is None else variance > self.threshold
        return Predictions(tuple(fresh.ids), self.classes, p, variance, unlike, fresh.failed)

    def _named(self, source: str | Path, several: bool) -> Iterator[Fresh]:
        if self.reading is None:
            raise InputError(
                "how items become what this model sees was done in Python; expected items in Python, as the network "
                "takes them"
            )
        for part in fresh_items(self.reading, source, self._encode):
            inside = several and (Path(source).is_dir() or Path(source).suffix.lower() in (".zip", ".npz", *TABLES))
            failed = {f"{source}/{i}": why for i, why in part.failed.items()}
            yield part._replace(ids=[f"{source}/{i}" for i in part.ids], failed=failed) if inside else part

    def _given(self, items: Any) -> Fresh:
        """Items in memory."""
        if isinstance(items, Mapping) and self.reading is not None and self.reading.kind == COLUMNS:
            columns = {str(name): list(values) for name, values in items.items()}
            table = Table(columns, range(1, 1 + max(map(len, columns.values()), default=0)), unit="row")
            values = table_rows(self.reading, table, "the table", self._encode)
        else:
            values = items if isinstance(items, Tensor) else torch.as_tensor(np.asarray(items))
            values = values.float() if values.dtype == torch.float64 else values
        shape = None if self.reading is None else self.reading.shape
        if shape is not None and tuple(values.shape[1:]) != shape:
            raise InputError(
                f"items have shape {tuple(values.shape)}; expected (n, {', '.join(map(str, shape))}), "
                f"{'columns by name' if self.reading and self.reading.kind == COLUMNS else 'as they were read'}"
            )
        return Fresh([str(i) for i in range(len(values))], values, {})

    def save(self, folder: str | Path, *, onnx: bool | None = None) -> Path:
        """A folder that can be taken elsewhere, written in one step.

        onnx: whether to write `model.onnx` (extra 'onnx'); None: where that is possible, and the card says why not.
        """
        target = Path(folder)
        values, tensors = (None, {}) if self.reading is None else self.reading.plain()
        state = {f"network.{k}": v.detach().cpu() for k, v in self.network.state_dict().items()}
        about = {"format": FORMAT, "classes": list(self.classes), "loss": self.loss, "reading": values, **self.about}
        about["threshold"] = self.threshold
        with in_one_step(target) as partial:
            partial.mkdir()
            about |= self._onnx(partial / "model.onnx", required=onnx is True) if onnx is not False else {}
            weights = state | {f"reading.{k}": t for k, t in tensors.items()}
            replace(partial / "weights.pt", lambda file: torch.save(weights, file))  # says what the disk says
            (partial / "model.json").write_text(json.dumps(about, indent=1, ensure_ascii=False), encoding="utf-8")
            (partial / "README.md").write_text(card(about), encoding="utf-8")
        return target

    def _onnx(self, path: Path, *, required: bool) -> dict[str, Any]:
        """Write it, and what there is to say of it."""
        try:
            example = self._example()
            factor = self.about.get("spread")
            graph = Graph(self.front, self.network, self.spread, self.loss, len(self.classes), factor)
            return {"onnx": write_onnx(graph, example, self.outputs(example), path)}
        except (MissingExtra, ModelError, InputError) as error:
            if required:
                raise
            return {"no_onnx": str(error)}

    def _example(self) -> Tensor:
        """(5, *shape) items of the right form, of noise."""
        if self.reading is None:
            raise InputError("the model takes inputs that are handed over in Python; expected one tensor for ONNX")
        rng = torch.Generator().manual_seed(0)
        shape = (EXAMPLES, *self.reading.shape)
        if self.reading.kind == PICTURES:
            return torch.randint(0, self.reading.white + 1, shape, generator=rng, dtype=torch.uint8)
        return torch.randn(shape, generator=rng)


def _joined(parts: Sequence[Predictions]) -> Predictions:
    """All parts as one. Raises `InputError` where not a single item could be read."""
    first, failed = parts[0], {k: why for p in parts for k, why in p.failed.items()}
    if failed and not any(len(p) for p in parts):
        some = "; ".join(f"{name} ({why})" for name, why in list(failed.items())[:NAMED])
        more = f"; and {len(failed) - NAMED} more" if len(failed) > NAMED else ""
        raise InputError(
            f"no item can be read: {some}{more}; expected at least one that can: see whether the files open elsewhere, "
            "and copy them again"
        )
    variance = [p.variance for p in parts if p.variance is not None]
    unlike = [p.unlike for p in parts if p.unlike is not None]
    return Predictions(
        tuple(i for p in parts for i in p.items),
        first.classes,
        torch.cat([p.probabilities for p in parts]),
        torch.cat(variance) if variance else None,
        torch.cat(unlike) if unlike else None,
        failed,
    )


def finish(
    ready: Prepared,
    network: nn.Module,
    labels: Mapping[int, int],
    classes: Sequence[str],
    accuracy: Mapping[str, Any],
    *,
    items: int | None = None,
) -> Finished:
    """What was learnt from these labels (position -> class), with all that is needed elsewhere.

    items: how many there are, where `ready` has a part of them.
    """
    campaign, embedding = ready.campaign, ready.campaign.data.embedding or ""
    if ":" in embedding and embedding not in ready.data.vectors:
        raise InputError(
            f"the model sees items by your own {embedding}, whose code cannot leave with it; expected vectors that "
            "come with the items: write what it makes of them into a column or an .npz, and name that as the embedding"
        )
    given = list(labels.values())
    shape = list(ready.rows.shape[1:]) if isinstance(ready.inputs, Tensor) else []
    about = {
        "labelahead": version("labelahead"),
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "data": {"name": ready.data.name, "items": items or len(ready.data), "kind": ready.data.kind},
        "labels": {name: given.count(i) for i, name in enumerate(classes)},
        "network": {
            "name": campaign.model.name,
            "width": campaign.model.width,
            "dropout": campaign.model.dropout,
            "shape": shape,
        },
        "accuracy": dict(accuracy),
        "spread": spread_of(network) if isinstance(network, ExactModel) and len(network.support) else None,
    }
    loss = "squared" if campaign.model.name == EXACT else ready.training.loss
    model = Finished(network.cpu().eval(), tuple(classes), ready.reading(), loss, about)
    _verify(model, ready)
    return model


def _verify(model: Finished, ready: Prepared) -> None:
    """Raise unless items of the pool, read as others will be, become the inputs that were learnt from."""
    reading, data = model.reading, ready.data
    at = torch.arange(min(4, len(data)))
    if reading is None or model.front is None:
        return
    if reading.kind == COLUMNS and data.rows is not None:
        columns: dict[str, Any] = {k: [values[int(i)] for i in at] for k, values in data.rows.columns.items()}
        columns |= {name: vectors[at].numpy() for name, vectors in data.vectors.items()}
        texts = {} if data.texts is None else data.texts.columns
        columns |= {k: [values[int(i)] for i in at] for k, values in texts.items()}
        entry = str if all(c.name in texts for c in reading.columns) else entry_of  # texts are what they say by now
        values = table_rows(reading, Table(columns, range(len(at)), unit="row"), data.name, model._encode, entry)
    elif reading.kind == PICTURES and data.images is not None and reading.shape[1] == reading.shape[2]:
        values = brought_to(reading, data.images.batch(at, reading.shape[1]).float())
    else:
        return
    with torch.no_grad():
        seen = model.front(values)
    if not torch.allclose(seen, ready.rows[at], rtol=1e-3, atol=1e-3):
        far = float((seen - ready.rows[at]).abs().max())
        raise LabelaheadError(
            f"items of {data.name} read anew differ from what was learnt from, by up to {far:.2g}: have the files "
            "changed? If not, this is a defect of labelahead: please report it"
        )


def write_predictions(predictions: Predictions, path: Path | None) -> str | None:
    """As CSV, or Parquet by the name, in one step; without a path the text itself."""
    columns = predictions.columns()
    if path is not None and path.suffix.lower() in (".parquet", ".pq"):
        arrow = need("pyarrow", "tables", "the form Parquet")
        parquet = need("pyarrow.parquet", "tables", "the form Parquet")
        types = (arrow.string(), arrow.string(), arrow.float64(), arrow.bool_())
        table = arrow.table(columns, schema=arrow.schema(list(zip(columns, types, strict=True))))
        replace(path, lambda file: parquet.write_table(table, file))
        return None
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    words = {None: "", True: "yes", False: "no"}
    for item, label, sure, unlike in zip(*columns.values(), strict=True):
        writer.writerow([guarded(item), guarded(label), sure, words[unlike]])
    if path is None:
        return text.getvalue()
    replace(path, text.getvalue())
    return None


def run_model(
    folder: str | Path, *, data: Loaded | None = None, network: str | None = None, trust_code: bool = False
) -> Finished:
    """The network of a campaign's last round; its data are read again, for what was taken from them.

    network: where the code of a network of one's own is now. trust_code: see `labelahead.load_model`.
    """
    own = {} if network is None else {"model.name": network}
    with Store.open(folder) as store:
        # How it was asked does not matter here: a strategy of somebody's own is not even imported.
        tables = read_stored(Path(folder) / "config.toml", own, trust_code=trust_code, without=("asking",))
        ready = prepare(parse(tables), data)
        remember(store, ready)
        rounds = store.rounds()
        if not rounds:
            raise InputError(f"{folder} has no finished round; expected one: labelahead resume {folder}")
        last, classes = rounds[-1], ready.data.classes
        trained = ready.learner(len(classes)).network(ready.campaign.seed)
        trained.load_state_dict(store.weights(last.number))
        labels = {entry.position: entry.label for entry in store.labels() if entry.round <= last.number}
    accuracy: dict[str, Any] = {
        "measured": last.accuracy,
        "on": len(ready.data.test) if last.accuracy is not None else 0,
    }
    if last.accuracy is None:
        accuracy |= {"estimated": last.loo, "how": "by leaving out each of the random first labels in turn"}
    return finish(ready, trained, labels, classes, accuracy)


def load_finished(folder: str | Path, *, network: nn.Module | str | None = None) -> Finished:
    """What `Finished.save` wrote. network: your own, where the model is one, or its name; its weights are replaced."""
    path = Path(folder)
    about, state = _read_about(path / "model.json"), _read_weights(path / "weights.pt")
    weights, read = ({k[8:]: v for k, v in state.items() if k.startswith(side)} for side in ("network.", "reading."))
    try:
        reading = None if about["reading"] is None else Reading.of(about["reading"], read)
        made = network if isinstance(network, nn.Module) else _built(path, about, network)
    except LabelaheadError:
        raise
    except Exception as error:  # values of any kind may stand where others are expected
        raise _damaged(path / "model.json", error) from error
    try:
        made.load_state_dict(weights)
    except RuntimeError as error:
        cause = str(error).strip().splitlines()[-1].strip()
        raise InputError(f"the weights of {path} do not fit the network ({cause})") from error
    return Finished(made.eval(), tuple(about["classes"]), reading, about["loss"], about)


def _read_about(path: Path) -> dict[str, Any]:
    """What `model.json` says, with all that is needed to build the model."""
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path.parent} holds no exported model (no {path.name})") from None
    except (OSError, ValueError, RecursionError) as error:
        raise _damaged(path, error) from error
    if not isinstance(about, dict):
        raise _damaged(path, f"it holds a {type(about).__name__}, not an object")
    if about.get("format") != FORMAT:
        raise InputError(f"{path} is of format {about.get('format')}; expected {FORMAT}: of this version of labelahead")
    kinds = {"classes": list, "loss": str, "reading": dict | None, "network": dict}
    for key, kind in kinds.items():
        if key not in about or not isinstance(about[key], kind):
            raise _damaged(path, f"{key} is {'missing' if key not in about else repr(about[key])[:60]}")
    return about


def _read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of `weights.pt`, by name."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise InputError(f"{path.parent} holds no exported model (no {path.name})") from None
    except Exception as error:  # whatever a damaged file makes the reader say
        raise _damaged(path, error) from error
    if not isinstance(state, dict) or not all(isinstance(v, Tensor) for v in state.values()):
        raise _damaged(path, "it holds something other than tensors by name")
    return state


def _damaged(path: Path, cause: Exception | str) -> InputError:
    said = cause if isinstance(cause, str) else f"{type(cause).__name__}: {next(iter(str(cause).splitlines()), '')}"
    return InputError(f"{path} is damaged ({said[:200]}); copy the folder again, or export the model again")


def _built(path: Path, about: Mapping[str, Any], own: str | None) -> nn.Module:
    asked = about["network"]
    name, shape, classes = asked["name"], tuple(asked["shape"]), max(len(about["classes"]), 2)
    if name == EXACT:
        return ExactModel(torch.zeros(prod(shape)), classes)
    if name not in MODELS and own is None:
        raise InputError(
            f"{path} holds the weights of your own network {name}, whose code is not in it; expected the network: "
            "load_model(folder, network=...), or --network file.py:function"
        )
    options = {} if asked["dropout"] is None else {"dropout": asked["dropout"]}
    return build(own or name, shape, classes, width=asked["width"], **options)
