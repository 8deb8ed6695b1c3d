//! Wide tables with many NULLs, in the shape of two public data sets.
//!
//! Raasveldt and Mühleisen, "Don't Hold My Data Hostage: A Case For Client Protocol
//! Redesign" (PVLDB 10(10), 2017, section 4.3) measure protocols on them beside TPC-H:
//!
//! | table | columns | NULL | rows |
//! |---|---|---|---|
//! | American Community Survey | 274 | 16.1% | 9.1 million |
//! | Airline On-Time Performance | 109 | 55.2% | 10 million |
//!
//! Columns, their types, the share of NULL and the order of rows follow those sets, so
//! that encodings find similar data. The values are invented: their ranges are
//! plausible, but their distributions are not those of the data.
//!
//! All columns are nullable, as they are when read from text. Everything is a function
//! of `rows` and `seed`.

mod acs;
mod airline;

use std::sync::Arc;

use arrow_array::{ArrayRef, ArrowPrimitiveType, PrimitiveArray, RecordBatch, StringArray, new_null_array};
use arrow_schema::{DataType, Field, Schema};

pub use self::acs::acs;
pub use self::airline::airline;

/// Rows in a batch.
const BATCH_ROWS: usize = 8192;

/// The states and the District of Columbia: postal code, federal number, name.
#[rustfmt::skip]
const STATES: [(&str, i8, &str); 51] = [
    ("AL", 1, "Alabama"), ("AK", 2, "Alaska"), ("AZ", 4, "Arizona"), ("AR", 5, "Arkansas"),
    ("CA", 6, "California"), ("CO", 8, "Colorado"), ("CT", 9, "Connecticut"), ("DE", 10, "Delaware"),
    ("DC", 11, "District of Columbia"), ("FL", 12, "Florida"), ("GA", 13, "Georgia"), ("HI", 15, "Hawaii"),
    ("ID", 16, "Idaho"), ("IL", 17, "Illinois"), ("IN", 18, "Indiana"), ("IA", 19, "Iowa"),
    ("KS", 20, "Kansas"), ("KY", 21, "Kentucky"), ("LA", 22, "Louisiana"), ("ME", 23, "Maine"),
    ("MD", 24, "Maryland"), ("MA", 25, "Massachusetts"), ("MI", 26, "Michigan"), ("MN", 27, "Minnesota"),
    ("MS", 28, "Mississippi"), ("MO", 29, "Missouri"), ("MT", 30, "Montana"), ("NE", 31, "Nebraska"),
    ("NV", 32, "Nevada"), ("NH", 33, "New Hampshire"), ("NJ", 34, "New Jersey"), ("NM", 35, "New Mexico"),
    ("NY", 36, "New York"), ("NC", 37, "North Carolina"), ("ND", 38, "North Dakota"), ("OH", 39, "Ohio"),
    ("OK", 40, "Oklahoma"), ("OR", 41, "Oregon"), ("PA", 42, "Pennsylvania"), ("RI", 44, "Rhode Island"),
    ("SC", 45, "South Carolina"), ("SD", 46, "South Dakota"), ("TN", 47, "Tennessee"), ("TX", 48, "Texas"),
    ("UT", 49, "Utah"), ("VT", 50, "Vermont"), ("VA", 51, "Virginia"), ("WA", 53, "Washington"),
    ("WV", 54, "West Virginia"), ("WI", 55, "Wisconsin"), ("WY", 56, "Wyoming"),
];

/// Cuts `rows` into batches: for each, the number of its first row and its size.
fn batches(rows: usize) -> impl Iterator<Item = (usize, usize)> + Send {
    (0..rows).step_by(BATCH_ROWS).map(move |first| (first, BATCH_ROWS.min(rows - first)))
}

/// The columns of a batch that is being built.
#[derive(Default)]
struct Columns {
    fields: Vec<Field>,
    arrays: Vec<ArrayRef>,
}

impl Columns {
    fn number<T: ArrowPrimitiveType>(
        &mut self,
        name: impl Into<String>,
        values: impl Iterator<Item = Option<T::Native>>,
    ) {
        self.add(name, Arc::new(values.collect::<PrimitiveArray<T>>()));
    }

    fn text<'a>(&mut self, name: impl Into<String>, values: impl Iterator<Item = Option<&'a str>>) {
        self.add(name, Arc::new(values.collect::<StringArray>()));
    }

    fn nulls(&mut self, name: impl Into<String>, data_type: &DataType, rows: usize) {
        self.add(name, new_null_array(data_type, rows));
    }

    fn add(&mut self, name: impl Into<String>, array: ArrayRef) {
        self.fields.push(Field::new(name, array.data_type().clone(), true));
        self.arrays.push(array);
    }

    fn finish(self) -> RecordBatch {
        RecordBatch::try_new(Arc::new(Schema::new(self.fields)), self.arrays).expect("columns of one length")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use arrow_array::cast::AsArray;
    use arrow_array::types::{Date32Type, Int8Type, Int64Type};

    use super::*;

    const ROWS: usize = 3 * BATCH_ROWS + 100;

    fn check_shape(batches: &[RecordBatch], columns: usize, null_percent: f64) {
        let rows: Vec<_> = batches.iter().map(RecordBatch::num_rows).collect();
        assert_eq!(rows, [BATCH_ROWS, BATCH_ROWS, BATCH_ROWS, 100]);
        let schema = batches[0].schema();
        assert!(batches.iter().all(|batch| batch.schema() == schema));
        assert_eq!(schema.fields().len(), columns);
        let names: BTreeSet<_> = schema.fields().iter().map(|field| field.name()).collect();
        assert_eq!(names.len(), columns, "a duplicate name");
        let nulls: usize = batches.iter().flat_map(|b| b.columns()).map(|column| column.null_count()).sum();
        let share = 100.0 * nulls as f64 / (ROWS * columns) as f64;
        assert!((share - null_percent).abs() < 0.5, "{share}% NULL");
    }

    #[test]
    fn the_survey_has_its_shape() {
        check_shape(&acs(ROWS, 1).collect::<Vec<_>>(), 274, 16.1);
    }

    #[test]
    fn the_flights_have_their_shape() {
        check_shape(&airline(ROWS, 1).collect::<Vec<_>>(), 109, 55.2);
    }

    #[test]
    fn the_seed_decides_the_rows() {
        assert!(acs(9000, 7).eq(acs(9000, 7)));
        assert!(airline(9000, 7).eq(airline(9000, 7)));
        assert!(acs(9000, 7).ne(acs(9000, 8)));
        assert!(airline(9000, 7).ne(airline(9000, 8)));
    }

    #[test]
    fn no_rows_give_no_batches() {
        assert_eq!(acs(0, 1).count() + airline(0, 1).count(), 0);
    }

    #[test]
    fn the_survey_is_in_order_of_state_and_household() {
        let mut last = (0, 0);
        let mut states = BTreeSet::new();
        for batch in acs(ROWS, 3) {
            let state = batch["ST"].as_primitive::<Int8Type>();
            let household = batch["SERIALNO"].as_primitive::<Int64Type>();
            for row in state.values().iter().copied().zip(household.values().iter().copied()) {
                assert!(last <= row, "{last:?} before {row:?}");
                states.insert(row.0);
                last = row;
            }
        }
        assert_eq!(states.len(), STATES.len());
    }

    #[test]
    fn flights_are_in_order_of_days_across_months() {
        // 14 000 flights a day from 1 October 1987: row 434 000 is the first of November.
        let batch = airline(450_000, 3).nth(434_000 / BATCH_ROWS).expect("a batch");
        let days = batch["FlightDate"].as_primitive::<Date32Type>();
        assert!(days.values().is_sorted());
        let (first, last) = (days.value_as_date(0), days.value_as_date(days.len() - 1));
        let text = |day: Option<_>| day.map(|day| format!("{day:?}"));
        assert_eq!(text(first).as_deref(), Some("1987-10-31"));
        assert_eq!(text(last).as_deref(), Some("1987-11-01"));
        let month = batch["Month"].as_primitive::<Int8Type>();
        assert_eq!((month.value(0), month.value(days.len() - 1)), (10, 11));
        // The first of November 1987 was a Sunday.
        assert_eq!(batch["DayOfWeek"].as_primitive::<Int8Type>().value(days.len() - 1), 7);
    }
}
