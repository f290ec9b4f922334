"""Studies of the theory, each one command and one page.

    python -m research study dynamics

An experiment is settings, cells that are measured one by one and recorded at once, and exhibits.

The examples here begin with a very small one:

    >>> from research.studies import EXPERIMENTS, StudyFigure, Experiment, conduct, experiment, settings_of
    >>> small = settings_of(EXPERIMENTS["dynamics"], changes=["parts=['identity']", "seeds=1", "identity_items=10"])
    >>> shown = conduct(EXPERIMENTS["dynamics"], small, "identity", workers=1)
"""

from types import MappingProxyType

from labelahead.errors import InputError
from research.studies.design import Experiment, StudyFigure
from research.studies.dynamics import DYNAMICS
from research.studies.execution import Shown, conduct, settings_of
from research.studies.fidelity import FIDELITY
from research.studies.kernel import KERNEL
from research.studies.linear import LINEAR
from research.studies.lookahead import LOOKAHEAD
from research.studies.regression import REGRESSION
from research.studies.wallclock import WALLCLOCK

__all__ = [
    "EXPERIMENTS",
    "Experiment",
    "Shown",
    "StudyFigure",
    "conduct",
    "experiment",
    "settings_of",
]

EXPERIMENTS = MappingProxyType(
    {e.name: e for e in (DYNAMICS, FIDELITY, KERNEL, LINEAR, LOOKAHEAD, REGRESSION, WALLCLOCK)}
)


def experiment(name: str) -> Experiment:
    """The experiment of that name, or an error that lists them all.

    >>> experiment("kernel").name
    'kernel'
    """
    if name not in EXPERIMENTS:
        raise InputError(f"there is no study {name!r}; there are: {', '.join(EXPERIMENTS)}")
    return EXPERIMENTS[name]
