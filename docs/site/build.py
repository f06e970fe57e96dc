"""Builds the site: docs/ and what is made of the code, through the generator, with every link of the result looked after.

python docs/site/build.py
"""

from __future__ import annotations

import html.parser
import shutil
import subprocess
import sys
import urllib.parse
from pathlib import Path

import header

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "build" / "docs-pages"  # docs_dir of mkdocs.yml
SITE = ROOT / "build" / "docs"  # site_dir of mkdocs.yml


def main() -> int:
    """Build, check, and say what is wrong; gives the exit status."""
    collect()
    generator = [str(Path(sys.executable).parent / "zensical"), "build", "--clean", "--strict", "-f", "mkdocs.yml"]
    done = subprocess.run(generator, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if (
        done.returncode or "griffe:" in done.stdout
    ):  # what griffe finds wrong in docstrings is no warning of the generator
        print(done.stdout)
        return 1
    faults = check(SITE)
    print(*faults, f"{SITE.relative_to(ROOT)}/index.html", sep="\n")
    return 1 if faults else 0


def collect() -> None:
    """Put together all pages: those of docs/, and those made of the C header and of the Go packages' comments."""
    shutil.rmtree(PAGES, ignore_errors=True)
    shutil.rmtree(SITE, ignore_errors=True)
    shutil.copytree(ROOT / "docs", PAGES, ignore=shutil.ignore_patterns("site"))
    shutil.copy(ROOT / "docs" / "site" / "extra.css", PAGES)
    (PAGES / "reference" / "c.md").write_text(header.markdown((ROOT / "include" / "dynamo_go.h").read_text()))
    subprocess.run(["go", "run", "./docs/site/godoc", PAGES / "reference" / "go"], cwd=ROOT, check=True)


class Page(html.parser.HTMLParser):
    """What a page names, links to, and fetches."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take one element."""
        given = {name: value or "" for name, value in attrs}
        self.anchors.update(given[name] for name in ("id", "name") if name in given)
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif "src" in given:
            self.fetched.append(given["src"])
        elif tag == "link" and given.get("rel") not in ("canonical", "prev", "next"):
            self.fetched.append(given.get("href", ""))


def check(site: Path) -> list[str]:
    """Find links that lead nowhere, and what a browser would fetch from the network to show a page."""
    pages = {path: Page(path) for path in site.rglob("*.html") if path.name != "404.html"}
    faults = []
    for path, page in pages.items():
        where = path.relative_to(site)
        for url in (*page.links, *page.fetched):
            parts = urllib.parse.urlsplit(url)
            if parts.scheme or parts.netloc:
                if url in page.fetched and parts.scheme != "data":
                    faults.append(f"{where} fetches {url}")
                continue
            target = (path.parent / urllib.parse.unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.exists():
                faults.append(f"{where} leads to {url}, which does not exist")
            elif (
                parts.fragment and target in pages and urllib.parse.unquote(parts.fragment) not in pages[target].anchors
            ):
                faults.append(f"{where} leads to {url}: there is no such place on that page")
    return faults


if __name__ == "__main__":
    sys.exit(main())
