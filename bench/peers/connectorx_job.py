"""Reads a table into Arrow through ConnectorX: connectorx_job.py URI TABLE."""

import sys

import connectorx

connectorx.read_sql(sys.argv[1], f"select * from {sys.argv[2]}", return_type="arrow")
