"""Fit the model of a labelling session from its folder, for export."""

from dataclasses import replace
from pathlib import Path

from labelahead.learner.config import parse_campaign, read_stored
from labelahead.learner.export import ExportedModel
from labelahead.server.fitting import build_exported_model, reject_large_pool
from labelahead.server.session import open_session

__all__ = ["session_model"]


def session_model(
    folder: str | Path, *, device: str | None = None, trust_code: bool = False
) -> ExportedModel:
    """Fit a model on all labels in a session's folder, also while a server has it open.

    device, trust_code: see `labelahead.load_model`.
    """
    campaign = parse_campaign(read_stored(Path(folder) / "session.toml", trust_code=trust_code))
    campaign = campaign if device is None else replace(campaign, device=device)
    reject_large_pool(campaign)
    with open_session(
        campaign, folder, test=campaign.data.test_fraction or None, read_only=True
    ) as session:
        session.schedule.restore()
        return build_exported_model(session.service, session.schedule)
