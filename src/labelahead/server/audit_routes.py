"""The routes of the guided audit: freeze, items, answers, certificate, teach."""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, Request
from fastapi.responses import HTMLResponse
from pydantic import BaseModel, Field, StrictInt

from labelahead.server.auditing import PageAudit

__all__ = ["build_audit_routes"]


class AuditStart(BaseModel):
    """What is fixed before the first answer."""

    target: float = Field(
        0.02, gt=0, lt=0.5, description="Half-width to reach: 0.02 for ±2 points."
    )
    confidence: float = Field(0.95, gt=0, lt=1, description="Of the interval, at all times.")


class AuditAnswer(BaseModel):
    """The true class of an audited item."""

    position: StrictInt = Field(description="The item's position in the data set.")
    label: StrictInt = Field(description="A class number, or -2 for none of these.")


def build_audit_routes(
    audit: PageAudit, read_annotator: Callable[[Request], Awaitable[str]]
) -> APIRouter:
    """Build the routes. read_annotator: returns the name of who sends a request."""
    routes = APIRouter(prefix="/api/audit")

    @routes.get("", summary="State of the audit, and its interval")
    def describe() -> dict[str, Any]:
        return audit.describe()

    @routes.post("", summary="Freeze the predictions and begin an audit")
    def start(given: Annotated[AuditStart, Body()]) -> dict[str, Any]:
        """Of all items without a label. If an audit is running, it is returned."""
        return audit.start(confidence=given.confidence, target=given.target)

    @routes.get("/question", summary="The next item to label, without its prediction")
    def question(who: Annotated[str, Depends(read_annotator)]) -> dict[str, Any]:
        return audit.next_item(who)

    @routes.post("/answers", summary="Record an answer of the audit")
    def answers(
        given: Annotated[AuditAnswer, Body()], who: Annotated[str, Depends(read_annotator)]
    ) -> dict[str, Any]:
        """Stored durably when this returns; no model reads it. A second answer corrects the first."""
        return audit.record(who, given.position, given.label)

    @routes.post("/certificate", summary="Issue the certificate")
    def issue() -> dict[str, Any]:
        return audit.issue()

    @routes.get("/certificate", summary="The certificate as JSON")
    def certificate() -> dict[str, Any]:
        return dict(audit.read_certificate()[1])

    @routes.get(
        "/certificate.html", summary="The certificate to print", response_class=HTMLResponse
    )
    def certificate_page() -> HTMLResponse:
        name = 'attachment; filename="certificate.html"'
        return HTMLResponse(audit.read_certificate()[0], headers={"Content-Disposition": name})

    @routes.post("/teach", summary="Add the answers to the labels, after the certificate")
    def teach() -> dict[str, Any]:
        return audit.teach()

    return routes
