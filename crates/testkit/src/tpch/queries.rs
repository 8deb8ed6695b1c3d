//! The 22 queries, with the validation parameters of TPC-H's specification.
//!
//! DataFusion and PostgreSQL both accept them. Where the specification leaves the order of rows open, or which
//! of equal rows a limit keeps, the queries order by more columns: every result has one order. The view of
//! query 15 is part of the query.

macro_rules! texts {
    ($($number:literal)*) => { [$(include_str!(concat!("../../testdata/tpch/q", $number, ".sql"))),*] };
}

const TEXTS: [&str; 22] = texts!("01" "02" "03" "04" "05" "06" "07" "08" "09" "10" "11" "12" "13" "14" "15" "16" "17" "18" "19" "20" "21" "22");

/// The smallest fraction of the value of all stock for a part in query 11, at scale 1.
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
    fn queries_are_complete_for_any_scale() {
        assert!(queries(0.1)[10].contains("* 0.001\n"), "{}", queries(0.1)[10]);
        assert!(queries(10.0)[10].contains("* 0.00001\n"), "{}", queries(10.0)[10]);
        for sql in queries(1.0) {
            assert!(sql.starts_with("select") || sql.starts_with("with"), "{sql}");
            assert!(!sql.contains(['{', '}', ';']), "{sql}");
        }
    }

    #[test]
    fn queries_of_more_than_one_row_are_ordered() {
        let unordered = queries(1.0).into_iter().zip(1..).filter(|(sql, _)| !sql.contains("\norder by"));
        assert_eq!(unordered.map(|(_, number)| number).collect::<Vec<_>>(), [6, 14, 17, 19]);
    }
}
