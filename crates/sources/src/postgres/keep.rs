//! What a new table keeps of the one that it replaces: owner, privileges, comments, defaults, constraints, indexes,
//! sequences, triggers and storage options.
//!
//! Everything is tried on the empty table first, so what can't be kept (an index on a column that the result lacks) is
//! known before any row is read. What rows are checked against is made before they arrive, the rest afterwards, and both
//! before the old table is locked.

use super::connection::Connection;
use super::{malformed, quote_literal, values};
use crate::{Result, SourceError};

/// What a table keeps of the one that it replaces.
#[derive(Debug, Default)]
pub(super) struct Kept {
    parts: Vec<Part>,
    /// What is not kept, in words.
    pub(super) notices: Vec<String>,
}

#[derive(Debug)]
struct Part {
    phase: Phase,
    /// Its name for the user, as in `index t_a_idx`.
    what: String,
    /// The statement that makes it for the new table under its temporary name.
    make: String,
    /// The statement that completes it once the new table has its final name.
    complete: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Made before rows arrive, because it checks them.
    Early,
    /// Made once all rows have arrived.
    Late,
    /// Can't be kept; `make` is the reason.
    Never,
}

/// The names that the statements are made of.
pub(super) struct Names<'a> {
    /// The OID of the old table.
    pub(super) oid: &'a str,
    /// The old table with its schema, quoted.
    pub(super) old: &'a str,
    /// The new table with its schema, quoted.
    pub(super) new: &'a str,
    /// The name of the new table, not quoted, for the names of its indexes.
    pub(super) beside: &'a str,
    /// The schema, not quoted.
    pub(super) schema: &'a str,
}

/// Columns that both tables have.
const BOTH: &str = "FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_attribute n ON n.attrelid = {new}::regclass \
     AND n.attname = a.attname AND n.attnum > 0 AND NOT n.attisdropped \
     LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum \
     WHERE a.attrelid = {oid} AND a.attnum > 0 AND NOT a.attisdropped";

/// The comment on a constraint that has its final name.
const CONSTRAINT_COMMENT: &str = "CASE WHEN obj_description(k.oid, 'pg_constraint') IS NULL THEN '' ELSE \
     format('; COMMENT ON CONSTRAINT %I ON %s IS %L', conname, {old}, obj_description(k.oid, 'pg_constraint')) END";

/// The comment on an index that has its final name, and whether it identifies rows for replication.
const INDEX_COMMENT: &str = "CASE WHEN obj_description(c.oid, 'pg_class') IS NULL THEN '' ELSE \
     format('; COMMENT ON INDEX %I.%I IS %L', {schema}, c.relname, obj_description(c.oid, 'pg_class')) END \
     || CASE WHEN i.indisreplident THEN format('; ALTER TABLE %s REPLICA IDENTITY USING INDEX %I', {old}, c.relname) \
     ELSE '' END";

/// Queries for the parts, in the order in which they are made. Each row has the phase, the name, the statement on the new
/// table, and the statement once it has its final name. `{new}` and `{old}` are literals of the quoted names, `{printed}` is
/// the old one as definitions have it, `{oid}` is the old table's; `{beside}` and `{schema}` are literals.
const PARTS: &[&str] = &[
    // What is lost.
    "SELECT 'n', 'column ' || quote_ident(a.attname), 'the result has no such column', '' \
     FROM pg_catalog.pg_attribute a WHERE a.attrelid = {oid} AND a.attnum > 0 AND NOT a.attisdropped \
         AND a.attgenerated = '' AND NOT EXISTS (SELECT FROM pg_catalog.pg_attribute n \
             WHERE n.attrelid = {new}::regclass AND n.attname = a.attname AND NOT n.attisdropped) ORDER BY a.attnum",
    "SELECT 'n', 'partitioning', 'the rows are in one table', '' FROM pg_catalog.pg_class \
     WHERE oid = {oid} AND relkind = 'p'",
    "SELECT 'n', 'inheritance from ' || inhparent::regclass, 'its columns may differ', '' \
     FROM pg_catalog.pg_inherits WHERE inhrelid = {oid} ORDER BY inhseqno",
    "SELECT 'n', 'rule ' || quote_ident(rulename), 'create it again', '' \
     FROM pg_catalog.pg_rewrite WHERE ev_class = {oid} ORDER BY rulename",
    "SELECT 'n', 'statistics ' || quote_ident(stxname), 'create them again', '' \
     FROM pg_catalog.pg_statistic_ext WHERE stxrelid = {oid} ORDER BY stxname",
    "SELECT 'n', 'membership in publication ' || quote_ident(p.pubname), 'add the table again', '' \
     FROM pg_catalog.pg_publication_rel r JOIN pg_catalog.pg_publication p ON p.oid = r.prpubid \
     WHERE r.prrelid = {oid} ORDER BY p.pubname",
    "SELECT 'n', 'GENERATED of column ' || quote_ident(a.attname), 'the result has values for it', '' {both} \
     AND a.attgenerated <> '' ORDER BY a.attnum",
    // What rows are checked against.
    "SELECT 'e', 'generated column ' || quote_ident(a.attname), format('ALTER TABLE %s ADD %I %s GENERATED ALWAYS AS (%s) STORED', \
         {new}, a.attname, format_type(a.atttypid, a.atttypmod), pg_get_expr(d.adbin, d.adrelid)), '' \
     FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum \
     WHERE a.attrelid = {oid} AND a.attgenerated = 's' AND NOT a.attisdropped \
         AND NOT EXISTS (SELECT FROM pg_catalog.pg_attribute n \
             WHERE n.attrelid = {new}::regclass AND n.attname = a.attname AND NOT n.attisdropped) ORDER BY a.attnum",
    "SELECT 'e', 'UNLOGGED', format('ALTER TABLE %s SET UNLOGGED', {new}), '' FROM pg_catalog.pg_class \
     WHERE oid = {oid} AND relpersistence = 'u'",
    "SELECT 'e', 'tablespace ' || quote_ident(t.spcname), format('ALTER TABLE %s SET TABLESPACE %I', {new}, t.spcname), '' \
     FROM pg_catalog.pg_class c JOIN pg_catalog.pg_tablespace t ON t.oid = c.reltablespace WHERE c.oid = {oid}",
    "SELECT 'e', 'storage option ' || o, format('ALTER TABLE %s SET (%s = %L)', {new}, split_part(o, '=', 1), \
         substr(o, strpos(o, '=') + 1)), '' FROM pg_catalog.pg_class c, unnest(c.reloptions) o WHERE c.oid = {oid}",
    "SELECT 'e', 'default of column ' || quote_ident(a.attname), format('ALTER TABLE %s ALTER %I SET DEFAULT %s', \
         {new}, a.attname, pg_get_expr(d.adbin, d.adrelid)), '' {both} AND d.oid IS NOT NULL AND a.attgenerated = '' \
     ORDER BY a.attnum",
    "SELECT 'e', 'NOT NULL of column ' || quote_ident(a.attname), format('ALTER TABLE %s ALTER %I SET NOT NULL', \
         {new}, a.attname), '' {both} AND a.attnotnull ORDER BY a.attnum",
    "SELECT 'e', 'constraint ' || quote_ident(conname), format('ALTER TABLE %s ADD CONSTRAINT %I %s', {new}, conname, \
         pg_get_constraintdef(oid)), {constraint comment} FROM pg_catalog.pg_constraint k WHERE conrelid = {oid} AND contype = 'c' \
     ORDER BY conname",
    // The rest.
    "SELECT 'l', 'owner ' || quote_ident(pg_get_userbyid(relowner)), format('ALTER TABLE %s OWNER TO %I', {new}, \
         pg_get_userbyid(relowner)), '' FROM pg_catalog.pg_class WHERE oid = {oid} \
         AND pg_get_userbyid(relowner) <> current_user",
    "SELECT 'l', 'identity of column ' || quote_ident(a.attname), format('ALTER TABLE %s ALTER %I SET NOT NULL, ALTER %I \
             ADD GENERATED %s AS IDENTITY (SEQUENCE NAME %I.%I INCREMENT %s MINVALUE %s MAXVALUE %s START %s CACHE %s %s); \
             SELECT setval(pg_get_serial_sequence(%L, %L), last_value, is_called) FROM %s', \
         {new}, a.attname, a.attname, CASE a.attidentity WHEN 'a' THEN 'ALWAYS' ELSE 'BY DEFAULT' END, {schema}, \
         {beside} || '_s' || a.attnum, s.seqincrement, s.seqmin, s.seqmax, s.seqstart, s.seqcache, \
         CASE WHEN s.seqcycle THEN 'CYCLE' ELSE '' END, {new}, a.attname, s.seqrelid::regclass), \
         format('ALTER SEQUENCE %I.%I RENAME TO %I', {schema}, {beside} || '_s' || a.attnum, s.relname) \
     FROM (SELECT a.* {both} AND a.attidentity <> '') a, LATERAL (SELECT q.*, c.relname FROM pg_catalog.pg_sequence q \
         JOIN pg_catalog.pg_class c ON c.oid = q.seqrelid \
         WHERE q.seqrelid = pg_get_serial_sequence({old}, a.attname)::regclass) s ORDER BY a.attnum",
    "SELECT 'l', 'sequence ' || p.objid::regclass, format('ALTER SEQUENCE %s OWNED BY %s.%I', p.objid::regclass, {new}, \
         a.attname), '' FROM pg_catalog.pg_depend p JOIN pg_catalog.pg_attribute a ON a.attrelid = p.refobjid \
         AND a.attnum = p.refobjsubid JOIN pg_catalog.pg_class c ON c.oid = p.objid AND c.relkind = 'S' \
     WHERE p.classid = 'pg_catalog.pg_class'::regclass AND p.refclassid = 'pg_catalog.pg_class'::regclass \
         AND p.refobjid = {oid} AND p.deptype = 'a' ORDER BY p.objid",
    "SELECT 'l', 'constraint ' || quote_ident(conname), format('ALTER TABLE %s ADD CONSTRAINT %I %s', {new}, \
             {beside} || '_' || row_number() OVER (ORDER BY conname), pg_get_constraintdef(k.oid)), \
         format('ALTER TABLE %s RENAME CONSTRAINT %I TO %I', {old}, \
             {beside} || '_' || row_number() OVER (ORDER BY conname), conname) || {constraint comment} || {index comment} \
     FROM pg_catalog.pg_constraint k JOIN pg_catalog.pg_index i ON i.indexrelid = k.conindid \
         JOIN pg_catalog.pg_class c ON c.oid = k.conindid \
     WHERE conrelid = {oid} AND contype IN ('p', 'u', 'x') ORDER BY conname",
    "SELECT CASE WHEN starts_with(s, p) THEN 'l' ELSE 'n' END, 'index ' || quote_ident(c.relname), \
         CASE WHEN starts_with(s, p) THEN format('CREATE %sINDEX %I ON %s %s', u, n, {new}, substr(s, length(p) + 1)) \
             ELSE 'its definition is not known' END, format('ALTER INDEX %I.%I RENAME TO %I', {schema}, n, c.relname) || {index comment} \
     FROM (SELECT i.*, CASE WHEN indisunique THEN 'UNIQUE ' ELSE '' END AS u, pg_get_indexdef(indexrelid) AS s, \
             {beside} || '_i' || row_number() OVER (ORDER BY indexrelid) AS n FROM pg_catalog.pg_index i WHERE indrelid = {oid}) i \
         JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid, \
         LATERAL (SELECT format('CREATE %sINDEX %I ON %s', u, c.relname, CASE WHEN c.relkind = 'I' THEN 'ONLY ' ELSE '' END) \
             || {printed} || ' ' AS p) p \
     WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_constraint k WHERE k.conindid = i.indexrelid \
             AND k.conrelid = {oid} AND k.contype IN ('p', 'u', 'x')) ORDER BY c.relname",
    // One that refers to its own table is made when the table has its final name.
    "SELECT CASE WHEN is_own AND lacks THEN 'n' ELSE 'l' END, 'constraint ' || quote_ident(conname), \
         CASE WHEN NOT is_own THEN format('ALTER TABLE %s ADD CONSTRAINT %I %s', {new}, conname, pg_get_constraintdef(oid)) \
             WHEN lacks THEN 'the result lacks one of its columns' ELSE '' END, \
         CASE WHEN is_own THEN format('ALTER TABLE %s ADD CONSTRAINT %I %s', {old}, conname, pg_get_constraintdef(oid)) \
             ELSE '' END || {constraint comment} \
     FROM (SELECT k.*, confrelid = conrelid AS is_own, EXISTS (SELECT FROM unnest(conkey || confkey) c (n) \
             JOIN pg_catalog.pg_attribute a ON a.attrelid = {oid} AND a.attnum = c.n WHERE NOT EXISTS ( \
                 SELECT FROM pg_catalog.pg_attribute b WHERE b.attrelid = {new}::regclass AND b.attname = a.attname \
                     AND NOT b.attisdropped)) AS lacks \
         FROM pg_catalog.pg_constraint k WHERE conrelid = {oid} AND contype = 'f') k ORDER BY conname",
    "SELECT CASE strpos(pg_get_triggerdef(oid), ' ON ' || {printed} || ' ') WHEN 0 THEN 'n' ELSE 'l' END, \
         'trigger ' || quote_ident(tgname), replace(pg_get_triggerdef(oid), ' ON ' || {printed} || ' ', \
             ' ON ' || {new} || ' ') || CASE tgenabled WHEN 'O' THEN '' ELSE format('; ALTER TABLE %s %s TRIGGER %I', {new}, \
             CASE tgenabled WHEN 'D' THEN 'DISABLE' WHEN 'R' THEN 'ENABLE REPLICA' ELSE 'ENABLE ALWAYS' END, tgname) END \
             || CASE WHEN obj_description(oid, 'pg_trigger') IS NULL THEN '' ELSE format('; COMMENT ON TRIGGER %I ON %s IS %L', \
             tgname, {new}, obj_description(oid, 'pg_trigger')) END, '' \
     FROM pg_catalog.pg_trigger WHERE tgrelid = {oid} AND NOT tgisinternal ORDER BY tgname",
    "SELECT 'l', 'replica identity', format('ALTER TABLE %s REPLICA IDENTITY %s', {new}, \
         CASE relreplident WHEN 'f' THEN 'FULL' ELSE 'NOTHING' END), '' \
     FROM pg_catalog.pg_class WHERE oid = {oid} AND relreplident IN ('f', 'n')",
    // Privileges that a new table has by default are not those of the old one.
    "SELECT 'l', 'privileges', format('REVOKE ALL ON %s FROM %s', {new}, string_agg(g, ', ')), '' FROM ( \
         SELECT DISTINCT CASE grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(grantee)) END \
         FROM pg_catalog.pg_class o, pg_catalog.pg_class n, \
             LATERAL aclexplode(array_cat(n.relacl, o.relacl)) \
         WHERE o.oid = {oid} AND n.oid = {new}::regclass AND (o.relacl IS NOT NULL OR grantee <> n.relowner)) x (g) \
     HAVING count(*) > 0",
    "SELECT 'l', 'privileges of ' || g, format('GRANT %s ON %s TO %s%s', string_agg(p, ', '), {new}, g, \
             CASE WHEN o THEN ' WITH GRANT OPTION' ELSE '' END), '' FROM ( \
         SELECT CASE grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(grantee)) END, privilege_type, \
             is_grantable FROM pg_catalog.pg_class, LATERAL aclexplode(relacl) WHERE oid = {oid}) x (g, p, o) \
     GROUP BY g, o ORDER BY g, o",
    "SELECT 'l', 'privileges of ' || g || ' on column ' || quote_ident(c), format('GRANT %s (%I) ON %s TO %s%s', \
             p, c, {new}, g, CASE WHEN o THEN ' WITH GRANT OPTION' ELSE '' END), '' FROM ( \
         SELECT CASE x.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(x.grantee)) END, x.privilege_type, \
             x.is_grantable, b.attname FROM (SELECT a.attname, a.attacl {both}) b, LATERAL aclexplode(b.attacl) x) x (g, p, o, c) \
     ORDER BY g, c, p",
    "SELECT 'l', 'comment', format('COMMENT ON TABLE %s IS %L', {new}, t), '' \
     FROM (SELECT obj_description({oid}, 'pg_class')) x (t) WHERE t IS NOT NULL",
    "SELECT 'l', 'comment on column ' || quote_ident(a.attname), format('COMMENT ON COLUMN %s.%I IS %L', {new}, a.attname, \
         col_description(a.attrelid, a.attnum)), '' {both} AND col_description(a.attrelid, a.attnum) IS NOT NULL \
     ORDER BY a.attnum",
];

impl Kept {
    /// Looks up what the old table has, tries all of it on the new one, which is empty, and makes what rows are checked
    /// against.
    ///
    /// # Errors
    /// [`SourceError::Sql`] for a table with row security, whose rows others could see otherwise.
    pub(super) async fn plan(connection: &mut Connection, names: &Names<'_>, shown: &str) -> Result<Self> {
        refuse_row_security(connection, names.oid, shown).await?;
        // Names in the definitions have their schemas, except those of the catalog. Only for these statements.
        connection.simple("SAVEPOINT lightship_keep; SET LOCAL search_path = pg_catalog").await?;
        // The name as definitions have it: in quotes only if necessary.
        let name = "SELECT format('%I.%I', n.nspname, c.relname) FROM pg_class c JOIN pg_namespace n \
                    ON n.oid = c.relnamespace WHERE c.oid = ";
        let rows = connection.simple(&format!("{name}{}", names.oid)).await?;
        let [printed] = rows.into_iter().next().and_then(values).ok_or_else(|| malformed(connection))?;
        let mut parts = Vec::new();
        for query in PARTS {
            let sql = query
                .replace("{both}", BOTH)
                .replace("{constraint comment}", CONSTRAINT_COMMENT)
                .replace("{index comment}", INDEX_COMMENT)
                .replace("{new}", &quote_literal(names.new))
                .replace("{old}", &quote_literal(names.old))
                .replace("{printed}", &quote_literal(&printed))
                .replace("{beside}", &quote_literal(names.beside))
                .replace("{schema}", &quote_literal(names.schema))
                .replace("{oid}", names.oid);
            for row in connection.simple(&sql).await? {
                // Without a definition there is nothing to make.
                let row = row.into_iter().map(|value| Some(value.unwrap_or_default())).collect();
                let [phase, what, make, complete] = values(row).ok_or_else(|| malformed(connection))?;
                let phase = match &*phase {
                    "e" => Phase::Early,
                    "l" => Phase::Late,
                    _ => Phase::Never,
                };
                parts.push(Part { phase, what, make, complete });
            }
        }
        let (mut kept, mut notices) = (Vec::new(), Vec::new());
        for part in parts {
            let refused = match part.phase {
                Phase::Never => Some(part.make.clone()),
                _ => part.attempt(connection).await?,
            };
            match refused {
                None => kept.push(part),
                Some(reason) => notices.push(format!("{} is not kept: {reason}", part.what)),
            }
        }
        connection.simple("ROLLBACK TO SAVEPOINT lightship_keep").await?;
        let this = Self { parts: kept, notices };
        this.make(connection, Phase::Early).await?;
        Ok(this)
    }

    /// Makes what was left out until all rows were there.
    ///
    /// # Errors
    /// When the rows violate a constraint or a unique index.
    pub(super) async fn make_rest(&self, connection: &mut Connection) -> Result<()> {
        self.make(connection, Phase::Late).await
    }

    /// Completes what depends on the final name.
    pub(super) async fn complete(&self, connection: &mut Connection) -> Result<()> {
        for part in self.parts.iter().filter(|part| !part.complete.is_empty()) {
            part.run(connection, &part.complete).await?;
        }
        Ok(())
    }

    async fn make(&self, connection: &mut Connection, phase: Phase) -> Result<()> {
        let wanted = |part: &&Part| part.phase == phase && !part.make.is_empty();
        for part in self.parts.iter().filter(wanted) {
            part.run(connection, &part.make).await?;
        }
        Ok(())
    }
}

impl Part {
    /// Makes it on the empty table; returns the server's reason if it can't be made.
    async fn attempt(&self, connection: &mut Connection) -> Result<Option<String>> {
        if self.make.is_empty() {
            return Ok(None);
        }
        connection.simple("SAVEPOINT lightship_part").await?;
        match connection.simple(&self.make).await {
            Ok(_) => {
                connection.simple("RELEASE SAVEPOINT lightship_part").await?;
                Ok(None)
            }
            Err(SourceError::Sql { reason, .. }) => {
                connection.simple("ROLLBACK TO SAVEPOINT lightship_part").await?;
                Ok(Some(reason))
            }
            Err(error) => Err(error),
        }
    }

    async fn run(&self, connection: &mut Connection, sql: &str) -> Result<()> {
        // The names in a definition have their schemas.
        let sql = format!("SET LOCAL search_path = pg_catalog; {sql}; SET LOCAL search_path = DEFAULT");
        connection.simple(&sql).await.map(drop).map_err(|error| match error {
            SourceError::Sql { reason, code, hint, .. } => SourceError::Sql {
                reason: format!("the rows don't fit {}, which the new table would keep: {reason}", self.what),
                position: None,
                code,
                hint: hint.or_else(|| {
                    Some("correct them in the query, or drop it first: the table was not changed".into())
                }),
            },
            error => error,
        })
    }
}

/// A new table would have no row security, and everybody who may read it could read all rows.
async fn refuse_row_security(connection: &mut Connection, oid: &str, shown: &str) -> Result<()> {
    let rows = connection
        .simple(&format!(
            "SELECT 1 FROM pg_catalog.pg_class c WHERE c.oid = {oid} AND (c.relrowsecurity \
             OR EXISTS (SELECT FROM pg_catalog.pg_policy p WHERE p.polrelid = c.oid))"
        ))
        .await?;
    if rows.is_empty() {
        return Ok(());
    }
    Err(SourceError::Sql {
        reason: format!("cannot replace table `{shown}`: it has row security, which a new table would lack"),
        position: None,
        code: None,
        hint: Some("keep the table, and replace its rows with --mode truncate".into()),
    })
}
