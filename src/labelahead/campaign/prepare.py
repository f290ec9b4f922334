"""From a configuration to data and a network: what a campaign or a query begins with."""

import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from math import prod
from pathlib import Path

import torch
from torch import Tensor, nn

from labelahead.campaign.config import Campaign, Network, Source, training_from
from labelahead.campaign.loop import Progress
from labelahead.data import DATASETS, Answers, Data
from labelahead.data.dataset import Loaded
from labelahead.data.loading import load_from
from labelahead.data.reading import PICTURES, Reading
from labelahead.data.split import default_root
from labelahead.errors import InputError
from labelahead.inputs import Samples
from labelahead.learners.exact import EXACT, ExactLearner, ExactModel
from labelahead.learners.network import NetworkLearner
from labelahead.models import build, default_model, embed, pixels, standardise
from labelahead.models.backbone import NAME as BACKBONE
from labelahead.models.backbone import available, scales
from labelahead.strategies import GIVEN
from labelahead.train import Training, recipe

__all__ = ["Prepared", "absolute_file", "prepare"]

log = logging.getLogger("labelahead")


@dataclass(frozen=True, eq=False)
class Prepared:
    """Data and network as the configuration asks for them; `notes` says what was decided."""

    campaign: Campaign  # with nothing left open
    data: Data
    answers: Answers | None
    inputs: Tensor | Samples  # (n, ...) what the network sees
    network: Callable[[int, int], nn.Module]  # (classes, seed) -> a fresh network
    training: Training
    device: str
    notes: tuple[str, ...]
    reading: Reading | None = None  # how other items become such inputs

    @property
    def rows(self) -> Tensor:
        """(n, ...) the inputs of all networks but the user's own, which alone may take something else."""
        assert isinstance(self.inputs, Tensor)
        return self.inputs

    def learner(self, classes: int) -> NetworkLearner | ExactLearner:
        """A learner of so many classes. Strategies may make networks with it: it must not lead to the answers."""
        network = self.network
        if self.campaign.model.name == EXACT:
            pool = torch.ones(len(self.rows), dtype=torch.bool).index_fill_(0, self.data.test, False)
            centre = self.rows[pool].flatten(1).mean(0)
            return ExactLearner(self.rows, classes, centre, self.device)
        return NetworkLearner(self.inputs, classes, lambda seed: network(classes, seed), self.training, self.device)


def prepare(campaign: Campaign, given: Loaded | None = None, progress: Progress | None = None) -> Prepared:
    """Load the data, choose network, recipe and device; nothing is trained yet."""
    if campaign.threads is not None:
        torch.set_num_threads(campaign.threads)
    device = _device(campaign.device)
    source = campaign.data
    if given is None and source.name.startswith(GIVEN):
        raise InputError(
            f"this campaign ran on data handed over in Python ({source.name.removeprefix(GIVEN)}): "
            "go on with labelahead.resume(folder, data=...)"
        )
    handed = given is not None
    if given is None:
        given = load_from(source, campaign.seed)
    data, answers = given
    notes = list(data.notes)
    name, width, dropout = (getattr(campaign.model, k) for k in ("name", "width", "dropout"))
    if data.samples is not None and ":" not in name:
        raise InputError(
            f"model is {name}, which takes one tensor, but {data.name} has samples of another form; expected a network "
            "of your own, as file.py:function"
        )
    if name == "auto":
        photographs = data.images is not None and source.name not in _KNOWN_PIXELS
        name, why = default_model(data.kind, data.shape, len(data), photos=photographs)
        notes.append(f"network: {name} ({why})")
    if name == EXACT and _in_colour(data) and not available():
        notes.append(
            "pictures are best served by pretrained features, but these are not installed "
            "(pip install 'labelahead[photos]'): pixels instead"
        )
    inputs, reading = _inputs(data, name, source.size, progress)
    training = training_from(campaign.training, Training() if name == EXACT else recipe(name))
    example = inputs[:2].read() if isinstance(inputs, Samples) else None
    shape = tuple(inputs.shape[1:]) if isinstance(inputs, Tensor) else ()
    asking, own = campaign.asking, campaign.asking.strategy
    settled = replace(
        campaign,
        data=replace(source, name=GIVEN + data.name) if handed else _absolute(source),
        model=Network(absolute_file(name), width, dropout),
        asking=replace(asking, strategy=absolute_file(own)) if isinstance(own, str) else asking,
        training=asdict(training),
        threads=campaign.threads or torch.get_num_threads(),
        device=device,
    )

    options = {} if dropout is None else {"dropout": dropout}

    def network(classes: int, seed: int) -> nn.Module:
        if name == EXACT:
            return ExactModel(torch.zeros(prod(shape)), classes)
        return build(name, shape, classes, width=width, seed=seed, example=example, **options)

    return Prepared(settled, data, answers, inputs, network, training, device, tuple(notes), reading)


def _device(name: str) -> str:
    """A device that there is."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        cause = (str(error).splitlines() or [""])[0]
        raise InputError(f"device is {name!r} ({cause}); expected auto, cpu or cuda") from error
    return name


def _absolute(source: Source) -> Source:
    """Paths in full, so that a campaign can be resumed from anywhere."""
    path = Path(source.name).expanduser()
    name = str(path.resolve()) if source.name not in DATASETS and path.exists() else source.name
    root = None if source.root is None else str(Path(source.root).expanduser().resolve())
    return replace(source, name=name, root=root)


def absolute_file(name: str) -> str:
    """A network or strategy of the user's own, with its path in full."""
    place, colon, inside = name.rpartition(":")
    if colon and place.endswith(".py"):
        return f"{Path(place).expanduser().resolve()}:{inside}"
    return name


def _cache() -> Path | None:
    """Where features are kept; None, with a warning, if that place cannot be written to."""
    folder = default_root() / "features"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        log.warning(
            "%s cannot be written to (%s), so features are not kept: set LABELAHEAD_DATA to a folder that can",
            folder,
            error.strerror,
        )
        return None
    return folder


def _inputs(
    data: Data, name: str, size: int | None, progress: Progress | None
) -> tuple[Tensor | Samples, Reading | None]:
    """What the network sees: the data as they are, or photographs in its own terms; and how others become the same."""
    if name not in ("backbone", "efficientnet-lite0") and not (name == EXACT and _in_colour(data) and available()):
        return data.inputs if data.samples is None else data.samples, data.reading
    if data.images is None:
        raise InputError(f"model is {name}, which sees pictures, but {data.name} has none")
    shape = (3, size or 128, size or 128)
    if name == "efficientnet-lite0":
        half = torch.tensor(127.5)
        return pixels(data.images.batch(torch.arange(len(data)), shape[1])), Reading(PICTURES, shape, half, half)
    features = embed(
        data.images,
        len(data),
        cache=_cache(),
        size=shape[1],
        fingerprint=data.images.fingerprint(),
        standardised=False,
        progress=None if progress is None else lambda done, n: progress("features", done, n),
    )
    if name == EXACT:  # it centres and scales by itself, item by item
        return features, Reading(PICTURES, shape, features=BACKBONE)
    pool = torch.ones(len(data), dtype=torch.bool).index_fill_(0, data.test, False)
    return standardise(features, features[pool]), Reading(PICTURES, shape, *scales(features[pool]), features=BACKBONE)


def _in_colour(data: Data) -> bool:
    """Whether the items are pictures that a network for photographs can see something in."""
    return data.images is not None and len(data.shape) == 3 and data.shape[0] == 3


# Known sets of small pictures are learnt from their pixels; folders of photographs are not.
_KNOWN_PIXELS = frozenset({"digits", "mnist", "fashion-mnist", "cifar10", "cifar100", "svhn"})
