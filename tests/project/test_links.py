"""Every link of every page leads somewhere, and the site has all of docs/ and all public names.

`make check` runs this file, so that a broken link is found where the site's packages are not.
"""

import re
from collections import Counter
from pathlib import Path

import pytest

import secureps as ps
from tests.kits.nursery import ROOT

DOCS = ROOT / "docs"
SITE = sorted(DOCS.rglob("*.md"))
OTHERS = ("aggregator", "benchmarks", "clients", "examples", "policies", "secureps", "simulations")
PAGES = [*sorted(ROOT.glob("*.md")), *SITE, ROOT / "vectors" / "README.md"]
PAGES += [page for folder in OTHERS for page in sorted((ROOT / folder).rglob("*.md"))]

_LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)")
_HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)
_CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def links(text: str) -> list[tuple[str, str]]:
    """The file and the anchor of every relative link, either of them empty where it has none."""
    return [(file, anchor) for file, anchor in _LINK.findall(_CODE.sub("", text))]


def anchors(text: str) -> set[str]:
    """What a link may name after `#`: the headings, as GitHub and the site spell them.

    Two headings of one text have none: the two sites would number them differently.
    """
    plain = (re.sub(r"\]\([^)]*\)", "", title) for title in _HEADING.findall(_CODE.sub("", text)))
    slugs = Counter(
        re.sub(r"[^\w\- ]", "", each.strip().lower()).replace(" ", "-") for each in plain
    )
    return {slug for slug, times in slugs.items() if times == 1}


def broken_links(page: Path) -> list[str]:
    found = []
    for file, anchor in links(page.read_text()):
        target = page.parent / file if file else page
        if not target.exists() or (anchor and anchor not in anchors(target.read_text())):
            found.append(f"{file}#{anchor}")
    return found


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_link_leads_somewhere(page: Path) -> None:
    assert broken_links(page) == []


@pytest.mark.parametrize("page", SITE, ids=named)
def test_a_page_of_the_site_links_to_no_file_outside_it(page: Path) -> None:
    targets = [target for target, _ in links(page.read_text())]
    assert [t for t in targets if not (page.parent / t).resolve().is_relative_to(DOCS)] == []


def test_the_navigation_has_every_page_once() -> None:
    shown = re.findall(r"^ +- .+: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(shown) == sorted(str(page.relative_to(DOCS)) for page in SITE)


def test_the_reference_has_every_public_name_once() -> None:
    shown = re.findall(r"^::: secureps\.(\w+)$", (DOCS / "api.md").read_text(), re.MULTILINE)
    assert sorted(shown) == sorted(ps.__all__)
