"""Studies of the theory, each one command and one page.

    labelahead study dynamics

An experiment is settings, cells that are measured one by one and recorded at once, and exhibits.

The examples here begin with a very small one:

    >>> from labelahead.studies import EXPERIMENTS, Exhibit, Experiment, conduct, experiment, settings_of
    >>> small = settings_of(EXPERIMENTS["dynamics"], changes=["parts=['identity']", "seeds=1", "identity_items=10"])
    >>> shown = conduct(EXPERIMENTS["dynamics"], small, "identity", workers=1)
"""

from types import MappingProxyType

from labelahead.errors import InputError
from labelahead.studies.design import Exhibit, Experiment
from labelahead.studies.dynamics import DYNAMICS
from labelahead.studies.execution import Shown, conduct, settings_of
from labelahead.studies.fidelity import FIDELITY
from labelahead.studies.kernel import KERNEL
from labelahead.studies.linear import LINEAR
from labelahead.studies.lookahead import LOOKAHEAD
from labelahead.studies.regression import REGRESSION
from labelahead.studies.wallclock import WALLCLOCK

__all__ = ["EXPERIMENTS", "Exhibit", "Experiment", "Shown", "conduct", "experiment", "settings_of"]

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
