//! Tests of the catalog with queries of real clients.

use arrow_cast::display::array_value_to_string;

use super::guard::QUERY_TIMEOUT;
use super::*;

fn caller() -> Caller {
    Caller {
        user: "me".into(),
        database: "db".into(),
        process: 7,
        settings: Settings::new("me"),
        now_us: 1_500_000,
    }
}

fn engine() -> Engine {
    use arrow_schema::DataType::{Date32, Decimal128, Int64, Utf8};
    let mut engine = Engine::new().unwrap();
    let column = |name: &str, data_type| (name.to_owned(), data_type, name != "id");
    let columns = vec![
        column("id", Int64),
        column("price", Decimal128(15, 2)),
        column("name", Utf8),
        column("ship", Date32),
    ];
    let table = |schema: &str, name: &str| TableEntry {
        schema: schema.into(),
        name: name.into(),
        columns: columns.clone(),
        key: if schema == "other" { vec!["name".into(), "id".into()] } else { Vec::new() },
    };
    let tables = vec![table("other", "Odd Name"), table("public", "lineitem")];
    engine.prepare(Some(Arc::new(tables)), &caller()).unwrap();
    engine
}

/// The columns of a result, and its rows as text.
async fn ask(engine: &mut Engine, sql: &str, parameters: &[Value]) -> PgResult<(Vec<PgColumn>, Vec<String>)> {
    assert!(recognise::may_be(sql), "{sql}");
    let query = recognise(sql)?.unwrap_or_else(|| panic!("not of the catalog: {sql}"));
    let waiting = Arc::new(());
    let mut stream = engine.run(query, parameters, &caller(), Arc::downgrade(&waiting))?;
    let columns = stream.columns.to_vec();
    let batch = stream.next_batch().await?.unwrap();
    let row = |row: usize| {
        let value = |column: &ArrayRef| array_value_to_string(column, row).unwrap();
        batch.columns().iter().map(value).collect::<Vec<_>>().join("|")
    };
    Ok((columns, (0..batch.num_rows()).map(row).collect()))
}

async fn check(sql: &str, expected: &[&str]) {
    let (_, rows) = ask(&mut engine(), sql, &[]).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    assert_eq!(rows, expected, "{sql}");
}

#[tokio::test]
async fn functions_about_the_session_are_answered() {
    check("select current_schema(), current_database(), current_user, pg_backend_pid()", &["public|db|me|7"])
        .await;
    check("select current_setting('server_version_num')::int", &["160004"]).await;
    check(
        "SELECT pg_is_in_recovery(), pg_export_snapshot(), (select count(*) from pg_stat_wal_receiver)",
        &["false|00000003-00000001-1|0"],
    )
    .await;
    check(
        "select 'lineitem'::regclass, 'pg_class'::regclass::oid, 'integer'::regtype",
        &["lineitem|1259|integer"],
    )
    .await;
    check("select now()", &["1970-01-01T00:00:01.500Z"]).await;
    check("select to_regclass('nonsense'), (current_schemas(false))[1]", &["|public"]).await;
}

#[tokio::test]
async fn columns_have_names_and_types_of_postgresql() {
    let sql = "select c.oid, c.relname AS \"Name\", n.nspname = 'public', count(*) over (), c.oid::regclass, 1 + 1, \
        case when true then relkind end from pg_class c join pg_namespace n on n.oid = c.relnamespace limit 1";
    let (columns, _) = ask(&mut engine(), sql, &[]).await.unwrap();
    let columns: Vec<_> = columns.iter().map(|column| (column.name.as_str(), column.oid)).collect();
    let expected = [
        ("oid", oid::OID),
        ("Name", oid::NAME),
        ("?column?", oid::BOOL),
        ("count", oid::INT8),
        ("oid", oid::REGCLASS),
        ("?column?", oid::INT4),
        ("case", oid::CHAR),
    ];
    assert_eq!(columns, expected);
}

#[tokio::test]
async fn tables_and_columns_are_found() {
    let sql = "SELECT n.nspname, c.relname FROM pg_catalog.pg_class c \
        LEFT JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
        WHERE c.relname OPERATOR(pg_catalog.~) '^(lineitem)$' COLLATE pg_catalog.default \
        AND pg_catalog.pg_table_is_visible(c.oid)";
    check(sql, &["public|lineitem"]).await;
    let sql = "SELECT a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod), a.attnotnull \
        FROM pg_attribute a WHERE a.attrelid = 'public.lineitem'::regclass AND a.attnum > 0 ORDER BY a.attnum";
    check(sql, &["id|bigint|true", "price|numeric(15,2)|false", "name|text|false", "ship|date|false"]).await;
    let sql = "select table_schema, column_name, data_type, numeric_scale from information_schema.columns \
        where table_name = 'Odd Name' and data_type like 'n%'";
    check(sql, &["other|price|numeric|2"]).await;
    check(
        "select table_catalog, tables.table_name from information_schema.tables order by 2",
        &["db|Odd Name", "db|lineitem"],
    )
    .await;
}

#[tokio::test]
async fn columns_and_keys_come_in_one_result() {
    // As DuckDB asks for them.
    let sql = "SELECT n.oid AS namespace_id, relname, relpages, attname, t.typname type_name, attnum, NULL key_id \
        FROM pg_class JOIN pg_namespace n ON relnamespace = n.oid JOIN pg_attribute a ON pg_class.oid = a.attrelid \
        JOIN pg_type t ON atttypid = t.oid WHERE attnum > 0 AND relkind IN ('r', 'v') AND n.nspname = 'public' \
        UNION ALL SELECT n.oid, relname, NULL, NULL, NULL, NULL, k.oid FROM pg_class \
        JOIN pg_namespace n ON relnamespace = n.oid JOIN pg_constraint k ON pg_class.oid = k.conrelid \
        WHERE contype IN ('p', 'u') AND n.nspname = 'public' ORDER BY namespace_id, relname, attnum, key_id";
    let row = |name: &str, kind: &str, number: u8| format!("2200|lineitem|0|{name}|{kind}|{number}|");
    let expected =
        [row("id", "int8", 1), row("price", "numeric", 2), row("name", "text", 3), row("ship", "date", 4)];
    check(sql, &expected.each_ref().map(String::as_str)).await;
}

#[tokio::test]
async fn keys_are_constraints_with_an_index() {
    check(
        "select conname, contype, conkey, conrelid::regclass, pg_get_constraintdef(oid) from pg_constraint",
        &["Odd Name_pkey|p|[3, 1]|other.\"Odd Name\"|PRIMARY KEY (name, id)"],
    )
    .await;
    check(
        "select c.relname, c.relkind, i.indkey, i.indkey[0], i.indisprimary, pg_get_indexdef(c.oid, 2, true), \
         pg_get_indexdef(c.oid) from pg_index i join pg_class c on c.oid = i.indexrelid where i.indisprimary = 't'",
        &["Odd Name_pkey|i|[3, 1]|3|true|id|\
           CREATE UNIQUE INDEX \"Odd Name_pkey\" ON other.\"Odd Name\" USING btree (name, id)"],
    )
    .await;
    check(
        "select table_name, column_name, ordinal_position from information_schema.key_column_usage order by 3",
        &["Odd Name|name|1", "Odd Name|id|2"],
    )
    .await;
    check("select constraint_type from information_schema.table_constraints", &["PRIMARY KEY"]).await;
    check("select relname from pg_class where relhasindex", &["Odd Name"]).await;
}

#[tokio::test]
async fn sets_of_rows_are_returned() {
    // Beside each other in a list of columns, as many as the longest has.
    let sql = "select unnest('{a,b,c}'::text[]) as x, generate_series(1, 2) as n from pg_am where oid = 2";
    check(sql, &["a|1", "b|2", "c|"]).await;
    let sql = "select unnest(indkey) as k, generate_subscripts(indkey, 1), (information_schema._pg_expandarray(indkey)).n \
        from pg_index";
    check(sql, &["3|0|1", "1|1|2"]).await;
    // In FROM, on their own and with tables beside them.
    check("select * from unnest('{x,y}'::text[]) with ordinality as u(t, n), pg_am where oid = 2 order by n desc", &[
        "y|2|2|heap|heap_tableam_handler|t",
        "x|1|2|heap|heap_tableam_handler|t",
    ])
    .await;
    let sql = "select u.position, a.attname, attnum from pg_constraint c \
        cross join lateral unnest(c.conkey) with ordinality as u(attno, position) \
        join pg_attribute a on a.attrelid = c.conrelid and a.attnum = attno order by u.position";
    check(sql, &["1|name|3", "2|id|1"]).await;
    let sql = "select k from pg_constraint, unnest(conkey) as k where k = any (conkey) and k > 1";
    check(sql, &["3"]).await;
    let sql = "select n, (select count(*) from generate_series(1, n)) from pg_am, generate_series(1, 3, 2) n where oid = 2";
    check(sql, &["1|1", "3|3"]).await;
    let sql = "select s[i] from string_to_array('a,b', ',') s, generate_series(array_lower(s.s, 1), 2) i, pg_am where oid = 2";
    check(sql, &["a", "b"]).await;
    let sql = "select x from pg_am, generate_series(3, 1, -1) x where oid = 2 union select 9 order by x";
    check(sql, &["1", "2", "3", "9"]).await;
    check("select count(*) from generate_series(5, 1) x, pg_am", &["0"]).await;
    let error = ask(&mut engine(), "select generate_series(1, 2, 0) from pg_am", &[]).await.unwrap_err();
    assert!(error.message.contains("step size"), "{error:?}");
}

#[tokio::test]
async fn types_pass_through_subqueries() {
    let sql = "with x as (select relhasindex and true as has, 'a' as note, relname as t from pg_class where relname = 'lineitem') \
        select x.*, y.no from x, (select not relispartition as no from pg_class where relname = 'lineitem') y";
    let (columns, rows) = ask(&mut engine(), sql, &[]).await.unwrap();
    assert_eq!(rows, ["false|a|lineitem|true"]);
    let types: Vec<u32> = columns.iter().map(|column| column.oid).collect();
    assert_eq!(types, [oid::BOOL, oid::TEXT, oid::NAME, oid::BOOL]);
}

#[tokio::test]
async fn functions_of_tools_are_known() {
    let sql = "select format('%I.%I', 'public', 'Odd Name'), format('%1$s %s%% %L', 'a', 'it''s', null), \
        parse_ident('\"A\".b'), array_position('{a,b}', 'b'), xmin, age(xmin), xmin is null from pg_am where oid = 2";
    check(sql, &[r#"public."Odd Name"|a it's% NULL|[A, b]|2|1|2147483647|false"#]).await;
    for sql in [
        "select format('%s') from pg_am",
        "select format('%z', 1) from pg_am",
        "select format('%') from pg_am",
    ] {
        assert_eq!(ask(&mut engine(), sql, &[]).await.unwrap_err().code, code::DATA_EXCEPTION, "{sql}");
    }
    check(
        "select oid from pg_am where amname = any (string_to_array('heap,btree', ',')) order by 1",
        &["2", "403"],
    )
    .await;
    check("select count(*) from pg_type where typisdefined = 'f'", &["0"]).await;
}

#[tokio::test]
async fn sets_that_multiply_are_refused() {
    let array = format!("array[{}]", ["a.oid"; 200].join(", "));
    let mut sql = format!("select 1 from pg_am a, unnest({array}) x0");
    for level in 1..9 {
        let again = vec![format!("x{}", level - 1); 200].join(", ");
        sql = format!("{sql}, lateral (select 1 from pg_am, unnest(array[{again}]) x{level}) y{level}");
    }
    let error = ask(&mut engine(), &sql, &[]).await.unwrap_err();
    assert_eq!(error.code, code::PROGRAM_LIMIT, "{error:?}");
    let long = "select count(*) from pg_am, generate_series(1, 100000000) x";
    assert_eq!(ask(&mut engine(), long, &[]).await.unwrap_err().code, code::PROGRAM_LIMIT);
}

#[tokio::test]
async fn arrays_are_told_by_their_functions() {
    let sql = "SELECT typ.typname, CASE WHEN proc.proname = 'array_recv' THEN typ.typelem END FROM pg_type AS typ \
        LEFT JOIN pg_proc AS proc ON proc.oid = typ.typreceive WHERE typ.typname IN ('int4', '_int4') ORDER BY 1";
    check(sql, &["_int4|23", "int4|"]).await;
    check("select pg_advisory_unlock_all()", &[""]).await;
}

#[tokio::test]
async fn parameters_are_bound() {
    let sql = "SELECT c.relname FROM pg_class c WHERE c.relname LIKE $1 AND c.relkind = ANY($2) AND NOT c.relisshared";
    let text = |text: &str| Value::Text(text.into());
    let (_, rows) = ask(&mut engine(), sql, &[text("line\\_%"), text("{r,v}")]).await.unwrap();
    assert!(rows.is_empty());
    let (_, rows) = ask(&mut engine(), sql, &[text("line%"), text("{r,v}")]).await.unwrap();
    assert_eq!(rows, ["lineitem"]);
    let error = ask(&mut engine(), sql, &[]).await.unwrap_err();
    assert_eq!(error.code, code::PROTOCOL_VIOLATION);
}

#[tokio::test]
async fn what_is_not_supported_has_a_code() {
    let check = async |sql: &str, expected: &str| {
        let error = ask(&mut engine(), sql, &[]).await.unwrap_err();
        assert_eq!(error.code, expected, "{sql}: {error:?}");
    };
    check("select * from pg_catalog.pg_nonsense", code::UNDEFINED_TABLE).await;
    check("select nonsense from pg_class", code::UNDEFINED_COLUMN).await;
    check("select pg_nonsense()", code::UNDEFINED_FUNCTION).await;
    check("select load_extension('x') from pg_class", code::UNDEFINED_FUNCTION).await;
    check("select randomblob(1000000000) from pg_class", code::UNDEFINED_FUNCTION).await;
    check("select 'nonsense'::regclass", code::UNDEFINED_OBJECT).await;
}

/// Queries that real clients have sent to PostgreSQL.
#[tokio::test]
async fn queries_of_clients_are_answered() {
    let mut engine = engine();
    let mut failures = Vec::new();
    for sql in include_str!("queries.sql").split("\n---\n").map(str::trim).filter(|sql| !sql.is_empty()) {
        let parameters = vec![Value::Text("1".into()); 24];
        if let Err(error) = ask(&mut engine, sql, &parameters).await {
            failures.push(format!("{}: {}\n{sql}", error.code, error.message));
        }
    }
    assert!(failures.is_empty(), "{} failed:\n{}", failures.len(), failures.join("\n\n"));
}

#[test]
fn a_query_that_nobody_waits_for_ends_at_once() {
    let endless =
        "with recursive x(a) as (select 1 union all select a + 1 from x, pg_class) select count(*) from x";
    let mut engine = engine();
    let began = Instant::now();
    let query = recognise(endless).unwrap().expect("of the catalog");
    let Err(error) = engine.run(query, &[], &caller(), Weak::new()) else { panic!("it ended") };
    assert_eq!(error.code, code::QUERY_CANCELED);
    assert!(began.elapsed() < QUERY_TIMEOUT / 2, "{:?}", began.elapsed());
}

#[tokio::test]
async fn texts_and_names_stay_what_they_are() {
    // A backslash means nothing in a text of SQL, nor in a name.
    let sql =
        r"select relname from pg_class where relname = 'x\'' union select name from pragma_function_list --'";
    check(sql, &[]).await;
    let sql = r"select 'it''s', '''''', E'a\'b', $$x'y$$, '\''', N'n' from pg_am limit 1";
    check(sql, &[r"it's|''|a'b|x'y|\'|n"]).await;
    check("select relname from pg_class where relname like 'pg!_am' escape '!'", &["pg_am"]).await;
    let sql = r#"select 1 as "a\"", hex(randomblob(2)) --" from pg_am"#;
    let (columns, rows) = ask(&mut engine(), sql, &[]).await.unwrap();
    assert_eq!((columns.len(), columns[0].name.as_str()), (1, r#"a\", hex(randomblob(2)) --"#));
    assert_eq!(rows, ["1", "1"]);
    let (columns, _) = ask(&mut engine(), r#"select oid as "a""b" from pg_am"#, &[]).await.unwrap();
    assert_eq!(columns[0].name, r#"a"b"#);
    // Nor do the names of the user and the database.
    let caller = Caller { user: r"x\' || randomblob(2) --".into(), database: "d''b".into(), ..caller() };
    let query = recognise("select current_user, current_database()").unwrap().unwrap();
    let waiting = Arc::new(());
    let mut stream = engine().run(query, &[], &caller, Arc::downgrade(&waiting)).unwrap();
    let batch = stream.next_batch().await.unwrap().unwrap();
    let value = |column: usize| array_value_to_string(batch.column(column), 0).unwrap();
    assert_eq!((value(0), value(1)), (caller.user, caller.database));
}

#[tokio::test]
async fn nothing_but_the_catalog_is_reached() {
    let check = async |sql: &str, expected: &str| {
        let error = ask(&mut engine(), sql, &[]).await.unwrap_err();
        assert_eq!(error.code, expected, "{sql}: {error:?}");
    };
    check("select * from pg_catalog.sqlite_master", code::UNDEFINED_TABLE).await;
    check("select * from pg_catalog.pragma_function_list", code::UNDEFINED_TABLE).await;
    check("select * from pg_catalog.\"pg_am union select 1, 2, 3, 4\"", code::UNDEFINED_TABLE).await;
    check("select \"pg_regtype(1), randomblob\"(4) from pg_am", code::UNDEFINED_FUNCTION).await;
    check("select pg_bool_nonsense(1) from pg_am", code::UNDEFINED_FUNCTION).await;
    // Texts of other kinds are the engine's.
    for sql in ["select B'x'' , randomblob(4) --' from pg_am", "select X'00'' , randomblob(4) --' from pg_am"]
    {
        assert!(recognise(sql).unwrap().is_none(), "{sql}");
    }
}

#[test]
fn nothing_is_written() {
    for sql in [
        "with x as (select oid from pg_class) delete from pg_type where oid in (select oid from x)",
        "with x as (select oid from pg_class) insert into pg_am select oid, 'x', 'x', 'x' from x",
        "with x as (select oid from pg_class) update pg_class set relname = 'x'",
        "with x as (delete from pg_type returning oid) select * from x, pg_class",
    ] {
        assert!(recognise(sql).unwrap().is_none(), "{sql}");
    }
    // SQLite refuses what gets that far.
    let mut engine = engine();
    let waiting = Arc::new(());
    for sql in [
        "DELETE FROM pg_type",
        "SELECT name FROM sqlite_master",
        "SELECT hex(randomblob(2))",
        "PRAGMA table_info(pg_am)",
        "ATTACH ':memory:' AS x",
    ] {
        let done = engine
            .guarded(Arc::downgrade(&waiting), |engine| engine.collect(sql, &[], None, &Aliases::new()));
        let error = done.err().unwrap_or_else(|| panic!("{sql} was run"));
        assert_eq!(error.code, code::FEATURE_NOT_SUPPORTED, "{sql}: {error:?}");
    }
}

#[tokio::test]
async fn nulls_are_last_and_operators_bind_as_in_postgresql() {
    check("select nullif(oid, 2) from pg_am order by 1", &["403", ""]).await;
    check("select nullif(oid, 2) from pg_am order by 1 desc", &["", "403"]).await;
    check("select nullif(oid, 2) from pg_am order by 1 nulls first", &["", "403"]).await;
    let sql = "select oid, row_number() over (order by nullif(oid, 2)) from pg_am order by 1";
    check(sql, &["2|2", "403|1"]).await;
    let sql = "select 1 + 2 || 'x', 10 - 2 - 1, 2 * (3 + 4), not 1 = 2 and 1 < 2 from pg_am limit 1";
    check(sql, &["3x|7|14|true"]).await;
    check("with \"X\" as (select oid from pg_am) select count(*) from \"X\"", &["2"]).await;
}

#[tokio::test]
async fn values_that_a_type_lacks_are_refused() {
    let check_error = async |sql: &str, expected: &str| {
        let error = ask(&mut engine(), sql, &[]).await.unwrap_err();
        assert_eq!(error.code, expected, "{sql}: {error:?}");
    };
    check_error("select oid from (select 'abc' as oid from pg_am) x", code::INVALID_TEXT).await;
    check_error("select 3000000000::int4 from pg_am", code::NUMERIC_OUT_OF_RANGE).await;
    check("select 2 + 3000000000 from pg_am limit 1", &["3000000002"]).await;
    let sql = "select left('abc', -1), left('abc', 2), split_part('a.b', '.', -1) from pg_am limit 1";
    check(sql, &["ab|ab|b"]).await;
}

/// Statements that would need more memory or time than a node has. Each is refused while it is small.
#[tokio::test]
async fn hostile_queries_end_while_they_are_small() {
    let mut engine = engine();
    let text = "(with recursive x(a) as (select 'aaaaaaaaaaaaaaaa' union all select a || a from x where length(a) < 400000) \
                select max(a) from x)";
    let mut nested = String::from("with a0 as (select oid from pg_class)");
    for level in 1..20 {
        let before = level - 1;
        nested.push_str(&format!(", a{level} as (select x.oid from a{before} x, a{before} y)"));
    }
    let types = "from pg_type a, pg_type b, pg_type c";
    let wide = format!("from pg_type a, pg_type b, (select substr({text}, 1, 10000) as t) p");
    for sql in [
        // Sets of rows that grow.
        format!(
            "with recursive x(a, t) as (select oid, {text} from pg_am union select a + 1, t from x) select count(*) from x"
        ),
        format!("select a.oid {wide} order by b.typname || p.t || a.oid::text"),
        format!("select count(distinct a.typname || b.typname || p.t) {wide}"),
        format!("select p.t {wide}"),
        format!("select count(*) over (partition by a.typname order by p.t || b.typname) {wide}"),
        // Values that grow.
        format!("select string_agg(a.typname || b.typname, ',') {types}"),
        format!("select array_agg(a.typname || b.typname) {types}"),
        format!("select array_agg(t.a || b.oid::text) from (select {text} as a) t, pg_type b"),
        format!("select regexp_replace({text}, 'a', '{}', 'g') from pg_am", "\\&".repeat(10_000)),
        format!(
            "select regexp_replace(substr({text}, 1, 60000), '^.*$', '{}') from pg_am",
            "\\&".repeat(100)
        ),
        format!("select replace({text}, 'a', {text}) from pg_am"),
        format!("select array_to_string(string_to_array({text}, 'a'), {text}) from pg_am"),
        format!("select array[{}] from (select {text} as a from pg_am) t", ["a"; 400].join(", ")),
        // Patterns that match slowly.
        format!("select {text} like '%' || {text} || 'b' from pg_am"),
        format!("select {text} ~ '(a|aa|aaa){{1,400}}b' from pg_am"),
        // References that multiply.
        format!("{nested} select count(*) from a19"),
    ] {
        let error = match ask(&mut engine, &sql, &[]).await {
            Ok((_, rows)) => panic!("{} rows of {sql}", rows.len()),
            Err(error) => error,
        };
        let is_limit = [code::OUT_OF_MEMORY, code::PROGRAM_LIMIT].contains(&error.code);
        assert!(is_limit, "{error:?}: {}", &sql[..sql.len().min(200)]);
    }
    // These take long in other engines.
    for sql in [
        format!("select strpos({text}, substr({text}, 1, 200000) || 'b') from pg_am limit 1"),
        format!("select length(rtrim({text}, {text})) from pg_am limit 1"),
    ] {
        assert_eq!(ask(&mut engine, &sql, &[]).await.unwrap().1, ["0"]);
    }
    // It goes on.
    assert_eq!(ask(&mut engine, "select amname from pg_am where oid = 2", &[]).await.unwrap().1, ["heap"]);
    #[cfg(target_os = "linux")]
    {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        let peak_kib: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
        assert!(peak_kib < 500 << 10, "the process needed {peak_kib} KiB");
    }
}
