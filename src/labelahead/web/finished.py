"""The model that the page's labels make, for people to take away."""

from pathlib import Path

from labelahead.campaign.finished import Finished
from labelahead.web.fitting import page_model, refuse_large, settings
from labelahead.web.session import opened

__all__ = ["session_model"]


def session_model(folder: str | Path) -> Finished:
    """Learnt from all labels that a page has kept in this folder, also while a page is open on it."""
    campaign = settings(Path(folder))
    refuse_large(campaign)
    with opened(campaign, folder, test=campaign.data.test_fraction or None, read_only=True) as session:
        session.schedule.remember()
        return page_model(session.assignment, session.schedule)
