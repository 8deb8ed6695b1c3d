//! The SQL dialect of statements, with a limit on the time that parsing takes.
//!
//! The parser backtracks when a special form of an expression fails: `cast(` may begin a cast, or a
//! call of a function of that name. An error inside n such forms is found 2^n times, so thirty
//! unclosed parentheses would keep a thread busy for hours.

use std::cell::Cell;

use datafusion::sql::sqlparser::ast::Expr;
use datafusion::sql::sqlparser::dialect::{Dialect, GenericDialect};
use datafusion::sql::sqlparser::parser::{Parser, ParserError};

/// Expressions that the parser may begin for each token. A statement without errors needs fewer than two.
const ATTEMPTS_PER_TOKEN: usize = 16;
/// Short statements may begin this many.
const ATTEMPTS_MIN: usize = 10_000;

/// [`GenericDialect`] with a limit on the number of expressions that the parser may begin.
#[derive(Debug)]
pub(crate) struct BoundedDialect {
    attempts_left: Cell<usize>,
}

impl BoundedDialect {
    /// A dialect for one statement with this many tokens.
    pub(crate) fn new(tokens: usize) -> Self {
        let attempts = tokens.saturating_mul(ATTEMPTS_PER_TOKEN).max(ATTEMPTS_MIN);
        Self { attempts_left: Cell::new(attempts) }
    }

    /// Whether the limit was reached.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.attempts_left.get() == 0
    }
}

macro_rules! as_generic {
    ($($method:ident),* $(,)?) => {
        $(fn $method(&self) -> bool {
            GenericDialect.$method()
        })*
    };
}

impl Dialect for BoundedDialect {
    /// The parser calls this at the beginning of each expression.
    fn parse_prefix(&self, _: &mut Parser<'_>) -> Option<Result<Expr, ParserError>> {
        let left = self.attempts_left.get().saturating_sub(1);
        self.attempts_left.set(left);
        // The parser returns this error; after other errors it backtracks.
        (left == 0).then_some(Err(ParserError::RecursionLimitExceeded))
    }

    /// The parser compares dialects by this id.
    fn dialect(&self) -> std::any::TypeId {
        GenericDialect.dialect()
    }

    fn is_delimited_identifier_start(&self, ch: char) -> bool {
        GenericDialect.is_delimited_identifier_start(ch)
    }

    fn is_identifier_start(&self, ch: char) -> bool {
        GenericDialect.is_identifier_start(ch)
    }

    fn is_identifier_part(&self, ch: char) -> bool {
        GenericDialect.is_identifier_part(ch)
    }

    // All methods that `GenericDialect` overrides.
    as_generic! {
        allow_extract_custom,
        allow_extract_single_quotes,
        support_map_literal_syntax,
        supports_array_join_syntax,
        supports_array_typedef_with_brackets,
        supports_asc_desc_in_column_definition,
        supports_bitwise_shift_operators,
        supports_comma_separated_set_assignments,
        supports_comma_separated_trim,
        supports_comment_on,
        supports_comment_optimizer_hint,
        supports_connect_by,
        supports_constraint_keyword_without_name,
        supports_create_index_with_clause,
        supports_create_view_comment_syntax,
        supports_cte_without_as,
        supports_data_type_signed_suffix,
        supports_detach,
        supports_dictionary_syntax,
        supports_empty_projections,
        supports_explain_with_utility_options,
        supports_extract_comma_syntax,
        supports_filter_during_aggregation,
        supports_from_first_select,
        supports_group_by_expr,
        supports_group_by_with_modifier,
        supports_install,
        supports_interpolate,
        supports_interval_options,
        supports_key_column_option,
        supports_left_associative_joins_without_parens,
        supports_limit_by,
        supports_limit_comma,
        supports_load_extension,
        supports_match_against,
        supports_match_recognize,
        supports_multiline_comment_hints,
        supports_named_fn_args_with_assignment_operator,
        supports_nested_comments,
        supports_optimize_table,
        supports_parens_around_table_factor,
        supports_parenthesized_set_variables,
        supports_partition_by_after_order_by,
        supports_pipe_operator,
        supports_prewhere,
        supports_projection_trailing_commas,
        supports_quote_delimited_string,
        supports_select_format,
        supports_select_item_multi_column_alias,
        supports_select_wildcard_except,
        supports_select_wildcard_exclude,
        supports_select_wildcard_ilike,
        supports_select_wildcard_rename,
        supports_select_wildcard_replace,
        supports_set_names,
        supports_settings,
        supports_start_transaction_modifier,
        supports_string_escape_constant,
        supports_struct_literal,
        supports_try_convert,
        supports_unicode_string_literal,
        supports_update_order_by,
        supports_user_host_grantee,
        supports_values_as_table_factor,
        supports_window_clause_named_window_reference,
        supports_window_function_null_treatment_arg,
        supports_with_fill,
        supports_xml_expressions
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares statements of all kinds. A new version of the parser may add methods that
    /// [`BoundedDialect`] has to forward.
    #[test]
    fn statements_parse_as_in_the_generic_dialect() {
        let statements = [
            "select a[1:2], {'x': 1}, map {'a': 1}, [1, 2], struct(1 as a), array<int>[1]",
            "from t select a",
            "from t",
            "select",
            "select a, b, from t",
            "select * exclude (a) from t",
            "select * except (a), t.* rename (a as b) from t",
            "select * replace (1 as a) from t",
            "select extract(day, a), extract('day' from a), trim(a, 'x'), interval '1' day",
            "select try_convert(int, a), e'\\n', U&'x', x'00', q'[a]', @a, #b, a::int, a ? b",
            "select count(*) filter (where a > 1), last_value(a ignore nulls) over (w) from t window w as (order by a)",
            "select first_value(a, 1 respect nulls) over (partition by a order by b rows between 1 preceding and current row)",
            "select f(a => 1, b := 2)",
            "with a as materialized (select 1) select * from a limit 1, 2",
            "with recursive a(n) as (select 1 union all select n + 1 from a) select * from a",
            "select a from t group by all with rollup",
            "select a from t group by grouping sets ((a), ()) order by a nulls first limit 1 by a",
            "select * from values (1, 2) as v(a, b)",
            "select * from (t), ((t)), lateral (select 1) as x, unnest([1]) with ordinality",
            "select * from a join b join c on b.x = c.x on a.x = b.x",
            "select a << 1, a >> 1, a // 2, a ^ b, a <=> b, a ~ 'x', not a between 1 and 2",
            "select * from t |> where a > 1 |> select a",
            "select a from t prewhere a = 1 settings x = 1 format json",
            "select a from t start with a = 1 connect by prior a = b",
            "select a /* b /* c */ d */ from t -- e",
            "explain (analyze, verbose) select 1",
            "create external table t stored as csv location 'x' options ('a' 'b')",
            "create table t (a int asc, b int signed, constraint primary key (a)) with (x = 1)",
            "create view v comment = 'x' as select 1",
            "set (a, b) = (1, 2)",
            "set a = 1, b = 2",
            "update t set a = 1 order by a",
            "copy (select 1) to 'x' stored as parquet",
            "insert into t select 1",
            "match (a) against ('x')",
        ];
        let mut parsed = 0;
        for sql in statements {
            let bounded = Parser::parse_sql(&BoundedDialect::new(1000), sql);
            assert_eq!(bounded, Parser::parse_sql(&GenericDialect, sql), "{sql}");
            parsed += usize::from(bounded.is_ok());
        }
        assert!(parsed > 20, "{parsed}");
    }
}
