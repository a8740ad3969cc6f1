"""Whether a party is traced, which OpenTelemetry's own variables say.

The library itself is imported when they ask for it (`service.spans`).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

from secureps.errors import ConfigError
from secureps.extras import from_extras
from secureps.service.logs import tell
from secureps.service.tracing import Tracing

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
EXPORTER, DISABLED = "OTEL_TRACES_EXPORTER", "OTEL_SDK_DISABLED"
"""OpenTelemetry's own variables, of which one has to be set."""

EXPORTERS = ("otlp", "console")


def tracing(party: str, role: str, environment: Mapping[str, str] | None = None) -> Tracing | None:
    """The tracing of a party, if OpenTelemetry's variables ask for it; None if they do not.

    They may be those of everything on a machine: what is wrong with them is logged, and stops
    nobody.

    Args:
        environment: default: this process's.
    """
    asked = os.environ if environment is None else environment
    exporter = asked.get(EXPORTER, "otlp" if any(map(asked.get, ENDPOINTS)) else "none").strip()
    if asked.get(DISABLED, "").strip().lower() == "true" or exporter in ("", "none"):
        return None
    try:
        if exporter not in EXPORTERS:
            known = ", ".join(EXPORTERS)
            raise ConfigError(f"{EXPORTER}: {exporter!r} is not known here; known are {known}")
        with from_extras():
            from secureps.service.spans import OpenTelemetrySpans

            return Tracing(OpenTelemetrySpans.exported(party, role, exporter))
    except Exception as error:  # of a library, for a value of its own variables
        tell(party, "NotTraced", f"no traces: {error}", logging.WARNING)
        return None
