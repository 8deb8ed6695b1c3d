"""Writes random files of CSV and JSON with Python's own modules, and with pandas and pyarrow where they are installed.

    write_files.py FOLDER COUNT SEED

Prints a JSON object for each file: its location with the options to read it, the names of its columns, and its values as
texts, with null for NULL.
"""

import bz2
import csv
import gzip
import io
import json
import lzma
import random
import sys
from pathlib import Path
from urllib.parse import quote

try:
    import pandas
except ImportError:
    pandas = None
try:
    import pyarrow
    import pyarrow.csv
except ImportError:
    pyarrow = None

COMPRESSIONS = {"": lambda data: data, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
WORDS = ["", "x", "é", "a b", " ", "NA", "null", "it's", 'say "hi"', "1,5", "a;b", "a\tb", "a|b", "two\nlines",
         "crlf\r\nhere", "01234", "+49 30", "12:30", "\\", "日本", "😀", "-", "2024-02-30", "1_000", "0x1F", "--5"]


def number(random):
    kind = random.randrange(8)
    if kind == 0:
        return str(random.randrange(-100, 100))
    if kind == 1:
        return str(random.randrange(-(2**63), 2**63))
    if kind == 2:
        return str(random.randrange(-(10**25), 10**25))
    if kind == 3:
        return repr(random.uniform(-1e6, 1e6))
    if kind == 4:
        return f"{random.randrange(10**12)}.{random.randrange(10**8):08}"
    if kind == 5:
        return f"{random.random():.17g}"
    if kind == 6:
        return f"{random.uniform(-10, 10):.3e}"
    return str(2**53 + random.randrange(-2, 3))


def date(random):
    return f"{random.randrange(1000, 3000)}-{random.randrange(1, 13):02}-{random.randrange(1, 29):02}"


def time(random):
    fraction = random.choice(["", ".5", ".123", ".123456"])
    clock = f"{random.randrange(24):02}:{random.randrange(60):02}:{random.randrange(60):02}{fraction}"
    return f"{date(random)}{random.choice('T ')}{clock}"


def column(random, rows):
    """Texts of a column: of one type mostly, sometimes of several."""
    kinds = [
        lambda: str(random.randrange(1000)),
        lambda: number(random),
        lambda: random.choice(["true", "false"]),
        lambda: date(random),
        lambda: time(random),
        lambda: time(random) + random.choice(["Z", "+02:00", "-0330", "+05"]),
        lambda: random.choice(WORDS),
        lambda: "".join(random.choice(WORDS) for _ in range(random.randrange(4))),
    ]
    chosen = random.sample(kinds, random.choice([1, 1, 1, 2]))
    nulls = random.choice([0, 0, 0.2, 1])
    return [None if random.random() < nulls else random.choice(chosen)() for _ in range(rows)]


def names(random, columns):
    names = ["a", "B b", "c,1", 'd"q', "é", "select", "f\ng", "H"]
    return random.sample(names, columns)


def write_csv(random, folder, number):
    rows, width = random.randrange(0, 12), random.randrange(1, 5)
    table = [list(row) for row in zip(*(column(random, rows) for _ in range(width)))]
    heads = names(random, width)
    options = {}
    delimiter = random.choice([",", ",", ";", "\t", "|"])
    extension = {",": ".csv", "\t": ".tsv", "|": ".psv"}.get(delimiter, ".csv")
    if delimiter == ";":
        options["delimiter"] = ";"
    quoting = random.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
    style = {"delimiter": delimiter, "lineterminator": random.choice(["\n", "\r\n"]), "quoting": quoting}
    if random.random() < 0.2:
        style["quotechar"] = options["quote"] = "'"
    if random.random() < 0.2:
        style |= {"doublequote": False, "escapechar": "\\"}
        options["escape"] = "\\"
        # Python's writer escapes outside of quotes, too.
        style["quoting"] = quoting = csv.QUOTE_ALL
    encoding = random.choice(["utf-8", "utf-8", "utf-8-sig", "utf-16", "utf-16-le", "latin-1"])
    if encoding in ("latin-1", "utf-16-le"):
        options["encoding"] = {"latin-1": "latin1", "utf-16-le": "utf-16le"}[encoding]
    if encoding == "latin-1":
        fit = lambda text: text and text.encode("latin-1", "replace").decode("latin-1")
        table, heads = [[fit(text) for text in row] for row in table], [fit(head) for head in heads]
    # An empty text without quotes is NULL.
    has_empty = quoting == csv.QUOTE_ALL
    text = io.StringIO()
    writer = csv.writer(text, **style)
    header = random.random() < 0.8
    if header:
        writer.writerow(heads)
    else:
        options["header"] = "false"
        heads = [f"column_{place + 1}" for place in range(width)] if rows else []
    writer.writerows(table)
    compression = random.choice(list(COMPRESSIONS))
    path = folder / f"{number}{extension}{compression}"
    path.write_bytes(COMPRESSIONS[compression](text.getvalue().encode(encoding)))
    if not has_empty:
        # Python quotes the empty text where it is alone in its record.
        table = [[text or (None if width > 1 else "") for text in row] for row in table]
    else:
        table = [[text or "" for text in row] for row in table]
    return path, options, heads, table


def write_json(random, folder, number):
    rows, width = random.randrange(0, 12), random.randrange(1, 5)
    columns = [column(random, rows) for _ in range(width)]
    heads = names(random, width)
    kinds = [random.choice(["text", "number", "boolean"]) for _ in range(width)]
    table = []
    for row in zip(*columns):
        fit = {"text": lambda text: text, "number": lambda _: numeral(random), "boolean": lambda _: random.choice(["true", "false"])}
        table.append([None if text is None else fit[kind](text) for text, kind in zip(row, kinds)])
    ascii = random.random() < 0.5

    def value(text, kind):
        if text is None:
            return "null"
        return json.dumps(text, ensure_ascii=ascii) if kind == "text" else text

    def object_of(row):
        pairs = [f"{json.dumps(head, ensure_ascii=ascii)}: {value(text, kind)}" for head, text, kind in zip(heads, row, kinds)]
        random.shuffle(pairs)
        return pairs

    layout = random.choice(["lines", "array", "pretty", "pretty array"])
    between = "\n" if "pretty" in layout else ""
    objects = ["{" + between + ("," + (between or " ")).join(object_of(row)) + between + "}" for row in table]
    if "array" in layout:
        text = "[" + ",\n".join(objects) + "]\n"
    else:
        text = "".join(one + "\n" for one in objects)
    compression = random.choice(list(COMPRESSIONS))
    path = folder / f"{number}.json{compression}"
    path.write_bytes(COMPRESSIONS[compression](text.encode("utf-8")))
    return path, {}, heads if rows else [], table


def numeral(random):
    """A number as JSON has it."""
    text = number(random)
    json.loads(text)
    return text


def write_pandas(random, folder, number):
    rows, width = random.randrange(1, 12), random.randrange(2, 5)
    heads = names(random, width)
    columns = [column(random, rows) for _ in range(width)]
    frame = pandas.DataFrame(dict(zip(heads, columns)), dtype=object)
    path = folder / f"{number}.csv{random.choice(['', '.gz', '.bz2', '.xz'])}"
    frame.to_csv(path, index=False, na_rep="<none>")
    table = [[text or None for text in row] for row in zip(*columns)]
    return path, {"null": "<none>"}, heads, table


def write_pyarrow(random, folder, number):
    rows, width = random.randrange(1, 12), random.randrange(2, 5)
    heads = names(random, width)
    columns = [column(random, rows) for _ in range(width)]
    arrays = [pyarrow.array(texts, pyarrow.string()) for texts in columns]
    path = folder / f"{number}.csv"
    options = pyarrow.csv.WriteOptions(quoting_style="all_valid")
    pyarrow.csv.write_csv(pyarrow.Table.from_arrays(arrays, heads), path, options)
    return path, {}, heads, [list(row) for row in zip(*columns)]


def main():
    folder, count, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    writers = [write_csv, write_csv, write_json]
    writers += [write_pandas] if pandas else []
    writers += [write_pyarrow] if pyarrow else []
    for place in range(count):
        source = random.Random(f"{seed} {place}")
        path, options, heads, table = source.choice(writers)(source, folder, f"f{place}")
        query = "&".join(f"{name}={quote(text)}" for name, text in options.items())
        location = f"{path}?{query}" if query else str(path)
        print(json.dumps({"location": location, "names": heads, "rows": table}))


main()
