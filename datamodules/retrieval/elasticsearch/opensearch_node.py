"""HTTP connections to an OpenSearch server, through opensearch-py."""

from __future__ import annotations

import logging

import elasticsearch
import opensearchpy
from elastic_transport import ApiResponseMeta, BaseNode, HttpHeaders, NodeConfig
from elastic_transport._node import NodeApiResponse
from elastic_transport.client_utils import DEFAULT, DefaultType
from typing_extensions import override

from datamodules.core.errors import InputError

# Failures are raised; it would also log each of them with a traceback.
logging.getLogger("opensearch").addFilter(lambda record: record.levelno != logging.WARNING)


class OpenSearchNode(BaseNode):
    """Sends the requests that Elasticsearch's client builds: OpenSearch has the same paths and bodies.

    `ServerConnection` gives it to the client. It sends no headers of Elasticsearch, whose media types are refused.
    """

    def __init__(self, config: NodeConfig) -> None:
        super().__init__(config)
        self._connection = opensearchpy.Urllib3HttpConnection(
            config.host,
            config.port,
            use_ssl=config.scheme == "https",
            ca_certs=config.ca_certs,
            url_prefix=config.path_prefix,
            timeout=config.request_timeout,
            pool_maxsize=config.connections_per_node,
        )

    @override
    def perform_request(
        self,
        method: str,
        target: str,
        body: bytes | None = None,
        headers: HttpHeaders | None = None,
        request_timeout: DefaultType | float | None = DEFAULT,
    ) -> NodeApiResponse:
        """Send a request; raise an `InputError` if Elasticsearch answers."""
        sent = {name: value for name, value in (headers or {}).items() if name.lower() == "authorization"}
        timeout = None if isinstance(request_timeout, DefaultType) else request_timeout
        try:
            status, answered, text = self._connection.perform_request(
                method, target, body=body, timeout=timeout, ignore=range(600), headers=sent
            )
        except opensearchpy.ConnectionError as error:
            # The classes of both clients have the same names.
            raise getattr(elasticsearch, type(error).__name__)(error.error) from None
        if "x-elastic-product" in answered:
            raise InputError(f"{self.base_url}: this is Elasticsearch; use ElasticsearchRetriever")
        # The transport measures the duration.
        meta = ApiResponseMeta(status, "1.1", HttpHeaders(answered), 0.0, self.config)
        return NodeApiResponse(meta, text.encode("utf-8", "surrogatepass"))

    @override
    def close(self) -> None:
        self._connection.close()
