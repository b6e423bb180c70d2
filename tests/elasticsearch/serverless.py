"""A proxy that refuses what Elasticsearch Serverless refuses, in its words, in front of a test server.

The settings are those of its documentation (`index-settings/serverless`), the APIs those whose handlers are not marked
as public in the sources. Its index settings show neither shards nor replicas here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from tests.elasticsearch.faults import Answer, Proxy, Request

_SETTINGS = re.compile(
    r"index\.(codec|default_pipeline|final_pipeline|hidden|mode|query\.default_field|refresh_interval"
    r"|sort\.\w+|blocks\.\w+|mapping\..+|similarity\..+|analysis\..+)"
)
_APIS = re.compile(
    r"/(_forcemerge|_stats|_clone|_nodes|_cluster|_shrink|_split|_mapping/field|_cat/nodes)(/|$)"
)
_HIDDEN = re.compile(rb'"index\.number_of_(shards|replicas)":"\d+",?')


class Serverless(Proxy):
    """Refuses the settings and APIs that are the service's own."""

    def respond(self, request: Request) -> Answer | None:
        path = urlsplit(request.path).path
        if _APIS.search(path):
            uri = f"Request for uri [{request.path}] with method [{request.method}] exists but is"
            return _refusal(410, "api_not_available_exception", uri)
        if request.method == "PUT" and not path.endswith("_mapping"):
            body = json.loads(request.body or b"{}")
            settings = body if path.endswith("_settings") else body.get("settings", {})
            names = [name for name in _names(settings) if not _SETTINGS.fullmatch(name)]
            if names:
                return _refusal(400, "illegal_argument_exception", f"Settings [{','.join(names)}] are")
        answer = super().respond(request)
        if answer is not None and path.endswith("_settings"):
            answer = answer._replace(body=_HIDDEN.sub(b"", answer.body))
        return answer


def _names(settings: dict[str, Any], prefix: str = "index") -> Iterator[str]:
    for key, value in settings.items():
        name = key if key.startswith("index.") else f"{prefix}.{key}"
        if isinstance(value, dict):
            yield from _names(value, name)
        else:
            yield name


def _refusal(status: int, kind: str, subject: str) -> Answer:
    error = {"type": kind, "reason": f"{subject} not available when running in serverless mode"}
    body = {"error": {"root_cause": [error], **error}, "status": status}
    headers = {"Content-Type": "application/json", "X-Elastic-Product": "Elasticsearch"}
    return Answer(status, json.dumps(body).encode(), headers)
