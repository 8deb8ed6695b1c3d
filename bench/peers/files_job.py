"""Reads a file or an object and writes a file, in one engine: files_job.py ENGINE SOURCE TARGET.

SOURCE and TARGET end in .csv, .jsonl or .parquet, SOURCE also in .gz or .zst after that; TARGET may end in .arrow, or be
postgresql://.... SOURCE may be s3://BUCKET/KEY, at AWS_ENDPOINT_URL. The engine `copy` copies the bytes to an object.
"""

import os
import shutil
import sys

engine, source, target = sys.argv[1:]
plain = source.removesuffix(".gz").removesuffix(".zst")
kind = plain.rsplit(".", 1)[1]
remote = source.startswith("s3://") or target.startswith("s3://")
endpoint = os.environ.get("AWS_ENDPOINT_URL", "")
BATCH_ROWS = 65_536


def s3():
    from pyarrow import fs

    return fs.S3FileSystem(
        access_key=os.environ["AWS_ACCESS_KEY_ID"],
        secret_key=os.environ["AWS_SECRET_ACCESS_KEY"],
        region=os.environ["AWS_REGION"],
        endpoint_override=endpoint,
    )


def write_arrow(reader):
    import pyarrow as pa

    with pa.ipc.new_file(target, reader.schema) as writer:
        for batch in reader:
            writer.write(batch)


def with_duckdb():
    from extensions import connect

    names = ["httpfs"] if remote else []
    if target.startswith("postgresql:"):
        names.append("postgres_scanner")
    database = connect(*names)
    if remote:
        host = endpoint.removeprefix("http://")
        database.execute(
            f"create secret (type s3, key_id '{os.environ['AWS_ACCESS_KEY_ID']}', "
            f"secret '{os.environ['AWS_SECRET_ACCESS_KEY']}', region '{os.environ['AWS_REGION']}', "
            f"endpoint '{host}', url_style 'path', use_ssl false)"
        )
    if target.endswith(".arrow"):
        write_arrow(database.sql(f"from '{source}'").to_arrow_reader(BATCH_ROWS))
    elif target.endswith(".parquet"):
        # The same compression as Lightship's.
        options = "(format parquet, compression zstd, compression_level 1)"
        database.execute(f"copy (from '{source}') to '{target}' {options}")
    else:
        database.execute(f"attach '{target}' as pg (type postgres)")
        database.execute(f"insert into pg.target from '{source}'")


def with_polars():
    import polars as pl

    options = None
    if remote:
        names = ["AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"]
        options = {name.lower(): os.environ[name] for name in names} | {"aws_allow_http": "true"}
    if kind == "parquet":
        rows = pl.scan_parquet(source, storage_options=options)
    elif kind == "csv":
        rows = pl.scan_csv(source, try_parse_dates=True, storage_options=options)
    else:
        rows = pl.scan_ndjson(source, storage_options=options)
    if target.endswith(".arrow"):
        rows.sink_ipc(target, compression="uncompressed")
    else:
        rows.sink_parquet(target, compression="zstd", compression_level=1)


def with_pyarrow():
    import pyarrow as pa
    from pyarrow import csv, dataset, json, parquet

    if kind == "parquet":
        filesystem = s3() if remote else None
        place = source.removeprefix("s3://") if remote else source
        data = dataset.dataset(place, filesystem=filesystem, format="parquet")
        reader = data.scanner(batch_size=BATCH_ROWS).to_reader()
    else:
        compression = {".gz": "gzip", "zst": "zstd"}.get(source[-3:])
        stream = s3().open_input_stream(source.removeprefix("s3://"), compression=compression) if remote else source
        if kind == "csv":
            reader = csv.open_csv(stream, parse_options=csv.ParseOptions(newlines_in_values="newlines" in source))
        else:
            reader = json.read_json(stream).to_reader(BATCH_ROWS)
    if target.endswith(".arrow"):
        write_arrow(reader)
        return
    with parquet.ParquetWriter(target, reader.schema, compression="zstd", compression_level=1) as writer:
        for batch in reader:
            writer.write(pa.Table.from_batches([batch]))


def copy():
    with open(source, "rb") as file, s3().open_output_stream(target.removeprefix("s3://")) as stream:
        shutil.copyfileobj(file, stream, 8 << 20)


{"duckdb": with_duckdb, "polars": with_polars, "pyarrow": with_pyarrow, "copy": copy}[engine]()
