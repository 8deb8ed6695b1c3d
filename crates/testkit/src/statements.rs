//! Deeply nested SQL statements of any shape.

/// A statement built from arbitrary bytes. `t` is a table with a column `a` of integers.
///
/// Each pair of bytes selects a construct and wraps it around the statement so far, a number of times that grows
/// with the second byte. In all there are at most `parts_max` wrappings.
pub fn deep(choices: &[u8], parts_max: usize) -> String {
    let mut expression = Wrapped::new("a");
    let mut query: Option<Wrapped> = None;
    let mut left = parts_max;
    for pair in choices.chunks(2) {
        let [kind, times] = [pair[0], *pair.last().unwrap_or(&0)].map(usize::from);
        let times = (times * times / 16).min(left);
        left -= times;
        if kind < 192 {
            let (before, after) = EXPRESSIONS[kind % EXPRESSIONS.len()];
            expression.wrap(before, after, times);
        } else {
            let (before, after) = QUERIES[kind % QUERIES.len()];
            let query = query.get_or_insert_with(|| Wrapped::new("select a from t"));
            query.wrap(before, after, times);
        }
    }
    let query = query.map_or_else(|| "t".to_owned(), |query| format!("({}) as q(a)", query.text()));
    format!("select {} from {query}", expression.text())
}

/// Constructs that wrap an expression of integers: the text before and after it.
const EXPRESSIONS: [(&str, &str); 16] = [
    ("", " + 1"),
    ("1 - (", ")"),
    ("- ", ""),
    ("(", ")"),
    ("", "::bigint"),
    ("abs(", ")"),
    ("coalesce(", ", 1)"),
    ("case when ", " > 0 then 1 else a end"),
    ("cast(", " as int)"),
    ("(a > 0 or ", " > 0)::int"),
    ("(not ", " > 0)::int"),
    ("(select ", ")"),
    ("[", "][1]"),
    ("named_struct('x', ", ").x"),
    ("(", " in (1, 2, a))::int"),
    ("(", " between 1 and 2 and a = 1)::int"),
];

/// Constructs that wrap a query of one column: the text before and after it.
const QUERIES: [(&str, &str); 8] = [
    ("", " union all select 1"),
    ("select a from (", ") as q"),
    ("with q as (", ") select a from q"),
    ("select a from t where a in (", ")"),
    ("select q.a from t join (", ") as q(a) on q.a = t.a"),
    ("(", ") except select 2"),
    ("select a from (", ") as q(a) order by a limit 10"),
    ("select max(a) as a from (", ") as q(a)"),
];

/// A text and what is wrapped around it.
struct Wrapped {
    before: Vec<&'static str>,
    text: String,
}

impl Wrapped {
    fn new(text: &str) -> Self {
        Self { before: Vec::new(), text: text.to_owned() }
    }

    fn wrap(&mut self, before: &'static str, after: &str, times: usize) {
        for _ in 0..times {
            self.before.push(before);
            self.text.push_str(after);
        }
    }

    fn text(&self) -> String {
        let before: String = self.before.iter().rev().copied().collect();
        before + &self.text
    }
}
