"""Requests that arrive during a prediction share the next one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from fastapi import Response

from datamodules.core.types import PlainDict
from zoo.serve.bodies import Predicted

#: Texts, and their characters, that requests predict together: more would gain little, and wait longer.
_MOST_TEXTS, _MOST_CHARACTERS = 64, 50_000


class _Request(NamedTuple):
    body: Predicted
    options: PlainDict
    #: an exception is a value: asyncio would not raise every one.
    result: Future[Response | BaseException]


class Gathering:
    """A thread that answers requests: those that wait and have equal options share a call of `respond`.

    A request with more texts than others may share has its own call. A request that finds the thread idle is answered
    at once: no request waits for others to come.
    """

    def __init__(self, respond: Callable[[Sequence[Predicted]], list[Response]]) -> None:
        self._respond, self._waiting = respond, deque[_Request]()
        self._thread = ThreadPoolExecutor(1)

    async def response(self, body: Predicted) -> Response:
        """Return the response to a request, or raise the exception of its own call."""
        request = _Request(body, body.model_dump(exclude={"text", "texts", "memories"}), Future())
        self._waiting.append(request)
        self._thread.submit(self._answer_next)
        result = await asyncio.wrap_future(request.result)
        if isinstance(result, BaseException):
            raise result
        return result

    def _answer_next(self) -> None:
        """Answer the request that has waited the longest with those that can share its call; none may be left."""
        taken, others = list[_Request](), list[_Request]()
        left, characters = _MOST_TEXTS, _MOST_CHARACTERS
        for _ in range(len(self._waiting)):
            request = self._waiting.popleft()
            texts = request.body.all_texts()
            number, size = len(texts), sum(map(len, texts))
            if taken and (number > left or size > characters or request.options != taken[0].options):
                others.append(request)
            elif request.result.set_running_or_notify_cancel():
                taken.append(request)
                left, characters = left - number, characters - size
        self._waiting.extendleft(reversed(others))
        results = self._results([request.body for request in taken]) if taken else []
        for request, result in zip(taken, results, strict=True):
            request.result.set_result(result)

    def _results(self, bodies: list[Predicted]) -> Sequence[Response | BaseException]:
        try:
            return self._respond(bodies)
        except BaseException as error:
            # Every request gets its own answer or error; that of a server, which took long, is the same for all.
            if len(bodies) == 1 or isinstance(error.__cause__, ConnectionError):
                return [error] * len(bodies)
            return [self._results([body])[0] for body in bodies]
