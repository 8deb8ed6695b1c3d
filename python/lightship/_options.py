"""Options as keyword arguments."""

from __future__ import annotations

import json
import operator
import os
from collections.abc import Iterable
from typing import Any, TypedDict

from lightship import _lightship


class Options(TypedDict, total=False):
    """How a result is read and carried. What is not given is chosen from measurements."""

    #: Memory for rows in this process, in bytes: 64 MiB, or 1 GiB for a query over files. At least 4 MiB.
    memory_bytes: int
    #: Encoding of rows from a node: none, light, light+lz4 or light+zstd.
    codec: str
    #: Rows in a batch.
    batch_rows: int
    #: Bytes in a message from a node.
    message_bytes: int
    #: The largest message from a node, for a single row.
    message_bytes_max: int
    #: Batches in flight from a node.
    window_batches: int
    #: Connections that carry one result.
    streams: int
    #: The type of PostgreSQL's ``numeric`` without a precision: decimal, decimal(P,S), string or double.
    numeric: str
    #: Infinite dates, timestamps and numbers of PostgreSQL: error, null or text.
    infinite: str
    #: Columns of the same name: error or rename.
    duplicate_columns: str


NAMES = tuple(json.loads(_lightship.default_options()))


def encoded(options: dict[str, Any]) -> str:
    for name in options:
        if name not in NAMES:
            raise TypeError(f"unexpected option {name!r}; the options are {', '.join(NAMES)}")
    return json.dumps(options, default=operator.index)


def sources(uri: str | os.PathLike[str], also: Iterable[str | os.PathLike[str]]) -> list[str]:
    if isinstance(also, (str, os.PathLike)):
        also = [also]
    return [os.fspath(one) for one in (uri, *also)]
