"""From a configuration to data and a network: the start of a campaign or a query."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from labelahead.batching import Samples
from labelahead.data import DATASETS, Answers, Data
from labelahead.data.dataset import Loaded
from labelahead.data.excel import resolve_source
from labelahead.data.guesses import resolve_guess_source
from labelahead.data.loading import load_source
from labelahead.data.preprocessing import Preprocessor
from labelahead.data.vector_files import (
    attach_named_vectors,
    is_vector_file,
    split_joined_embedding,
)
from labelahead.devices import has_float64, resolve_device
from labelahead.errors import InputError
from labelahead.inference.exact import ExactLearner
from labelahead.inference.exact_model import ExactModel, exact
from labelahead.inference.network import NetworkLearner
from labelahead.learner.config import Campaign, Network, Progress, Source, override_training
from labelahead.learner.encoding import (
    EncodedInputs,
    EncoderOptions,
    best_embedding,
    encode_inputs,
    is_encoder,
    pin_embedding,
    require_embedding,
)
from labelahead.learner.guessers import PriorGuesses, gather_guesses, offer_class_names
from labelahead.learner.model_kind import ModelKind, get_model_kind
from labelahead.models import EXACT, choose_default_model
from labelahead.models.training import Training
from labelahead.models.training.objective import MakeObjective
from labelahead.models.trusted_code import resolve_code_name
from labelahead.strategies import PYTHON_OBJECT_PREFIX
from labelahead.strategies.base import QueryConfig

__all__ = ["PreparedCampaign", "choose_model_and_embedding", "prepare_campaign"]


@dataclass(frozen=True, eq=False)
class PreparedCampaign:
    """Data and network as the configuration requires; `notes` describes the choices made."""

    campaign: Campaign  # fully resolved
    data: Data
    answers: Answers | None
    inputs: Tensor | Samples  # (n, ...) what the network sees
    network: Callable[[int, int], nn.Module]  # (classes, seed) -> a fresh network
    training: Training
    device: str
    notes: tuple[str, ...]
    make_preprocessor: Callable[[], Preprocessor | None] = lambda: (
        None
    )  # returns how other items become such inputs
    depends_on_seed: bool = False  # whether another seed would load other items
    guesses: PriorGuesses | None = None  # in the last columns of the inputs

    @property
    def has_guesses(self) -> bool:
        """Whether the last columns of the inputs are guesses."""
        return self.guesses is not None

    @property
    def feature_width(self) -> int:
        """Number of columns of the inputs without the guesses."""
        guesses = 0 if self.guesses is None else self.guesses.deviations.shape[1]
        return int(self.rows.flatten(1).shape[1]) - guesses

    @property
    def rows(self) -> Tensor:
        """(n, ...) the inputs as one tensor; only a user's own network may take something else."""
        assert isinstance(self.inputs, Tensor)
        return self.inputs

    def for_campaign(self, campaign: Campaign) -> "PreparedCampaign | None":
        """Return the same data and network for another campaign; None if it needs other ones.

        Campaigns share them if they differ in strategy, budget and trackers only, and in the seed
        if the data do not depend on it.
        """
        mine = self.campaign
        same = replace(
            campaign, seed=mine.seed, asking=mine.asking, budget=mine.budget, track=mine.track
        )
        if same != mine or (campaign.seed != mine.seed and self.depends_on_seed):
            return None
        asking = _with_absolute_strategy(campaign.asking)
        return replace(self, campaign=replace(campaign, asking=asking))

    def for_classes(self, names: Sequence[str]) -> "PreparedCampaign":
        """Return the same campaign with guesses about these classes, in this order."""
        if self.guesses is None or tuple(names) == self.guesses.classes:
            return self
        guesses = self.guesses.rearrange(names)
        features = self.rows.flatten(1)[:, : self.feature_width]
        return replace(self, inputs=guesses.append_to(features), guesses=guesses)

    @property
    def kind(self) -> ModelKind:
        """What the rest of the code must know about the model."""
        return get_model_kind(self.campaign.model.name)

    def make_learner(
        self, classes: int, objective: MakeObjective | None = None
    ) -> NetworkLearner | ExactLearner:
        """Make a learner for so many classes.

        Strategies may make networks with it, so it must not give access to the labels.

        Args:
            classes: Number of classes.
            objective: The auxiliary objective of the strategy; the exact learner ignores it.
        """
        return self.kind.make_learner(self, classes, objective)

    def make_exact_learner(self, classes: int) -> ExactLearner:
        """Make a learner by kernel regression, centred on the items that are not for testing."""
        pool = torch.ones(len(self.rows), dtype=torch.bool).index_fill_(0, self.data.test, False)
        # Its linear systems are solved in float64.
        device = self.device if has_float64(torch.device(self.device)) else "cpu"
        return ExactLearner(self.rows, self._make_exact(pool, classes), device)

    def _make_exact(self, pool: Tensor, classes: int) -> ExactModel:
        """Make the exact learner's model without labels, centred on the pool, (n,) bool."""
        if self.guesses is None:
            return exact(self.rows[pool], classes)
        model = exact(self.rows[pool][:, : self.feature_width], classes)
        return model.with_guessers(len(self.guesses.names), len(self.guesses.classes))


def prepare_campaign(
    campaign: Campaign, loaded: Loaded | None = None, progress: Progress | None = None
) -> PreparedCampaign:
    """Load the data and choose network, recipe and device; nothing is trained yet."""
    if campaign.threads is not None:
        torch.set_num_threads(campaign.threads)
    device = resolve_device(campaign.device)
    source = campaign.data
    if loaded is None and source.name.startswith(PYTHON_OBJECT_PREFIX):
        raise InputError(
            f"this campaign ran on data given in Python ({source.name.removeprefix(PYTHON_OBJECT_PREFIX)}): "
            "continue with labelahead.resume(folder, data=...)"
        )
    is_in_memory = loaded is not None
    if loaded is None:
        loaded = load_source(source, campaign.seed)
    data, answers = loaded
    if data.task is not None or source.task != "classes":
        raise InputError(
            f"the task is {source.task}, which campaigns do not run yet; expected classes"
        )
    data = attach_named_vectors(data, source.embedding)
    notes = list(data.notes)
    model_name, embedding, model_notes = choose_model_and_embedding(campaign, data)
    notes += model_notes
    encoder_options = EncoderOptions(source.batch_size, source.workers, device)
    encoded = encode_inputs(model_name, data, embedding, source.size, progress, encoder_options)
    guesses = gather_guesses(source, data, encoded, device)
    if guesses is not None:
        encoded = _append_guesses(encoded, guesses, model_name)
        notes.append(guesses.describe())
    else:
        notes += offer_class_names(source, data, encoded.embedding, model_name)
    notes += encoded.notes
    kind = get_model_kind(model_name)
    training = override_training(campaign.training, kind.get_default_training(model_name))
    resolved = replace(
        campaign,
        data=replace(
            replace(source, name=PYTHON_OBJECT_PREFIX + data.name)
            if is_in_memory
            else _with_absolute_paths(source),
            embedding=pin_embedding(encoded.embedding, data),
        ),
        model=replace(campaign.model, name=resolve_code_name(model_name)),
        asking=_with_absolute_strategy(campaign.asking),
        training=asdict(training),
        threads=campaign.threads or torch.get_num_threads(),
        device=device,
    )
    return PreparedCampaign(
        resolved,
        data,
        answers,
        encoded.inputs,
        _make_network_factory(replace(campaign.model, name=model_name), encoded.inputs),
        training,
        device,
        tuple(notes),
        encoded.make_preprocessor,
        depends_on_seed=data.depends_on_seed and not is_in_memory,
        guesses=guesses,
    )


def _make_network_factory(
    model: Network, inputs: Tensor | Samples
) -> Callable[[int, int], nn.Module]:
    """Return (classes, seed) -> a fresh network for these inputs."""
    example = inputs[:2].read() if isinstance(inputs, Samples) else None
    shape = tuple(inputs.shape[1:]) if isinstance(inputs, Tensor) else ()
    options: dict[str, Any] = {} if model.dropout is None else {"dropout": model.dropout}
    options |= {"width": model.width, "example": example}
    kind = get_model_kind(model.name)

    def make_network(classes: int, seed: int) -> nn.Module:
        return kind.build_model(model.name, shape, classes, seed=seed, **options)

    return make_network


def _append_guesses(encoded: EncodedInputs, guesses: PriorGuesses, model: str) -> EncodedInputs:
    """Return inputs with the columns of the guesses, also of further items."""
    if model != EXACT or not isinstance(encoded.inputs, Tensor):
        raise InputError(
            f"guesses are prior knowledge of the model {EXACT}, but model is {model}; expected "
            f"--model {EXACT}, or no guesses"
        )
    inputs = guesses.append_to(encoded.inputs)
    return replace(
        encoded,
        inputs=inputs,
        make_preprocessor=lambda: guesses.extend(encoded.make_preprocessor()),
    )


def choose_model_and_embedding(campaign: Campaign, data: Data) -> tuple[str, str, tuple[str, ...]]:
    """Return the network, the embedding and the reasons; nothing is computed yet."""
    name, source = campaign.model.name, campaign.data
    notes: tuple[str, ...] = ()
    if data.samples is not None and ":" not in name:
        raise InputError(
            f"model is {name}, which takes one tensor, but {data.name} has samples of another "
            "form; expected a network "
            "of your own, as file.py:function"
        )
    given_embedding = source.embedding
    given_parts = [] if given_embedding is None else split_joined_embedding(given_embedding)
    if name == "auto" and any(is_encoder(g, data) or is_vector_file(g) for g in given_parts):
        name = EXACT
        notes = (f"network: {EXACT} (an embedding: nothing to train, every label counts at once)",)
    elif name == "auto":
        photographs = data.images is not None and source.name not in _KNOWN_PIXELS
        name, reason = choose_default_model(data.kind, data.shape, len(data), photos=photographs)
        notes = (f"network: {name} ({reason})",)
    if given_embedding is not None:
        given_embedding = pin_embedding(given_embedding, data)
        require_embedding(given_embedding, data)
        return name, given_embedding, notes
    embedding, embedding_notes = best_embedding(name, data)
    return name, embedding, (*notes, *embedding_notes)


def _with_absolute_strategy(asking: QueryConfig) -> QueryConfig:
    """Make the path of a user's own strategy absolute."""
    strategy = asking.strategy
    return (
        replace(asking, strategy=resolve_code_name(strategy))
        if isinstance(strategy, str)
        else asking
    )


def _with_absolute_paths(source: Source) -> Source:
    """Make paths absolute, so that a campaign can be resumed from any folder."""
    name = source.name if source.name in DATASETS else resolve_source(source.name)
    root = None if source.root is None else str(Path(source.root).expanduser().resolve())
    guesses = tuple(map(resolve_guess_source, source.guesses))
    return replace(source, name=name, root=root, guesses=guesses)


# Data sets of small images whose pixels are the inputs; folders of photographs are embedded.
_KNOWN_PIXELS = frozenset({"digits", "mnist", "fashion-mnist", "cifar10", "cifar100", "svhn"})
