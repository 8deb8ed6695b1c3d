//! Random queries over given tables.

use arrow_array::Array;

use super::ast::{Expr, From, Join, Limit, Output, Query, Recursive, Select};
use super::literals::{self, Class};
use super::tables::Table;
use crate::rng::Rng;

/// What a query may contain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Everything.
    Any,
    /// One SELECT of columns, over one table or a join, with a condition that can also be an output.
    Plain,
}

const COMPARISONS: [&str; 6] = ["=", "<>", "<", "<=", ">", ">="];
const DISTINCT: [&str; 2] = ["is distinct from", "is not distinct from"];
const LIKES: [&str; 4] = ["like", "not like", "ilike", "not ilike"];
const TESTS: [&str; 6] =
    ["is true", "is not true", "is false", "is not false", "is unknown", "is not unknown"];

/// A query over one or two of the tables.
///
/// # Panics
/// When there are no tables.
pub fn any_query(tables: &[Table], shape: Shape, seed: u64) -> Query {
    let mut draw = Draw { rng: Rng(seed), tables, shape };
    match shape {
        Shape::Plain => Query { recursive: None, selects: vec![draw.plain(true)], limit: None },
        Shape::Any if draw.rng.one_in(12) => draw.recursive().unwrap_or_else(|| draw.query()),
        Shape::Any => draw.query(),
    }
}

/// A column in scope, and its values.
#[derive(Clone)]
struct InScope<'a> {
    alias: String,
    name: String,
    values: &'a dyn Array,
}

impl InScope<'_> {
    fn expr(&self) -> Expr {
        Expr::Column(self.alias.clone(), self.name.clone())
    }

    fn class(&self) -> Class {
        Class::of(self.values.data_type())
    }
}

struct Draw<'a> {
    rng: Rng,
    tables: &'a [Table],
    shape: Shape,
}

impl<'a> Draw<'a> {
    fn query(&mut self) -> Query {
        let mut select = match self.rng.below(10) {
            0..=5 => self.plain(false),
            6 | 7 => self.grouped(),
            8 => self.windowed(),
            _ => self.plain(false),
        };
        select.distinct = select.group_by.is_empty() && self.rng.one_in(8) && sortable(&select);
        let mut selects = vec![select];
        if self.rng.one_in(8) {
            let mut other = selects[0].clone();
            let scope = self.scope(&other.from);
            other.filter = Some(self.predicate(&scope, 2));
            selects.push(other);
        }
        let (limit, offset) = (self.rng.below(12), if self.rng.one_in(3) { self.rng.below(4) } else { 0 });
        let limit = match self.rng.below(6) {
            0 | 1 if sortable(&selects[0]) => {
                let orders = ["", "desc", "asc nulls first", "desc nulls last"];
                let orders = selects[0].outputs.iter().map(|_| *self.rng.pick(&orders)).collect();
                Some(Limit::Sorted(limit, offset, orders))
            }
            2 => Some(Limit::Counted(limit, offset)),
            _ => None,
        };
        Query { recursive: None, selects, limit }
    }

    /// Columns of a table or a join.
    fn plain(&mut self, filtered: bool) -> Select {
        let from = self.from();
        let scope = self.scope(&from);
        let outputs = (0..1 + self.rng.below(4)).map(|_| self.output(&scope)).collect();
        let filter = (filtered || !self.rng.one_in(6)).then(|| self.predicate(&scope, 3));
        Select { distinct: false, outputs, from, filter, group_by: Vec::new() }
    }

    fn grouped(&mut self) -> Select {
        let from = self.from();
        let scope = self.scope(&from);
        let keys: Vec<_> = scope.iter().filter(|column| column.class().is_sortable()).cloned().collect();
        let count = if keys.is_empty() { 0 } else { self.rng.below(3) };
        let mut group_by: Vec<Expr> = Vec::new();
        for _ in 0..count {
            let key = self.rng.pick(&keys).expr();
            if !group_by.contains(&key) {
                group_by.push(key);
            }
        }
        let mut outputs: Vec<_> =
            group_by.iter().map(|key| Output { expr: key.clone(), sortable: true }).collect();
        for _ in 0..1 + self.rng.below(3) {
            outputs.push(Output { expr: self.aggregate(&scope), sortable: true });
        }
        let filter = (!self.rng.one_in(4)).then(|| self.predicate(&scope, 2));
        Select { distinct: false, outputs, from, filter, group_by }
    }

    fn aggregate(&mut self, scope: &[InScope<'a>]) -> Expr {
        let column = self.rng.pick(scope).clone();
        let class = column.class();
        let call = |name| Expr::Call(name, vec![column.expr()]);
        match self.rng.below(7) {
            0 => Expr::Call("count", vec![Expr::Literal("*".into())]),
            1 => call("count"),
            2 if class.is_sortable() => Expr::Call("count(distinct", vec![column.expr()]),
            // A sum of floats depends on the order of its terms.
            3 if matches!(class, Class::Integer | Class::Decimal) => call("sum"),
            3 | 4 if has_extremes(class) => call("min"),
            5 | 6 if has_extremes(class) => call("max"),
            _ => call("count"),
        }
    }

    /// A window function among the columns. Its value is the same for rows of equal rank.
    fn windowed(&mut self) -> Select {
        let mut select = self.plain(false);
        let scope = self.scope(&select.from);
        let keys: Vec<_> = scope.iter().filter(|column| column.class().is_sortable()).cloned().collect();
        if keys.is_empty() {
            return select;
        }
        let (partition, order) = (self.rng.pick(&keys).expr(), self.rng.pick(&keys).clone());
        let partition = if self.rng.one_in(3) { vec![] } else { vec![partition] };
        let call = match self.rng.below(5) {
            0 => Expr::Call("rank", vec![]),
            1 => Expr::Call("dense_rank", vec![]),
            2 => Expr::Call("count", vec![Expr::Literal("*".into())]),
            3 if order.class() != Class::Span => Expr::Call("min", vec![order.expr()]),
            _ => Expr::Call("count", vec![order.expr()]),
        };
        let expr = Expr::Over(Box::new(call), partition, vec![order.expr()]);
        select.outputs.push(Output { expr, sortable: true });
        select
    }

    /// A recursive query: integers of a table, and up to three steps from them.
    fn recursive(&mut self) -> Option<Query> {
        let place = self.rng.below(self.tables.len());
        let integers = |draw: &mut Self, table: &'a Table| {
            let scope = columns(table, "t");
            let integers: Vec<_> = scope.iter().filter(|column| column.class() == Class::Integer).collect();
            (!integers.is_empty()).then(|| integers[draw.rng.below(integers.len())].clone())
        };
        let column = integers(self, &self.tables[place])?;
        let from = From { table: (self.tables[place].name.clone(), "t".into()), joins: Vec::new() };
        let scope = self.scope(&from);
        let other = self.rng.below(self.tables.len());
        let step = integers(self, &self.tables[other]).filter(|_| self.rng.one_in(2));
        let begin = Select {
            distinct: false,
            outputs: vec![
                Output { expr: Expr::Cast("cast", Box::new(column.expr()), "bigint"), sortable: true },
                Output { expr: Expr::Literal("0".into()), sortable: true },
            ],
            from,
            filter: Some(self.predicate(&scope, 1)),
            group_by: Vec::new(),
        };
        let recursive = Recursive {
            begin: Box::new(begin),
            step: step.map(|column| (self.tables[other].name.clone(), column.name)),
            union: if self.rng.one_in(3) { "union" } else { "union all" },
            depth_max: 1 + self.rng.below(3),
        };
        let output = |name: &str| Output { expr: Expr::Column("r".into(), name.into()), sortable: true };
        let select = Select {
            distinct: self.rng.one_in(3),
            outputs: vec![output("o0"), output("o1")],
            from: From { table: ("r".into(), "r".into()), joins: Vec::new() },
            filter: None,
            group_by: Vec::new(),
        };
        Some(Query { recursive: Some(recursive), selects: vec![select], limit: None })
    }

    fn table(&mut self) -> &'a Table {
        let tables = self.tables;
        self.rng.pick(tables)
    }

    fn from(&mut self) -> From {
        let first = self.table();
        let mut from = From { table: (first.name.clone(), "t".into()), joins: Vec::new() };
        if self.rng.one_in(3) {
            let second = self.table();
            let kinds = ["inner join", "left join", "right join", "full join"];
            let common = if self.rng.one_in(3) { &kinds[..] } else { &kinds[..2] };
            let kind = *self.rng.pick(common);
            let on = self.join_condition(first, second);
            from.joins.push(Join { kind, table: (second.name.clone(), "u".into()), on });
        }
        from
    }

    /// Two comparable columns are equal, if there are such columns.
    fn join_condition(&mut self, first: &'a Table, second: &'a Table) -> Expr {
        let (left, right) = (columns(first, "t"), columns(second, "u"));
        let pairs: Vec<_> = left
            .iter()
            .flat_map(|one| right.iter().map(move |other| (one, other)))
            .filter(|(one, other)| one.class().is_sortable() && one.class() == other.class())
            .collect();
        let scope: Vec<_> = left.iter().chain(&right).cloned().collect();
        if pairs.is_empty() {
            return self.predicate(&scope, 1);
        }
        let (one, other) = pairs[self.rng.below(pairs.len())];
        let operator = if self.rng.one_in(8) { "<" } else { "=" };
        let equal = Expr::binary(one.expr(), operator, other.expr());
        if self.rng.one_in(4) {
            return Expr::binary(equal, "and", self.predicate(&scope, 1));
        }
        equal
    }

    fn scope(&self, from: &From) -> Vec<InScope<'a>> {
        let named = |name: &str| self.tables.iter().find(move |table| table.name == name);
        let tables = std::iter::once(&from.table).chain(from.joins.iter().map(|join| &join.table));
        tables.filter_map(|(name, alias)| Some(columns(named(name)?, alias))).flatten().collect()
    }

    fn output(&mut self, scope: &[InScope<'a>]) -> Output {
        let column = self.rng.pick(scope).clone();
        let class = column.class();
        match self.rng.below(12) {
            0 if self.shape == Shape::Any => {
                let in_projection = Shape::Plain;
                let shape = std::mem::replace(&mut self.shape, in_projection);
                let expr = self.predicate(scope, 1);
                self.shape = shape;
                Output { expr, sortable: true }
            }
            1 if class.is_sortable() => Output { expr: self.cast(&column).0, sortable: true },
            2 if class == Class::Text => {
                let function = *self.rng.pick(&["lower", "upper", "length", "trim", "reverse"]);
                Output { expr: Expr::Call(function, vec![column.expr()]), sortable: true }
            }
            3 if class.is_sortable() => {
                let literal = Expr::Literal(literals::of_class(&mut self.rng, class));
                let function = *self.rng.pick(&["coalesce", "nullif"]);
                Output { expr: Expr::Call(function, vec![column.expr(), literal]), sortable: true }
            }
            _ => Output { expr: column.expr(), sortable: class.is_sortable() },
        }
    }

    /// A column cast to another type, and that type's class.
    fn cast(&mut self, column: &InScope<'a>) -> (Expr, Class) {
        let types = [
            ("bigint", Class::Integer),
            ("int", Class::Integer),
            ("smallint", Class::Integer),
            ("double", Class::Float),
            ("varchar", Class::Text),
            ("date", Class::Date),
            ("timestamp", Class::Timestamp),
            ("decimal(20,5)", Class::Decimal),
            ("boolean", Class::Boolean),
        ];
        let (data_type, class) = *self.rng.pick(&types);
        let cast = if self.rng.one_in(4) { "cast" } else { "try_cast" };
        (Expr::Cast(cast, Box::new(column.expr()), data_type), class)
    }

    fn predicate(&mut self, scope: &[InScope<'a>], depth: usize) -> Expr {
        if depth == 0 || self.rng.one_in(2) {
            return self.condition(scope);
        }
        match self.rng.below(7) {
            0..=2 => Expr::binary(self.predicate(scope, depth - 1), "and", self.predicate(scope, depth - 1)),
            3 | 4 => Expr::binary(self.predicate(scope, depth - 1), "or", self.predicate(scope, depth - 1)),
            5 => Expr::Not(Box::new(self.predicate(scope, depth - 1))),
            _ => {
                Expr::Test(Box::new(self.predicate(scope, depth - 1)), self.rng.pick::<&'static str>(&TESTS))
            }
        }
    }

    fn condition(&mut self, scope: &[InScope<'a>]) -> Expr {
        let column = self.rng.pick(scope).clone();
        let class = column.class();
        let test = if self.rng.one_in(2) { "is null" } else { "is not null" };
        if class == Class::Other {
            return Expr::Test(Box::new(column.expr()), test);
        }
        match self.rng.below(20) {
            0..=6 => {
                let operator = *self.rng.pick(&COMPARISONS);
                let literal = self.literal(&column);
                match self.rng.one_in(5) {
                    true => Expr::binary(literal, operator, column.expr()),
                    false => Expr::binary(column.expr(), operator, literal),
                }
            }
            7 => {
                let same: Vec<_> = scope
                    .iter()
                    .filter(|other| other.class() == class || other.class().is_number() && class.is_number())
                    .collect();
                let other = same[self.rng.below(same.len())].expr();
                Expr::binary(column.expr(), self.rng.pick::<&'static str>(&COMPARISONS), other)
            }
            8..=10 => {
                let list = (0..1 + self.rng.below(4)).map(|_| self.literal(&column)).collect();
                Expr::In(Box::new(column.expr()), list, self.rng.one_in(3))
            }
            11 | 12 => {
                let [low, high] = [0; 2].map(|_| Box::new(self.literal(&column)));
                Expr::Between(Box::new(column.expr()), low, high, self.rng.one_in(4))
            }
            13 | 14 if class == Class::Text => {
                let pattern = Expr::Literal(literals::pattern(&mut self.rng, column.values));
                Expr::binary(column.expr(), self.rng.pick::<&'static str>(&LIKES), pattern)
            }
            13..=15 => Expr::Test(Box::new(column.expr()), test),
            16 => {
                let literal = self.literal(&column);
                Expr::binary(column.expr(), self.rng.pick::<&'static str>(&DISTINCT), literal)
            }
            17 => {
                let (cast, class) = self.cast(&column);
                let literal = Expr::Literal(literals::of_class(&mut self.rng, class));
                Expr::binary(cast, self.rng.pick::<&'static str>(&COMPARISONS), literal)
            }
            18 if self.shape == Shape::Any => self.subquery(&column),
            _ if class == Class::Boolean => column.expr(),
            _ => Expr::binary(column.expr(), "=", self.literal(&column)),
        }
    }

    fn literal(&mut self, column: &InScope<'a>) -> Expr {
        Expr::Literal(literals::any(&mut self.rng, column.values))
    }

    /// IN the values of a column of another table, or EXISTS with such a row.
    fn subquery(&mut self, column: &InScope<'a>) -> Expr {
        let table = self.table();
        let scope = columns(table, "v");
        let same: Vec<_> = scope.iter().filter(|other| other.class() == column.class()).cloned().collect();
        if same.is_empty() {
            return Expr::Test(Box::new(column.expr()), "is not null");
        }
        let other = self.rng.pick(&same).expr();
        let select = |expr: Expr, filter| {
            Box::new(Select {
                distinct: false,
                outputs: vec![Output { expr, sortable: true }],
                from: From { table: (table.name.clone(), "v".into()), joins: Vec::new() },
                filter,
                group_by: Vec::new(),
            })
        };
        let negated = self.rng.one_in(3);
        if self.rng.one_in(2) {
            let equal = Expr::binary(other, "=", column.expr());
            return Expr::Exists(select(Expr::Literal("1".into()), Some(equal)), negated);
        }
        let filter = self.rng.one_in(2).then(|| self.condition_of(&scope));
        Expr::InSelect(Box::new(column.expr()), select(other, filter), negated)
    }

    /// A condition without a subquery.
    fn condition_of(&mut self, scope: &[InScope<'a>]) -> Expr {
        let shape = std::mem::replace(&mut self.shape, Shape::Plain);
        let condition = self.condition(scope);
        self.shape = shape;
        condition
    }
}

/// Whether `min` and `max` are well defined. For floats DataFusion's result depends on the position of NaN.
fn has_extremes(class: Class) -> bool {
    class.is_sortable() && !matches!(class, Class::Span | Class::Float)
}

fn sortable(select: &Select) -> bool {
    select.outputs.iter().all(|output| output.sortable)
}

fn columns<'a>(table: &'a Table, alias: &str) -> Vec<InScope<'a>> {
    let schema = table.rows.schema_ref();
    let named = |(place, field): (usize, &arrow_schema::FieldRef)| InScope {
        alias: alias.to_owned(),
        name: field.name().clone(),
        values: table.rows.column(place).as_ref(),
    };
    schema.fields().iter().enumerate().map(named).collect()
}

#[cfg(test)]
mod tests {
    use super::super::{Types, any_table};
    use super::*;

    #[test]
    fn a_query_is_a_function_of_its_seed_and_all_parts_occur() {
        let query = |seed: u64| {
            let tables = [0, 1].map(|n| any_table(&format!("t{n}"), Types::All, 20, seed / 50 * 2 + n));
            any_query(&tables, Shape::Any, seed).to_string()
        };
        let all: Vec<String> = (0..3000).map(query).collect();
        assert_eq!(all[17], query(17));
        let parts = [
            "with recursive",
            "union all",
            "distinct",
            "group by",
            "left join",
            "over (",
            "between",
            "not in",
            " like ",
            "is null",
            "is distinct from",
            "limit",
            "order by",
            "cast(",
            "exists (",
            " or ",
            "(not ",
            "sum(",
            "null)",
        ];
        for part in parts {
            assert!(all.iter().any(|sql| sql.contains(part)), "{part}");
        }
    }

    #[test]
    fn plain_queries_can_be_partitioned_and_counted() {
        let tables = [any_table("t0", Types::All, 20, 3)];
        for seed in 0..500 {
            let query = any_query(&tables, Shape::Plain, seed);
            let (whole, parts) = query.partitions().expect("a condition");
            assert!(!whole.to_string().contains(" where "), "{whole}");
            assert!(parts.iter().all(|part| part.to_string().contains(" where ")));
            assert!(query.counts().is_some());
            assert!(!query.to_string().contains("exists"), "{query}");
        }
    }

    #[test]
    fn making_a_query_smaller_ends() {
        let tables = [0, 1].map(|n| any_table(&format!("t{n}"), Types::All, 20, n));
        for seed in 0..500 {
            let mut query = any_query(&tables, Shape::Any, seed);
            // Always takes the first smaller query.
            let mut steps = 0;
            while let Some(smaller) = query.smaller().into_iter().next() {
                query = smaller;
                steps += 1;
                assert!(steps < 200, "{query}");
            }
        }
    }
}
