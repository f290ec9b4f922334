"""The laboratory: studies of the theory, each one command and one page.

    labelahead study dynamics

An experiment is settings, cells that are measured one by one and recorded at once, and exhibits.
"""

from types import MappingProxyType

from labelahead.errors import InputError
from labelahead.laboratory.conduct import Shown, conduct, settings_of
from labelahead.laboratory.dynamics_study import DYNAMICS
from labelahead.laboratory.experiment import Exhibit, Experiment
from labelahead.laboratory.fidelity_study import FIDELITY
from labelahead.laboratory.kernel_study import KERNEL
from labelahead.laboratory.linear_study import LINEAR
from labelahead.laboratory.lookahead_study import LOOKAHEAD
from labelahead.laboratory.regression_study import REGRESSION
from labelahead.laboratory.wallclock_study import WALLCLOCK

__all__ = ["EXPERIMENTS", "Exhibit", "Experiment", "Shown", "conduct", "experiment", "settings_of"]

EXPERIMENTS = MappingProxyType(
    {e.name: e for e in (DYNAMICS, FIDELITY, KERNEL, LINEAR, LOOKAHEAD, REGRESSION, WALLCLOCK)}
)


def experiment(name: str) -> Experiment:
    """The experiment of that name, or an error that lists them all."""
    if name not in EXPERIMENTS:
        raise InputError(f"there is no study {name!r}; there are: {', '.join(EXPERIMENTS)}")
    return EXPERIMENTS[name]
