"""From a configuration to data and a network: the start of a campaign or a query."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from labelahead.batching import Samples
from labelahead.data import DATASETS, Answers, Data
from labelahead.data.dataset import Loaded
from labelahead.data.excel import resolve_source
from labelahead.data.guesses import resolve_guess_source
from labelahead.data.joined_embeddings import split_joined_embedding
from labelahead.data.loading import load_source
from labelahead.data.preprocessing import Preprocessor
from labelahead.data.split import CLASSES
from labelahead.data.targets import make_task
from labelahead.data.vector_files import attach_named_vectors, is_vector_file
from labelahead.devices import has_float64, resolve_device
from labelahead.errors import InputError
from labelahead.inference.exact import ExactLearner
from labelahead.inference.exact_model import ExactModel, exact
from labelahead.inference.network import NetworkLearner
from labelahead.learner.config import (
    Campaign,
    Network,
    Progress,
    Source,
    TaskName,
    override_training,
)
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
from labelahead.tasks import Task

__all__ = ["PreparedCampaign", "choose_model_and_embedding", "prepare_campaign", "require_classes"]

NUMBER = "number"
RATING = "rating"
DEFAULT_LEVELS = ("1", "2", "3", "4", "5")  # of ratings, if there are neither labels nor names


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
    task: Task | None = None  # what a label is; None: one class

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
        prepared = self.campaign
        same = replace(
            campaign,
            seed=prepared.seed,
            asking=prepared.asking,
            budget=prepared.budget,
            track=prepared.track,
        )
        if same != prepared or (campaign.seed != prepared.seed and self.depends_on_seed):
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

    def for_task(self, task: Task) -> "PreparedCampaign":
        """Return the same campaign with a task that has further classes or answers."""
        return replace(self, task=task, data=replace(self.data, task=task))

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
            classes: Number of classes; a task has its own outputs.
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
        if self.task is not None:
            return exact(self.rows[pool], task=self.task)
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
    is_in_memory = loaded is not None
    data, answers = loaded or _load_data(campaign)
    if is_in_memory:
        campaign = _adopt_task(campaign, data)
    source, task = campaign.data, find_task_of_data(campaign.data, data)
    data = attach_named_vectors(data, source.embedding)
    notes = list(data.notes)
    model_name, embedding, model_notes = choose_model_and_embedding(campaign, data)
    notes += model_notes
    if task is not None:
        _require_exact_learner(task, source, model_name)
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
            unit=source.unit if task is None else getattr(task, "unit", ""),
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
        task=task,
    )


def _load_data(campaign: Campaign) -> Loaded:
    """Load the configured data."""
    name = campaign.data.name
    if name.startswith(PYTHON_OBJECT_PREFIX):
        raise InputError(
            f"this campaign ran on data given in Python ({name.removeprefix(PYTHON_OBJECT_PREFIX)}): "
            "continue with labelahead.resume(folder, data=...)"
        )
    return load_source(campaign.data, campaign.seed)


def _adopt_task(campaign: Campaign, data: Data) -> Campaign:
    """Return the campaign with the task of data given in Python, and a strategy for it.

    The configuration did not know the task, so neither did its default strategy.
    """
    source, task = campaign.data, data.task
    if task is None or source.task != CLASSES:
        return campaign
    source = replace(source, task=cast(TaskName, task.name))
    return replace(campaign, data=source, asking=choose_task_strategy(campaign.asking, task))


def find_task_of_data(source: Source, data: Data) -> Task | None:
    """Return what a label is, None if it is one class; without labels it follows the settings.

    Args:
        source: The settings.
        data: The data.

    Raises:
        InputError: The data have another task than the settings, or no class is known.

    >>> from labelahead.data import from_arrays
    >>> from labelahead.learner.preparation import find_task_of_data
    >>> find_task_of_data(la.Source(task="rating"), from_arrays([[0.0], [1.0]])[0]).levels
    ('1', '2', '3', '4', '5')
    """
    if data.task is not None:
        if source.task != data.task.name:
            raise InputError(
                f"the labels of {data.name} are of the task {data.task.name}, but the configuration "
                f"says {source.task}; expected the same: set data.task (--task) to {data.task.name}"
            )
        return data.task
    if source.task == CLASSES:
        return None
    if source.task == NUMBER:
        units = [source.unit] if source.unit else ()
        return make_task(NUMBER, source.label_columns or ("value",), units, source.limits)
    names = source.classes or (DEFAULT_LEVELS if source.task == RATING else ())
    if not names:
        raise InputError(
            f"{data.name} has no labels yet, so the classes are not known; name them with --classes "
            "(data.classes)"
        )
    return make_task(source.task, names)


def choose_task_strategy(asking: QueryConfig, task: Task | None) -> QueryConfig:
    """Return the configuration of queries, with the strategy of the task if the default is not for it.

    >>> from labelahead.learner.preparation import choose_task_strategy
    >>> from labelahead.strategies.base import QueryConfig
    >>> choose_task_strategy(QueryConfig(), la.tasks.Number()).strategy
    'variance'
    """
    if (
        task is None
        or asking.strategy != QueryConfig.strategy
        or asking.strategy in task.acquisitions
    ):
        return asking
    return replace(asking, strategy=next(iter(task.acquisitions)))


def require_classes(task: Task | None, what: str) -> None:
    """Raise unless a label is one class.

    Args:
        task: Of the data.
        what: What works for one class per item only.

    >>> from labelahead.learner.preparation import require_classes
    >>> require_classes(None, "a route")
    """
    if task is not None:
        raise InputError(
            f"the task is {task.name}, but {what} works for one class per item only; expected the "
            "task classes"
        )


def _require_exact_learner(task: Task, source: Source, model: str) -> None:
    """Raise if the model is a trained network, or if there are guesses: neither has tasks."""
    if model != EXACT:
        raise InputError(
            f"model is {model}, but the task {task.name} needs the exact learner, which trains "
            f"nothing: expected --model {EXACT}, or no --model"
        )
    if source.has_guesses:
        raise InputError(
            f"guesses are given for the task {task.name}; they work for one class per item only: "
            "leave out --guesses and --prior"
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
    if name == "auto" and source.task != CLASSES:
        name = EXACT
        notes = (f"network: {EXACT} (the only one for the task {source.task})",)
    elif name == "auto" and any(is_encoder(g, data) or is_vector_file(g) for g in given_parts):
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
