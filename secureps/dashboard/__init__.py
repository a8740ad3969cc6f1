"""A run in a browser: what each viewer sees of it, and the small application that shows it."""

from typing import Any

Json = dict[str, Any]
"""An object of a page for its script in `site/`; it may contain dataclasses."""
