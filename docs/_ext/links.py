"""Check the links of the built site: `python docs/_ext/links.py build/docs`. Nothing is fetched.

A link inside the site must lead to a file that is there, and its anchor to an element of it;
nothing may be loaded from elsewhere; an address outside must at least have the form of one.
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """Anchors and links of one page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[tuple[str, str]] = []  # tag, address
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect what can be pointed at, and what points."""
        values = dict(attrs)
        self.anchors |= {values[name] for name in ("id", "name") if values.get(name)}
        address = values.get("href" if tag in ("a", "link") else "src")
        if address:
            self.links.append((tag, address))


def fault(site: Path, pages: dict[Path, Page], path: Path, tag: str, address: str) -> str | None:
    """What is wrong with a link, or None."""
    parts = urlsplit(address)
    if parts.scheme in ("mailto", "data", "javascript"):
        return None
    if parts.scheme or parts.netloc:
        if tag != "a":
            return "is loaded from elsewhere"
        good = parts.scheme in ("http", "https") and parts.hostname and " " not in address
        return None if good else "is no address"
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    target = target / "index.html" if target.is_dir() else target
    if not target.is_file():
        return f"leads to {target}, which is not there"
    if parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
        return f"leads to #{parts.fragment}, which is not on {target.name}"
    return None


def main(site: Path) -> int:
    """Print every fault; 1 if there is one."""
    pages = {path: Page(path.read_text()) for path in sorted(site.resolve().rglob("*.html"))}
    faults = [
        f"{path.relative_to(site.resolve())}: {address} {said}"
        for path, page in pages.items()
        for tag, address in page.links
        if (said := fault(site, pages, path, tag, address))
    ]
    print(
        "\n".join(faults)
        or f"{sum(len(p.links) for p in pages.values()):,} links on {len(pages)} pages, all good"
    )
    return 1 if faults or not pages else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
