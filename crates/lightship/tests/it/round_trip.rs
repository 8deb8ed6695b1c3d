//! Random tables of every type of PostgreSQL, through every file format and back: each column is the same, or it is
//! refused.

use lightship::{Format, Location, Options, TableName, Target, WriteMode, WriteTarget, copy};
use lightship_testkit::postgres::Postgres;
use lightship_testkit::seeds::seeds;

use super::location;

const ROWS: usize = 40;

/// Types, and some of their values as text. A table has them at random, with NULL between them.
const KINDS: &[(&str, &[&str])] = &[
    ("boolean", &["t", "f"]),
    ("smallint", &["0", "-32768", "32767"]),
    ("integer", &["0", "-2147483648", "2147483647", "7"]),
    ("bigint", &["0", "-9223372036854775808", "9223372036854775807", "9007199254740993"]),
    ("real", &["0", "-0", "0.1", "3.4028235e38", "1e-45", "1.5"]),
    (
        "double precision",
        &["0", "-0", "0.1", "1.7976931348623157e308", "5e-324", "1e16", "123456789012345680"],
    ),
    ("numeric", &["0", "1.5", "-0.000000000000000001", "12345678901234567890.123456789", "1e20"]),
    ("numeric(10,2)", &["0", "99999999.99", "-0.01", "1.50"]),
    ("numeric(38,10)", &["0", "9999999999999999999999999999.9999999999", "-1.0000000001"]),
    ("numeric(50,20)", &["0", "123456789012345678901234567890.12345678901234567890", "-0.5"]),
    ("money", &["0", "-1.5", "92233720368547758.07"]),
    (
        "text",
        &[
            "",
            " ",
            "x",
            "01234",
            "1.50",
            "true",
            "NULL",
            "null",
            "\\N",
            "\\.",
            "a,b",
            "say \"hi\"",
            "two\nlines",
            "cr\rlf\r\n",
            "tab\t",
            "é😀",
            "2024-01-01",
            "1e5",
            "-0",
            "NaN",
            "{}",
            "[1]",
            "0x10",
            "'",
        ],
    ),
    ("varchar(5)", &["", "abcde", " a ", "00001"]),
    ("char(3)", &["a", "abc", ""]),
    ("bytea", &["\\x", "\\x00", "\\x00ff10", "\\x616263"]),
    ("date", &["2024-02-29", "0001-01-01", "9999-12-31", "1969-12-31", "0044-03-15 BC", "10000-01-01"]),
    ("time", &["00:00:00", "23:59:59.999999", "10:30:00.5", "24:00:00"]),
    ("timetz", &["10:00:00+02", "23:59:59.999999-12"]),
    (
        "timestamp",
        &[
            "2024-02-29 10:00:00",
            "1969-12-31 23:59:59.999999",
            "0001-01-01 00:00:00",
            "0044-03-15 00:00:00 BC",
            "294276-01-01 00:00:00",
        ],
    ),
    ("timestamptz", &["2024-02-29 10:00:00+00", "1969-12-31 23:59:59.999999+00", "0001-01-01 00:00:00+00"]),
    (
        "interval",
        &["0", "1 year 2 months -3 days 04:05:06.789", "-00:00:00.000001", "100 years", "1 mon -1 day"],
    ),
    ("uuid", &["00112233-4455-6677-8899-aabbccddeeff", "00000000-0000-0000-0000-000000000000"]),
    ("json", &["{}", "{\"a\":  1, \"a\": 2}", "null", "\"x\"", "[1, 2.50]", "1e400"]),
    ("jsonb", &["{}", "{\"a\": [1, null]}", "null", "\"x\"", "12345678901234567890"]),
    ("inet", &["10.0.0.1", "10.0.0.0/8", "::1", "2001:db8::/32"]),
    ("cidr", &["10.0.0.0/8", "::/0"]),
    ("macaddr", &["08:00:2b:01:02:03"]),
    ("bit(3)", &["000", "101"]),
    ("varbit", &["", "1", "10101010101010101"]),
    ("tsvector", &["", "'a':1 'b':2A", "'it''s'"]),
    ("int4range", &["empty", "[1,5)", "(,)", "[3,)"]),
    ("tstzrange", &["[\"2024-01-01 00:00:00+00\",)"]),
    ("xml", &["<a>1</a>", "x"]),
    ("point", &["(1,2)", "(0.1,-1e300)"]),
    ("oid", &["0", "4294967295"]),
    ("name", &["x", "a b"]),
    ("\"char\"", &["a", "1"]),
    ("trip_mood", &["sad", "it's ok", ""]),
    ("int[]", &["{}", "{1,NULL,-5}", "{2147483647}"]),
    ("text[]", &["{}", "{\"\",NULL,\"NULL\",\"a,b\",\"q\\\"\"}", "{01}"]),
    ("numeric(6,2)[]", &["{1.50,NULL}", "{}"]),
    ("timestamptz[]", &["{\"2024-02-29 10:00:00+00\",NULL}"]),
    ("bytea[]", &["{\"\\\\x00ff\",NULL}"]),
    ("trip_mood[]", &["{sad,NULL}", "{}"]),
];

const FORMATS: [(Format, &str); 5] = [
    (Format::Csv, "csv"),
    (Format::Json, "jsonl"),
    (Format::Parquet, "parquet"),
    (Format::ArrowFile, "arrow"),
    (Format::ArrowStream, "arrows"),
];

/// What does not hold: format and type. A file that says no more than `1.50` of a text is read as a number.
const CHANGED: &[(&str, &str)] = &[];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn columns_come_back_from_files_the_same_or_are_refused() {
    let server = Postgres::start();
    server.psql("CREATE TYPE trip_mood AS ENUM ('sad', 'it''s ok', '')");
    let database = location(server.uri());
    let folder = tempfile::tempdir().expect("a folder");
    let (mut same, mut refused, mut changed) = (0, Vec::new(), Vec::new());
    for seed in seeds("LIGHTSHIP_TRIPS", 1) {
        for (at, (kind, values)) in KINDS.iter().enumerate() {
            let table = format!("trip_{at}");
            let list: Vec<_> =
                values.iter().map(|value| format!("'{}'", value.replace('\'', "''"))).collect();
            // Half of the values, in the mean, are beyond the end of the list, which is NULL.
            server.psql(&format!(
                "DROP TABLE IF EXISTS {table}; CREATE TABLE {table} (n int, c {kind}); SELECT setseed(0.{seed});
                 INSERT INTO {table} SELECT n, (ARRAY[{}])[1 + floor(random() * {})]::{kind}
                 FROM generate_series(1, {ROWS}) g(n)",
                list.join(", "),
                2 * values.len()
            ));
            for (format, extension) in FORMATS {
                let file = folder.path().join(format!("t.{extension}"));
                server.psql(&format!("CREATE TABLE {table}_back (LIKE {table})"));
                let outcome = round_trip(&database, &table, &file, format).await;
                let differences = format!(
                    "SELECT count(*) FROM {table} a FULL JOIN {table}_back b USING (n)
                     WHERE a.c::text IS DISTINCT FROM b.c::text"
                );
                match outcome {
                    Err(error) => refused.push((extension, *kind, error.message)),
                    Ok(()) if server.psql(&differences).trim() == "0" => same += 1,
                    Ok(()) => {
                        let shown = server.psql(&format!(
                            "SELECT a.c::text, b.c::text FROM {table} a FULL JOIN {table}_back b USING (n)
                             WHERE a.c::text IS DISTINCT FROM b.c::text LIMIT 3"
                        ));
                        changed.push((extension, *kind, shown));
                    }
                }
                server.psql(&format!("DROP TABLE IF EXISTS {table}_back"));
            }
        }
    }
    let unexpected: Vec<_> =
        changed.iter().filter(|(format, kind, _)| !CHANGED.contains(&(*format, *kind))).collect();
    assert!(unexpected.is_empty(), "{unexpected:#?}");
    assert!(same > 2 * refused.len(), "{same} columns are the same; refused: {refused:#?}");
}

/// Copies a table to a file, and the file into an empty table of the same types.
async fn round_trip(
    database: &Location,
    table: &str,
    file: &std::path::Path,
    format: Format,
) -> lightship::Result<()> {
    let options = Options::default();
    let to = Target::file(WriteTarget::File(file.to_owned()), format);
    copy(
        std::slice::from_ref(database),
        format!("SELECT n, c FROM {table} ORDER BY n"),
        to,
        &options,
        &mut (),
    )
    .await?;
    let to = Target::table(database, TableName::parse(&format!("{table}_back")), WriteMode::Existing)?;
    let from = location(file.to_str().expect("UTF-8"));
    copy(&[from], "SELECT n, c FROM t", to, &options, &mut ()).await.map(drop)
}
