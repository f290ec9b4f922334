"""From a configuration to a campaign: loads the data, makes the network, runs, resumes."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from labelahead.config import Campaign, Network, parse, read, to_toml, training_from
from labelahead.data import Answers, Data, load
from labelahead.data.options import default_root
from labelahead.errors import InputError
from labelahead.loop import Labeller, Plan, Progress, State, rounds
from labelahead.models import build, default_model, embed, pixels, standardise
from labelahead.pool import Pool
from labelahead.store import Round, Store
from labelahead.tracking import trackers
from labelahead.train import Training, recipe

__all__ = ["Prepared", "Result", "prepare", "resume", "run", "simulation"]

Loaded = tuple[Data, Answers | None]


@dataclass(frozen=True, eq=False)
class Prepared:
    """Data and network as the configuration asks for them; `notes` says what was decided."""

    campaign: Campaign  # with nothing left open
    data: Data
    answers: Answers | None
    inputs: Tensor  # (n, ...) what the network sees
    network: Callable[[int, int], nn.Module]  # (classes, seed) -> a fresh network
    training: Training
    device: str
    notes: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Result:
    """A finished campaign."""

    campaign: Campaign
    rounds: tuple[Round, ...]
    pool: Pool
    model: nn.Module
    folder: Path | None

    @property
    def curve(self) -> list[tuple[int, float | None]]:
        """(labels, test accuracy) of every round."""
        return [(r.labels, r.accuracy) for r in self.rounds]


def prepare(
    campaign: Campaign, given: Loaded | None = None, progress: Progress | None = None
) -> Prepared:
    """Load the data, choose network, recipe and device; nothing is trained yet."""
    if campaign.threads is not None:
        torch.set_num_threads(campaign.threads)
    source = campaign.data
    if given is None:
        given = load(
            source.name, root=source.root, size=source.size, target=source.target,
            limit=source.limit, test_fraction=source.test_fraction, seed=campaign.seed,
            download=source.download,
        )  # fmt: skip
    data, answers = given
    notes = list(data.notes)
    name, width, dropout = (getattr(campaign.model, k) for k in ("name", "width", "dropout"))
    if name == "auto":
        photographs = data.images is not None and source.name not in _KNOWN_PIXELS
        name, why = default_model(data.kind, data.shape, len(data), photos=photographs)
        notes.append(f"network: {name} ({why})")
    inputs = _inputs(data, name, source.size, progress)
    training = training_from(campaign.training, recipe(name))
    shape = tuple(inputs.shape[1:])
    device = campaign.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    settled = replace(
        campaign,
        model=Network(name, width, dropout),
        training=asdict(training),
        threads=campaign.threads or torch.get_num_threads(),
        device=device,
    )

    options = {} if dropout is None else {"dropout": dropout}

    def network(classes: int, seed: int) -> nn.Module:
        return build(name, shape, classes, width=width, seed=seed, **options)

    return Prepared(settled, data, answers, inputs, network, training, device, tuple(notes))


def _inputs(data: Data, name: str, size: int | None, progress: Progress | None) -> Tensor:
    """What the network sees: the data as they are, or photographs in its own terms."""
    if name not in ("backbone", "efficientnet-lite0"):
        return data.inputs
    if data.images is None:
        raise InputError(f"model is {name}, which sees pictures, but {data.name} has none")
    if name == "efficientnet-lite0":
        return pixels(data.images.batch(torch.arange(len(data)), size or 128))
    features = embed(
        data.images,
        len(data),
        cache=default_root() / "features",
        fingerprint=data.images.fingerprint(),
        standardised=False,
        progress=None if progress is None else lambda done, n: progress("features", done, n),
    )
    pool = torch.ones(len(data), dtype=torch.bool).index_fill_(0, data.test, False)
    return standardise(features, features[pool])


# Known sets of small pictures are learnt from their pixels; folders of photographs are not.
_KNOWN_PIXELS = frozenset({"digits", "mnist", "fashion-mnist", "cifar10", "cifar100", "svhn"})


def run(
    config: Campaign | Mapping[str, Any] | str | Path | None = None,
    *,
    data: Loaded | None = None,
    labeller: Labeller | None = None,
    out: str | Path | None = None,
    progress: Progress | None = None,
    on_round: Callable[[Round], None] | None = None,
    on_ready: Callable[[Prepared], None] | None = None,
) -> Result:
    """A whole campaign. Nothing given: the embedded digits, in about a minute.

    config: a `Campaign`, tables as in TOML, or a TOML file. data: as `labelahead.data` returns it,
    instead of what the configuration names. labeller: answers instead of the data's own labels.
    out: a folder that keeps everything, for `resume`.
    """
    campaign = _campaign(config)
    ready = prepare(campaign, data, progress)
    plan = simulation(ready, labeller)
    if on_ready:
        on_ready(ready)
    if out is None:
        return _run(ready, plan, None, progress, on_round)
    with Store.create(out, to_toml(ready.campaign)) as store:
        _remember(store, ready.data)
        return _run(ready, plan, store, progress, on_round)


def resume(
    folder: str | Path,
    *,
    data: Loaded | None = None,
    labeller: Labeller | None = None,
    progress: Progress | None = None,
    on_round: Callable[[Round], None] | None = None,
    on_ready: Callable[[Prepared], None] | None = None,
) -> Result:
    """Go on with a campaign where it was interrupted; the end is the same as without."""
    with Store.open(folder) as store:
        campaign = parse(read(Path(folder) / "config.toml"))
        ready = prepare(campaign, data, progress)
        plan = simulation(ready, labeller)
        _remember(store, ready.data)
        if on_ready:
            on_ready(ready)
        return _run(ready, plan, store, progress, on_round)


def _run(
    ready: Prepared,
    plan: Plan,
    store: Store | None,
    progress: Progress | None,
    on_round: Callable[[Round], None] | None,
) -> Result:
    last: list[State] = []
    seen: list[Round] = []
    folder = store.folder if store else None
    with trackers(ready.campaign.track, folder) as track:
        for entry in rounds(plan, store, progress, last.append):
            del last[:-1]
            seen.append(entry)
            track(entry)
            if on_round:
                on_round(entry)
    return Result(ready.campaign, tuple(seen), last[0].pool, last[0].model, folder)


def _campaign(config: Campaign | Mapping[str, Any] | str | Path | None) -> Campaign:
    if isinstance(config, Campaign):
        return config
    if config is None:
        return Campaign()
    return parse(config if isinstance(config, Mapping) else read(config))


def simulation(ready: Prepared, labeller: Labeller | None = None) -> Plan:
    """What the rounds need; refuses data that cannot be simulated on."""
    data, answers, budget = ready.data, ready.answers, ready.campaign.budget
    if labeller is None and answers is None:
        raise InputError(
            f"{data.name} has no labels, so nobody can answer; a simulated campaign needs them: "
            "for unlabelled data use `labelahead query`, or pass a labeller"
        )
    if len(data.classes) < 2:
        raise InputError(
            f"{data.name} has {len(data.classes)} class; expected at least two to learn from"
        )
    test = data.test if answers is not None else data.test[:0]
    askable = len(data) - len(data.test)
    if budget.labels > askable:
        raise InputError(
            f"labels is {budget.labels}, but the pool has {askable} items; expected at most that"
        )
    # Strategies may make networks: what they are handed must not lead to the answers.
    network, classes = ready.network, len(data.classes)
    network(classes, ready.campaign.seed)  # one that fails, fails here
    return Plan(
        inputs=ready.inputs,
        classes=classes,
        network=lambda seed: network(classes, seed),
        training=ready.training,
        asking=ready.campaign.asking,
        budget=budget,
        labeller=labeller or answers,  # type: ignore[arg-type]
        test=test,
        test_labels=answers.take(test) if answers is not None else test,
        seed=ready.campaign.seed,
        device=ready.device,
    )


def _remember(store: Store, data: Data) -> None:
    """Positions mean something only while the data stay the same: keep their fingerprint."""
    text = "\0".join([data.name, str(len(data)), *data.classes, *data.ids])
    now = {"name": data.name, "items": len(data), "ids": hashlib.sha256(text.encode()).hexdigest()}
    path = store.folder / "data.json"
    if not path.exists():
        store.write("data.json", json.dumps(now, indent=1).encode())
        return
    before = json.loads(path.read_text())
    if before != now:
        raise InputError(
            f"the data have changed since this campaign began ({before['items']} items then, "
            f"{now['items']} now, or other names or classes): restore them, or begin a new campaign"
        )
