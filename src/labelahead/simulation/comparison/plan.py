"""The plan of a comparison, stored in `compare.toml`: strategies × embeddings × seeds, all else equal."""

import hashlib
import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from labelahead.data import DATASETS
from labelahead.data.excel import resolve_source
from labelahead.data.guesses import is_guess_column, resolve_guess_source
from labelahead.data.joined_embeddings import map_joined_embedding
from labelahead.data.vector_files import is_vector_file, resolve_vector_file
from labelahead.errors import InputError
from labelahead.learner.config import (
    NONE,
    Campaign,
    Source,
    campaign_code_names,
    parse_campaign,
    read_toml,
    to_toml,
)
from labelahead.learner.guessers import CLASS_NAMES, describe_guesser
from labelahead.models.encoder_names import looks_like_encoder, resolve_encoder
from labelahead.models.training import Training
from labelahead.models.trusted_code import find_code_names, require_trusted_code, resolve_code_name
from labelahead.strategies import STRATEGIES, find_strategy
from labelahead.strategies.lookahead import LOOK_AHEAD_MODES
from labelahead.tasks import TASKS

__all__ = [
    "Comparison",
    "Contender",
    "campaign_tables",
    "cross_with_embeddings",
    "cross_with_guesses",
    "format_comparison",
    "list_default_strategies",
    "list_differences",
    "merge_comparisons",
    "parse_contender",
    "parse_contenders",
    "read_comparison",
    "strategy_code",
    "with_absolute_paths",
]

COMPARISON_FILE = "compare.toml"
DEFAULT_STRATEGIES = "random,margin,mlmoc,flip"  # of the task classes


@dataclass(frozen=True)
class Contender:
    """One strategy of a comparison, by name or as file.py:name, and its batch mode.

    Attributes:
        strategy: Its name.
        mode: How it selects a batch.
        embedding: The embedding it queries on; "" for that of the campaign.
        guesses: What it starts from: a source of guesses, class-names or none; "" for what the
            campaign starts from.

    >>> Contender("flip", "greedy").strategy
    'flip'
    """

    strategy: str
    mode: str
    embedding: str = ""
    guesses: str = ""

    @property
    def short_name(self) -> str:
        """The strategy; of a file, without its folder."""
        place, colon, name = self.strategy.rpartition(":")
        return Path(place).name + colon + name

    @property
    def name(self) -> str:
        """The display name; the mode is included only if it is not the strategy's default."""
        own = find_strategy(self.strategy).modes[0]
        name = self.short_name if self.mode == own else f"{self.short_name}:{self.mode}"
        name = f"{name} on {_shorten_embedding(self.embedding)}" if self.embedding else name
        return f"{name} {_describe_guesses(self.guesses)}" if self.guesses else name

    @property
    def spec(self) -> str:
        """Strategy and mode, independent of the strategy's default mode."""
        several = len(find_strategy(self.strategy).modes) > 1
        return f"{self.strategy}:{self.mode}" if several else self.strategy

    @property
    def folder(self) -> str:
        """The folder of its campaigns."""
        name = (self.short_name + self.spec.removeprefix(self.strategy)).replace(":", "-")
        if self.embedding:
            name = f"{name}-{_make_folder_name(_shorten_embedding(self.embedding), self.embedding)}"
        if self.guesses:
            name = f"{name}-{_make_folder_name(_describe_guesses(self.guesses), self.guesses)}"
        return name


@dataclass(frozen=True)
class Comparison:
    """Contenders × seeds of one campaign, whose own seed, strategy and mode are ignored.

    >>> len(comparison.contenders) * len(comparison.seeds)  # campaigns
    4
    """

    campaign: Campaign
    contenders: tuple[Contender, ...]
    seeds: tuple[int, ...]

    def __post_init__(self) -> None:
        asking = replace(self.campaign.asking, strategy="random", mode=None)
        threads = self.campaign.threads or 1
        training = {
            "start": Training().start,
            **self.campaign.training,
        }  # stored, since the default may change
        neutral = replace(self.campaign, asking=asking, seed=0, threads=threads, training=training)
        object.__setattr__(self, "campaign", with_absolute_paths(neutral))
        twin = next(
            (
                a
                for i, a in enumerate(self.contenders)
                if a.folder in {b.folder for b in self.contenders[:i]}
            ),
            None,
        )
        if twin is not None:
            raise InputError(
                f"two strategies are called {twin.name} ({twin.strategy} is one of them); "
                "expected different names, "
                "since their campaigns lie in folders that go by them"
            )

    @property
    def code(self) -> set[str]:
        """The names of the user's own code that its campaigns run."""
        own = {contender.strategy for contender in self.contenders if ":" in contender.strategy}
        guesses = find_code_names({"data": {"guesses": self.guesses}}).values()
        embeddings = _embedding_code(self.embeddings)
        return own | campaign_code_names(self.campaign) | {*embeddings, *guesses}

    @property
    def embeddings(self) -> tuple[str, ...]:
        """The embeddings that are compared; none if all campaigns have the same."""
        return tuple(dict.fromkeys(a.embedding for a in self.contenders if a.embedding))

    @property
    def guesses(self) -> tuple[str, ...]:
        """The starts that are compared; none if all campaigns start from the same."""
        return tuple(dict.fromkeys(a.guesses for a in self.contenders if a.guesses))

    def campaign_for(self, contender: Contender, seed: int) -> Campaign:
        """Return the campaign of a contender and a seed."""
        mode: Any = contender.mode
        asking = replace(self.campaign.asking, strategy=contender.strategy, mode=mode)
        data = self.campaign.data
        if contender.embedding:
            data = replace(data, embedding=contender.embedding)
        if contender.guesses:
            data = _start_from(data, contender.guesses)
        return replace(self.campaign, data=data, asking=asking, seed=seed)

    @property
    def reference(self) -> Contender:
        """The contender that the others are compared with: random, or else the first."""
        return next((a for a in self.contenders if a.strategy == "random"), self.contenders[0])

    @property
    def rounds(self) -> int:
        """The number of rounds of each campaign."""
        budget = self.campaign.budget
        return 1 - (budget.initial - budget.labels) // budget.retrain_every


def with_absolute_paths(campaign: Campaign) -> Campaign:
    """Make paths absolute, so that a comparison can be continued from any folder."""
    source, model = campaign.data, campaign.model
    name = source.name if source.name in DATASETS else resolve_source(source.name)
    root = None if source.root is None else str(Path(source.root).expanduser().resolve())
    model = replace(model, name=resolve_code_name(model.name))
    return replace(campaign, data=replace(source, name=name, root=root), model=model)


def _start_from(data: Source, guesses: str) -> Source:
    """Return the source with one start in place of its own guesses.

    Columns of guesses that are not used are left out: they are no features for anybody.
    """
    column = [name for name in data.guesses if is_guess_column(name) and name != guesses]
    without = tuple(dict.fromkeys([*data.without, *column]))
    if guesses == CLASS_NAMES:
        return replace(data, guesses=(), prior="class-names", without=without)
    used = () if guesses == NONE else (guesses,)
    return replace(data, guesses=used, prior="none", without=without)


def _describe_guesses(guesses: str) -> str:
    """Return a start for display: without guesses, from class names, from said."""
    return "without guesses" if guesses == NONE else f"from {describe_guesser(guesses)}"


def _make_folder_name(short: str, whole: str) -> str:
    """Return a short name as a part of a folder's name, with a hash of the whole name."""
    digest = hashlib.sha256(whole.encode("utf-8", "surrogateescape")).hexdigest()
    plain = re.sub(r"[^\w.+-]+", "-", short)
    return f"{plain}-{digest[:8]}"


def cross_with_guesses(
    contenders: Sequence[Contender], guesses: Sequence[str]
) -> tuple[Contender, ...]:
    """Return every contender with every start: none, class-names, or a source of guesses.

    >>> two = cross_with_guesses(parse_contenders("flip"), ["none", "class-names"])
    >>> [contender.name for contender in two]
    ['flip without guesses', 'flip from class names']
    """
    starts = dict.fromkeys(
        name if name in (NONE, CLASS_NAMES) else resolve_guess_source(name) for name in guesses
    )
    plain = dict.fromkeys(replace(contender, guesses="") for contender in contenders)
    return tuple(replace(one, guesses=name) for one in plain for name in starts or [""])


def _shorten_embedding(name: str) -> str:
    """Return an embedding's name without folder, library and revision, for display."""

    def shorten(part: str) -> str:
        kept = re.sub("@[^#]*", "", part)
        return kept.rpartition("/")[2] if "/" in kept else kept

    return map_joined_embedding(name, shorten)


def cross_with_embeddings(
    contenders: Sequence[Contender], embeddings: Sequence[str]
) -> tuple[Contender, ...]:
    """Return every strategy on every embedding; paths become absolute, encoders get a revision.

    >>> two = cross_with_embeddings(parse_contenders("random,flip"), ["minilm", "words"])
    >>> [contender.name for contender in two]
    ['random on minilm', 'random on words', 'flip on minilm', 'flip on words']
    """
    pinned = [map_joined_embedding(name, _pin_embedding) for name in embeddings]
    short = [_shorten_embedding(name) for name in dict.fromkeys(pinned)]
    twin = next((name for i, name in enumerate(short) if name in short[:i]), None)
    if twin is not None:
        raise InputError(
            f"two embeddings are called {twin} in reports; expected different names: rename one of "
            "the files or folders"
        )
    strategies = dict.fromkeys(replace(contender, embedding="") for contender in contenders)
    return tuple(
        replace(strategy, embedding=name)
        for strategy in strategies
        for name in dict.fromkeys(pinned or [""])
    )


def _pin_embedding(name: str) -> str:
    if is_vector_file(name):
        return resolve_vector_file(name)
    return str(resolve_encoder(name)) if looks_like_encoder(name) else resolve_code_name(name)


def _embedding_code(names: Sequence[str]) -> list[str]:
    """Return those embeddings that are the user's own code."""
    return [name for name in names if find_code_names({"data": {"embedding": name}})]


def parse_contender(spec: str) -> Contender:
    """Parse `flip`, `flip:greedy`, `file.py:name` or `file.py:name:greedy`."""
    if not isinstance(spec, str):
        raise InputError(
            f"a strategy is {spec!r:.80}; expected a name, or your own as file.py:name, where the "
            "processes that run "
            "the campaigns find it"
        )
    name, mode = _split_spec(spec)
    strategy = find_strategy(name)
    if mode == "":
        raise InputError(
            f"{spec!r} ends in a colon; expected a mode after it ({', '.join(strategy.modes)})"
        )
    return Contender(name, strategy.resolve_mode(mode, has_oracle=True))


def _split_spec(spec: str) -> tuple[str, str | None]:
    """Split `flip`, `flip:greedy`, `file.py:name` or `file.py:name:greedy` into strategy and mode,
    without importing anything.
    """
    name, colon, mode = (part.strip() for part in spec.partition(":"))
    if not colon or name in STRATEGIES:
        return name, mode if colon else None
    own, _, last = spec.strip().rpartition(":")  # the name of a user's strategy contains a colon
    with_mode = ":" in own and (last in LOOK_AHEAD_MODES or own.rpartition(":")[0].endswith(".py"))
    return (resolve_code_name(own), last) if with_mode else (resolve_code_name(spec.strip()), None)


def strategy_code(specs: str | Sequence[str]) -> list[str]:
    """Return those strategies of a comparison that are the user's own code; nothing is imported.

    >>> from labelahead.simulation.comparison.plan import strategy_code
    >>> strategy_code("random,flip:greedy,mypackage.criteria:mine")
    ['mypackage.criteria:mine']
    """
    names = [
        _split_spec(spec)[0] for spec in (specs.split(",") if isinstance(specs, str) else specs)
    ]
    return [name for name in names if ":" in name]


def list_default_strategies(task: str) -> str:
    """Return the strategies that are compared unless some are named, with commas between.

    >>> from labelahead.simulation.comparison.plan import list_default_strategies
    >>> list_default_strategies("number")
    'random,variance,qbc,gsx,gsy,igs'
    """
    known = TASKS.get(task)
    if known is None or task == "classes":
        return DEFAULT_STRATEGIES
    return ",".join(("random", next(iter(known.acquisitions)), *known.baselines))


def parse_contenders(text: str | Sequence[str]) -> tuple[Contender, ...]:
    """Parse `random,flip:greedy` or a list of such; duplicates are dropped.

    >>> [contender.mode for contender in parse_contenders("random,flip:greedy")]
    ['top', 'greedy']
    """
    specs = text.split(",") if isinstance(text, str) else text
    named = [parse_contender(spec) for spec in specs if not isinstance(spec, str) or spec.strip()]
    if not named:
        raise InputError(
            f"strategies is {text!r}; expected names with commas between, e.g. random,margin,flip"
        )
    return tuple(dict.fromkeys(named))


def format_comparison(comparison: Comparison) -> str:
    """Return the text of `compare.toml`."""
    import tomli_w

    specs = dict.fromkeys(a.spec for a in comparison.contenders)
    top = {"strategies": list(specs), "seeds": list(comparison.seeds)}
    if comparison.embeddings:
        top["embeddings"] = list(comparison.embeddings)
    if comparison.guesses:
        top["guesses"] = list(comparison.guesses)
    return tomli_w.dumps({**top, "campaign": campaign_tables(comparison.campaign)})


def read_comparison(
    folder: str | Path, *, trust_code: bool | Collection[str] = False
) -> Comparison:
    """Read the plan in a comparison's folder.

    Args:
        folder: The folder.
        trust_code: Whether code that the folder names (strategies, a network or an embedding) may
            run although this account has never used it; or the names that may.

    >>> read_comparison("runs/b").seeds
    (0, 1)
    """
    path = Path(folder) / COMPARISON_FILE
    if not path.is_file():
        what = "a single campaign" if (Path(folder) / "config.toml").exists() else "no comparison"
        raise InputError(
            f"{folder} holds {what} (no {COMPARISON_FILE}); expected the folder of an earlier "
            "`labelahead compare --out`"
        )
    tables = read_toml(path)
    specs, seeds, campaign = (tables.get(k) for k in ("strategies", "seeds", "campaign"))
    texts = isinstance(specs, list) and all(isinstance(s, str) for s in specs)
    numbers = isinstance(seeds, list) and all(type(s) is int and s >= 0 for s in seeds)
    embeddings, guesses = tables.get("embeddings", []), tables.get("guesses", [])
    for listed in (embeddings, guesses):
        texts = texts and isinstance(listed, list) and all(isinstance(e, str) for e in listed)
    if not texts or not numbers or not specs or not seeds or not isinstance(campaign, Mapping):
        raise InputError(
            f"{path} is damaged; expected strategies, seeds and a table [campaign]: restore it "
            "from a copy, or choose another folder"
        )
    data = campaign.get("data")
    source = data.get("name") if isinstance(data, Mapping) else None
    code = {f"strategies, {name}": name for name in strategy_code(specs)} | find_code_names(
        campaign
    )
    code |= {f"embeddings, {name}": name for name in _embedding_code(embeddings)}
    code |= find_code_names({"data": {"guesses": guesses}})
    require_trusted_code(
        code, path, [path.parent, *([source] if isinstance(source, str) else [])], trust_code
    )
    contenders = tuple(
        replace(strategy, embedding=name)
        for strategy in parse_contenders(specs)
        for name in embeddings or [""]
    )
    contenders = cross_with_guesses(contenders, guesses)
    return Comparison(parse_campaign(campaign), contenders, tuple(sorted(set(seeds))))


def merge_comparisons(stored: Comparison, requested: Comparison, folder: str | Path) -> Comparison:
    """Merge two comparisons; refuse if anything but strategies, embeddings and seeds differs."""
    changed = list_differences(stored.campaign, requested.campaign)
    if changed:
        raise InputError(
            f"{folder} holds a comparison with another configuration: {'; '.join(changed)}. Only "
            "strategies and seeds may be added; choose another folder with --out"
        )
    embeddings = dict.fromkeys(stored.embeddings + requested.embeddings)
    if bool(stored.embeddings) != bool(requested.embeddings):
        raise InputError(
            f"{folder} compares {'several embeddings' if stored.embeddings else 'one embedding'}; "
            "expected the same: leave --embedding out, or choose another folder with --out"
        )
    if bool(stored.guesses) != bool(requested.guesses):
        raise InputError(
            f"{folder} compares {'several starts' if stored.guesses else 'one start'}; expected "
            "the same: leave --guesses and --prior out, or choose another folder with --out"
        )
    strategies = dict.fromkeys(
        replace(contender, embedding="", guesses="")
        for contender in stored.contenders + requested.contenders
    )
    contenders = tuple(
        replace(strategy, embedding=name) for strategy in strategies for name in embeddings or [""]
    )
    return Comparison(
        stored.campaign,
        cross_with_guesses(contenders, (*stored.guesses, *requested.guesses)),
        tuple(sorted({*stored.seeds, *requested.seeds})),
    )


def campaign_tables(campaign: Campaign) -> dict[str, Any]:
    """Return the campaign as plain tables without strategy, mode and seed: what must be equal."""
    tables = tomllib.loads(to_toml(campaign))
    tables.pop("seed")
    for key in ("strategy", "mode"):
        tables["asking"].pop(key, None)
    for key in ("epochs", "augment"):  # compare.toml of 0.2 leaves them out
        if tables.get("training", {}).get(key) == NONE:
            del tables["training"][key]
    return tables


def list_differences(stored: Campaign, now: Campaign) -> list[str]:
    """Return what differs besides seed, strategy and mode, one phrase each."""
    old, new = _flatten(campaign_tables(stored)), _flatten(campaign_tables(now))
    return [
        f"{key} was {_format_value(old, key)} and is {_format_value(new, key)} now"
        for key in sorted(old | new)
        if old.get(key) != new.get(key)
    ]


def _format_value(values: Mapping[str, Any], key: str) -> str:
    return repr(values[key]) if key in values else "not set"


def _flatten(tables: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tables.items():
        inner = isinstance(value, Mapping)
        flat |= _flatten(value, f"{prefix}{key}.") if inner else {prefix + key: value}
    return flat
