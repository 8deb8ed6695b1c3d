//! The 22 queries, with the parameters by which the benchmark validates.
//!
//! DataFusion and PostgreSQL accept them alike. Where the benchmark leaves the order of rows open, or which
//! of equal ones a limit keeps, more columns decide it: every result has one order. The view of query 15 is
//! part of the query.

macro_rules! texts {
    ($($number:literal)*) => { [$(include_str!(concat!("../../testdata/tpch/q", $number, ".sql"))),*] };
}

const TEXTS: [&str; 22] = texts!("01" "02" "03" "04" "05" "06" "07" "08" "09" "10" "11" "12" "13" "14" "15" "16" "17" "18" "19" "20" "21" "22");

/// Of the value of all stock, at scale 1, what query 11 asks of a part.
const FRACTION: f64 = 0.0001;

/// The queries in order, for data of a scale: query 11 depends on it.
pub fn queries(scale: f64) -> [String; 22] {
    let fraction = (FRACTION / scale).to_string();
    TEXTS.map(|text| text.trim_end().replace("{fraction}", &fraction))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complete_for_any_scale() {
        assert!(queries(0.1)[10].contains("* 0.001\n"), "{}", queries(0.1)[10]);
        assert!(queries(10.0)[10].contains("* 0.00001\n"), "{}", queries(10.0)[10]);
        for sql in queries(1.0) {
            assert!(sql.starts_with("select") || sql.starts_with("with"), "{sql}");
            assert!(!sql.contains(['{', '}', ';']), "{sql}");
        }
    }

    /// Those of more than one row.
    #[test]
    fn ordered() {
        let unordered = queries(1.0).into_iter().zip(1..).filter(|(sql, _)| !sql.contains("\norder by"));
        assert_eq!(unordered.map(|(_, number)| number).collect::<Vec<_>>(), [6, 14, 17, 19]);
    }
}
