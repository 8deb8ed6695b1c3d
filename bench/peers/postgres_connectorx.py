"""Reads a table through ConnectorX: postgres_connectorx.py URI TABLE COLUMN PARTITIONS."""

import sys

import connectorx

from peer import measure

uri, table, column, partitions = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])


def work():
    split = {"partition_on": column, "partition_num": partitions} if partitions > 1 else {}
    result = connectorx.read_sql(uri, f"select * from {table}", return_type="arrow", **split)
    return result.num_rows, result.nbytes


measure(work)
