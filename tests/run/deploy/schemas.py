"""What the Prometheus Operator takes: schemas of the parts of its objects that are written here.

Of monitoring.coreos.com/v1, which no validator of Kubernetes' own API knows. Whatever is not named
here is refused.
"""

from typing import Any

_NAME = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"}
_DURATION = {"type": "string", "pattern": "^([0-9]+(ms|s|m|h|d|w|y))+$"}


def _object(required: dict[str, Any], **optional: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": required | optional,
        "required": list(required),
        "additionalProperties": False,
    }


def _texts() -> dict[str, Any]:
    return {"type": "object", "additionalProperties": {"type": "string"}}


def _of(kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    metadata = _object({"name": _NAME, "namespace": _NAME}, labels=_texts())
    api = {"const": "monitoring.coreos.com/v1"}
    return _object({"apiVersion": api, "kind": {"const": kind}, "metadata": metadata, "spec": spec})


_KEY = _object({"name": _NAME, "key": {"type": "string"}})
_CONFIG_MAP = _object({"configMap": _KEY})
_TLS = _object(
    {"ca": _CONFIG_MAP, "cert": _CONFIG_MAP, "keySecret": _KEY, "serverName": {"type": "string"}}
)
_ENDPOINT = _object(
    {"port": {"type": "string"}, "scheme": {"enum": ["http", "https"]}, "tlsConfig": _TLS},
    interval=_DURATION,
)
_RULE = _object(
    {"alert": {"type": "string", "pattern": "^[A-Z][A-Za-z]+$"}, "expr": {"type": "string"}},
    labels=_texts(),
    annotations=_texts(),
    **{"for": _DURATION},
)

SCHEMAS = {
    "ServiceMonitor": _of(
        "ServiceMonitor",
        _object(
            {
                "selector": _object({"matchLabels": _texts()}),
                "endpoints": {"type": "array", "minItems": 1, "items": _ENDPOINT},
            }
        ),
    ),
    "PrometheusRule": _of(
        "PrometheusRule",
        _object(
            {
                "groups": {
                    "type": "array",
                    "items": _object(
                        {
                            "name": {"type": "string"},
                            "rules": {"type": "array", "minItems": 1, "items": _RULE},
                        }
                    ),
                }
            }
        ),
    ),
}
