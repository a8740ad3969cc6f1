"""A run in a browser: what is seen of it, by whom, and the small application that shows it."""

from typing import Any

Json = dict[str, Any]
"""An object of a page, as its script in `site/` reads it; it may have dataclasses in it."""
