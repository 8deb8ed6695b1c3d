//! Queries as trees that print as SQL.

use std::fmt;

/// An expression.
#[derive(Debug, Clone, PartialEq)]
pub enum Expr {
    /// A column: the alias of its table, and its name.
    Column(String, String),
    /// A literal, as SQL text.
    Literal(String),
    /// Two operands and the operator between them: comparisons, AND, OR, LIKE, arithmetic.
    Binary(Box<Expr>, &'static str, Box<Expr>),
    /// NOT.
    Not(Box<Expr>),
    /// An operand and the test behind it: IS NULL, IS NOT TRUE.
    Test(Box<Expr>, &'static str),
    /// IN with a list; true for NOT IN.
    In(Box<Expr>, Vec<Expr>, bool),
    /// IN with a query; true for NOT IN.
    InSelect(Box<Expr>, Box<Select>, bool),
    /// EXISTS; true for NOT EXISTS.
    Exists(Box<Select>, bool),
    /// BETWEEN; true for NOT BETWEEN.
    Between(Box<Expr>, Box<Expr>, Box<Expr>, bool),
    /// CAST or TRY_CAST, and the type.
    Cast(&'static str, Box<Expr>, &'static str),
    /// A function, or an aggregate.
    Call(&'static str, Vec<Expr>),
    /// A window function: the call, PARTITION BY, ORDER BY.
    Over(Box<Expr>, Vec<Expr>, Vec<Expr>),
}

impl Expr {
    pub(crate) fn binary(left: Expr, operator: &'static str, right: Expr) -> Self {
        Self::Binary(Box::new(left), operator, Box::new(right))
    }
}

impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let not = |negated: &bool| if *negated { "not " } else { "" };
        match self {
            Self::Column(table, column) => write!(f, "{table}.{}", quoted(column)),
            Self::Literal(text) => f.write_str(text),
            Self::Binary(left, operator, right) => write!(f, "({left} {operator} {right})"),
            Self::Not(inner) => write!(f, "(not {inner})"),
            Self::Test(inner, test) => write!(f, "({inner} {test})"),
            Self::In(inner, list, negated) => write!(f, "({inner} {}in ({}))", not(negated), Listed(list)),
            Self::InSelect(inner, select, negated) => write!(f, "({inner} {}in ({select}))", not(negated)),
            Self::Exists(select, negated) => write!(f, "({}exists ({select}))", not(negated)),
            Self::Between(inner, low, high, negated) => {
                write!(f, "({inner} {}between {low} and {high})", not(negated))
            }
            Self::Cast(cast, inner, data_type) => write!(f, "{cast}({inner} as {data_type})"),
            Self::Call("count(distinct", arguments) => write!(f, "count(distinct {})", Listed(arguments)),
            Self::Call(name, arguments) => write!(f, "{name}({})", Listed(arguments)),
            Self::Over(call, partition, order) => {
                write!(f, "{call} over (")?;
                if !partition.is_empty() {
                    write!(f, "partition by {} ", Listed(partition))?;
                }
                if !order.is_empty() {
                    write!(f, "order by {}", Listed(order))?;
                }
                f.write_str(")")
            }
        }
    }
}

/// A name as SQL quotes it.
pub(crate) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

struct Listed<'a, T>(&'a [T]);

impl<T: fmt::Display> fmt::Display for Listed<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, item) in self.0.iter().enumerate() {
            if place > 0 {
                f.write_str(", ")?;
            }
            write!(f, "{item}")?;
        }
        Ok(())
    }
}

/// A column of a result. Its name is `o` and its position.
#[derive(Debug, Clone, PartialEq)]
pub struct Output {
    /// Its expression.
    pub expr: Expr,
    /// Whether rows can be sorted by it.
    pub sortable: bool,
}

/// The tables of a SELECT.
#[derive(Debug, Clone, PartialEq)]
pub struct From {
    /// Name and alias of the first table.
    pub table: (String, String),
    /// The other tables.
    pub joins: Vec<Join>,
}

/// A joined table.
#[derive(Debug, Clone, PartialEq)]
pub struct Join {
    /// Such as `left join`.
    pub kind: &'static str,
    /// Name and alias.
    pub table: (String, String),
    /// The condition.
    pub on: Expr,
}

/// One SELECT.
#[derive(Debug, Clone, PartialEq)]
pub struct Select {
    /// DISTINCT.
    pub distinct: bool,
    /// The columns: at least one.
    pub outputs: Vec<Output>,
    /// FROM.
    pub from: From,
    /// WHERE.
    pub filter: Option<Expr>,
    /// GROUP BY.
    pub group_by: Vec<Expr>,
}

impl fmt::Display for Select {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.distinct { "select distinct " } else { "select " })?;
        let outputs = self.outputs.iter().enumerate().map(|(place, o)| format!("{} as o{place}", o.expr));
        write!(
            f,
            "{} from {} as {}",
            Listed(&outputs.collect::<Vec<_>>()),
            self.from.table.0,
            self.from.table.1
        )?;
        for join in &self.from.joins {
            write!(f, " {} {} as {} on {}", join.kind, join.table.0, join.table.1, join.on)?;
        }
        if let Some(filter) = &self.filter {
            write!(f, " where {filter}")?;
        }
        if !self.group_by.is_empty() {
            write!(f, " group by {}", Listed(&self.group_by))?;
        }
        Ok(())
    }
}

/// LIMIT and OFFSET.
#[derive(Debug, Clone, PartialEq)]
pub enum Limit {
    /// Of rows sorted by all columns; for each column what follows its name, such as `desc`.
    Sorted(usize, usize, Vec<&'static str>),
    /// Of any rows, which are only counted.
    Counted(usize, usize),
}

/// `with recursive r`: integers and the depth at which they were found.
#[derive(Debug, Clone, PartialEq)]
pub struct Recursive {
    /// The rows it begins with.
    pub begin: Box<Select>,
    /// A table that each step joins as `s`, and its column that must equal `r.o0`.
    pub step: Option<(String, String)>,
    /// `union all`, or `union`.
    pub union: &'static str,
    /// The depth of the deepest step.
    pub depth_max: usize,
}

impl fmt::Display for Recursive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "with recursive r as ({} {} select r.o0, r.o1 + 1 from r", self.begin, self.union)?;
        if let Some((table, column)) = &self.step {
            write!(f, " inner join {table} as s on s.{} = r.o0", quoted(column))?;
        }
        write!(f, " where r.o1 < {}) ", self.depth_max)
    }
}

/// A query.
#[derive(Debug, Clone, PartialEq)]
pub struct Query {
    /// The recursive part: the table `r`.
    pub recursive: Option<Recursive>,
    /// At least one; more are joined by UNION ALL.
    pub selects: Vec<Select>,
    /// LIMIT.
    pub limit: Option<Limit>,
}

impl fmt::Display for Query {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(recursive) = &self.recursive {
            write!(f, "{recursive}")?;
        }
        let selects: Vec<_> = self.selects.iter().map(Select::to_string).collect();
        let selects = selects.join(" union all ");
        match &self.limit {
            None => f.write_str(&selects),
            Some(Limit::Counted(limit, offset)) => {
                write!(f, "select count(*) as o0 from ({selects} limit {limit} offset {offset}) as l")
            }
            Some(Limit::Sorted(limit, offset, orders)) => {
                let orders = orders.iter().enumerate().map(|(place, order)| format!("o{place} {order}"));
                let orders = orders.collect::<Vec<_>>();
                write!(f, "{selects} order by {} limit {limit} offset {offset}", Listed(&orders))
            }
        }
    }
}

impl Query {
    /// Query partitioning: the query without its condition `p`, and three queries that together have the same
    /// rows: where `p`, where not `p`, where `p` is null. Only for a plain query with a condition
    /// ([`Shape::Plain`](super::Shape)).
    pub fn partitions(&self) -> Option<(Query, [Query; 3])> {
        let filter = self.selects.first()?.filter.clone()?;
        let with = |filter| {
            let mut query = self.clone();
            query.selects[0].filter = filter;
            query
        };
        let not = Expr::Not(Box::new(filter.clone()));
        let null = Expr::Test(Box::new(filter.clone()), "is null");
        Some((with(None), [with(Some(filter)), with(Some(not)), with(Some(null))]))
    }

    /// Two queries for the number of rows where `p`: with `p` as a value of each row, and with `p` as a condition,
    /// which may be optimised. Only for a plain query with a condition.
    pub fn counts(&self) -> Option<(Query, Query)> {
        let filter = self.selects.first()?.filter.clone()?;
        let with = |output: String, filter| {
            let mut query = self.clone();
            query.selects[0].outputs = vec![Output { expr: Expr::Literal(output), sortable: true }];
            query.selects[0].filter = filter;
            query
        };
        let value = format!("coalesce(sum(case when {filter} then 1 else 0 end), 0)");
        Some((with(value, None), with("count(*)".into(), Some(filter))))
    }
}
