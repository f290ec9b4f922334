"""The model that the page's labels make, for people to take away."""

from pathlib import Path

from labelahead.learner.config import parse_campaign, read_stored
from labelahead.learner.export import ExportedModel
from labelahead.server.fitting import build_exported_model, reject_large_pool
from labelahead.server.session import open_session

__all__ = ["session_model"]


def session_model(folder: str | Path, *, trust_code: bool = False) -> ExportedModel:
    """Learnt from all labels that a page has kept in this folder, also while a page is open on it.

    trust_code: see `labelahead.load_model`.
    """
    campaign = parse_campaign(read_stored(Path(folder) / "session.toml", trust_code=trust_code))
    reject_large_pool(campaign)
    with open_session(
        campaign, folder, test=campaign.data.test_fraction or None, read_only=True
    ) as session:
        session.schedule.restore()
        return build_exported_model(session.service, session.schedule)
