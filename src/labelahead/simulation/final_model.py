"""The model of a finished campaign, from the campaign's folder."""

from pathlib import Path
from typing import Any

from labelahead.data.dataset import Loaded
from labelahead.errors import InputError
from labelahead.learner.config import parse_campaign, read_stored
from labelahead.learner.export import ExportedModel, export_model
from labelahead.learner.preparation import prepare_campaign
from labelahead.simulation.run import check_data_fingerprint
from labelahead.simulation.store import Round, Store

__all__ = ["run_model"]


def run_model(
    folder: str | Path,
    *,
    data: Loaded | None = None,
    network: str | None = None,
    device: str | None = None,
    trust_code: bool = False,
) -> ExportedModel:
    """Return the network of a campaign's last round; its data are read again for the preprocessing.

    Args:
        folder: The campaign's folder.
        data: The data, if they were given in Python.
        network: Where the code of your own network is now.
        device: Where the items are encoded; default: where the campaign ran.
        trust_code: See `labelahead.load_model`.
    """
    own = {} if network is None else {"model.name": network}
    own |= {} if device is None else {"device": device}
    with Store.open(folder) as store:
        # The strategy does not matter here, and a user's own one is not imported.
        tables = read_stored(
            Path(folder) / "config.toml", own, trust_code=trust_code, without=("asking",)
        )
        prepared = prepare_campaign(parse_campaign(tables), data)
        check_data_fingerprint(store, prepared)
        store.require_complete_labels()
        rounds = store.read_rounds()
        if not rounds:
            raise InputError(
                f"{folder} has no finished round; expected one: labelahead resume {folder}"
            )
        last, classes = rounds[-1], prepared.data.classes
        trained = prepared.make_learner(len(classes)).network(prepared.campaign.seed)
        trained.load_state_dict(store.load_weights(last.number))
        labels = {
            entry.position: entry.label
            for entry in store.read_labels()
            if entry.round <= last.number
        }
    measured = last.accuracy is not None or bool(last.measures)
    accuracy: dict[str, Any] = {
        "measured": last.accuracy,
        "on": len(prepared.data.test) if measured else 0,
    }
    if prepared.task is not None:
        return export_model(
            prepared, trained, labels, classes, {**accuracy, **_describe_measures(last)}
        )
    if last.accuracy is None and last.error is not None:
        low, high = (1 - (rate or 0.0) for rate in (last.error_high, last.error_low))
        how = f"for items without a label, by {last.labels} labels ({low:.1%} to {high:.1%})"
        accuracy |= {"estimated": 1 - last.error, "how": how}
    return export_model(prepared, trained, labels, classes, accuracy)


def _describe_measures(last: Round) -> dict[str, Any]:
    """Return the measures of a task on test items, and the estimated error without them."""
    found: dict[str, Any] = {"measures": dict(last.measures)}
    if last.error is not None:
        found["error"] = last.error
        found["how"] = (
            f"for items without a label, by {last.labels} labels ({last.error_low:.4g} to "
            f"{last.error_high:.4g})"
        )
    return found
