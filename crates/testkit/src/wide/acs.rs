//! The American Community Survey: its public records of persons.

use arrow_array::RecordBatch;
use arrow_array::types::{Int8Type, Int16Type, Int32Type, Int64Type};

use super::{Columns, STATES, batches};
use crate::rng::Rng;

/// Persons of the American Community Survey, 8192 a batch: 274 columns, 16.1% NULL.
///
/// Mostly small integers: codes of answers, 76 flags of answers that the bureau filled
/// in, 80 replicate weights; some amounts of money, two columns of text codes. A column
/// is NULL where the question does not apply to the person (work of children, service
/// of those who never served), so NULLs occur together. Rows are in order of state and
/// household.
///
/// Names and kinds of columns are those of the survey's public records. Which persons
/// have NULL in which columns is invented, with the data set's share of NULL.
pub fn acs(rows: usize, seed: u64) -> impl Iterator<Item = RecordBatch> + Send {
    let mut people = People { rng: Rng(seed), household: 0, puma: 0, left: 0, members: 0 };
    batches(rows).map(move |(first, count)| {
        let persons: Vec<_> =
            (first..first + count).map(|row| people.next(row * STATES.len() / rows)).collect();
        batch(&persons, &mut people.rng)
    })
}

/// The persons to whom a question applies.
#[derive(Clone, Copy)]
enum Asked {
    Everyone,
    Adults,
    Workers,
    Veterans,
    BornAbroad,
    Moved,
    Married,
    Carers,
}

/// What a column holds.
#[derive(Clone, Copy)]
enum SurveyAnswer {
    /// One of this many codes; lower ones are more frequent.
    Code(usize),
    /// One of this many codes, written as text.
    Text(usize),
    /// Dollars a year, often 0.
    Amount,
}

use Asked::{Adults, BornAbroad, Carers, Everyone, Married, Moved, Veterans, Workers};
use SurveyAnswer::{Amount, Code, Text};

#[rustfmt::skip]
const QUESTIONS: &[(Asked, &[(&str, SurveyAnswer)])] = &[
    (Everyone, &[
        ("SEX", Code(2)), ("CIT", Code(5)), ("RAC1P", Code(9)), ("RAC2P", Code(68)), ("RAC3P", Code(100)),
        ("HISP", Code(24)), ("RELP", Code(18)), ("QTRBIR", Code(4)), ("DEAR", Code(2)), ("DEYE", Code(2)),
        ("HICOV", Code(2)), ("HINS1", Code(2)), ("HINS2", Code(2)), ("HINS3", Code(2)), ("HINS4", Code(2)),
        ("HINS5", Code(2)), ("HINS6", Code(2)), ("HINS7", Code(2)), ("PRIVCOV", Code(2)), ("PUBCOV", Code(2)),
        ("ANC", Code(4)), ("ANC1P", Code(300)), ("ANC2P", Code(300)), ("NATIVITY", Code(2)),
        ("POBP", Code(220)), ("RACAIAN", Code(2)), ("RACASN", Code(2)), ("RACBLK", Code(2)),
        ("RACNHPI", Code(2)), ("RACNUM", Code(6)),
    ]),
    (Adults, &[
        ("MAR", Code(5)), ("SCHL", Code(24)), ("SCH", Code(3)), ("MIL", Code(5)), ("DDRS", Code(2)),
        ("DREM", Code(2)), ("DPHY", Code(2)), ("DOUT", Code(2)), ("LANX", Code(2)), ("ESR", Code(6)),
        ("NWAB", Code(3)), ("NWAV", Code(5)), ("NWLA", Code(3)), ("NWLK", Code(3)), ("NWRE", Code(3)),
        ("WKL", Code(3)), ("WRK", Code(2)), ("MIG", Code(3)), ("MSP", Code(6)), ("POVPIP", Code(501)),
        ("PINCP", Amount), ("PERNP", Amount), ("WAGP", Amount), ("SEMP", Amount), ("INTP", Amount),
        ("RETP", Amount), ("SSP", Amount), ("SSIP", Amount), ("PAP", Amount), ("OIP", Amount),
    ]),
    (Workers, &[
        ("COW", Code(9)), ("INDP", Code(9_000)), ("OCCP", Code(9_800)), ("NAICSP", Text(270)),
        ("SOCP", Text(500)), ("JWMNP", Code(200)), ("JWRIP", Code(10)), ("JWTR", Code(12)),
        ("JWAP", Code(285)), ("JWDP", Code(150)), ("DRIVESP", Code(6)), ("POWPUMA", Code(70_000)),
        ("POWSP", Code(60)), ("WKHP", Code(99)), ("WKW", Code(6)), ("FOD1P", Code(6_400)),
        ("SCIENGP", Code(2)), ("SCIENGRLP", Code(2)),
    ]),
    (Veterans, &[
        ("VPS", Code(15)), ("MLPA", Code(2)), ("MLPB", Code(2)), ("MLPC", Code(2)), ("MLPD", Code(2)),
        ("MLPE", Code(2)), ("MLPF", Code(2)), ("MLPG", Code(2)), ("MLPH", Code(2)), ("MLPI", Code(2)),
        ("MLPJ", Code(2)), ("MLPK", Code(2)), ("DRAT", Code(6)), ("DRATX", Code(2)),
    ]),
    (BornAbroad, &[
        ("YOEP", Code(90)), ("CITWP", Code(90)), ("DECADE", Code(8)), ("LANP", Code(990)), ("ENG", Code(4)),
    ]),
    (Moved, &[("MIGPUMA", Code(70_000)), ("MIGSP", Code(555))]),
    (Married, &[
        ("MARHD", Code(2)), ("MARHM", Code(2)), ("MARHT", Code(3)), ("MARHW", Code(2)), ("MARHYP", Code(80)),
    ]),
    (Carers, &[
        ("GCL", Code(2)), ("GCM", Code(5)), ("GCR", Code(2)), ("SFN", Code(3)), ("SFR", Code(6)),
        ("FER", Code(2)),
    ]),
];

/// The number of questions, from the first, that have a flag for answers filled in by the bureau.
const MARKED: usize = 76;
/// Replicate weights.
const WEIGHTS: usize = 80;
/// Percent of answers that were filled in.
const FILLED_IN_PERCENT: usize = 3;
/// Maximum number of persons in a household.
const HOUSEHOLD_MAX: usize = 4;

struct Person {
    state: i8,
    household: i64,
    member: i8,
    puma: i32,
    age: i8,
    weight: i16,
    works: bool,
    served: bool,
    born_abroad: bool,
    moved: bool,
    married: bool,
    cares: bool,
}

impl Person {
    fn is(&self, asked: Asked) -> bool {
        match asked {
            Everyone => true,
            Adults => self.age >= 16,
            Workers => self.works,
            Veterans => self.served,
            BornAbroad => self.born_abroad,
            Moved => self.moved,
            Married => self.married,
            Carers => self.cares,
        }
    }
}

/// Generates persons, household by household.
struct People {
    rng: Rng,
    household: i64,
    puma: i32,
    /// Members of the household that are still to come.
    left: usize,
    members: i8,
}

impl People {
    fn next(&mut self, state: usize) -> Person {
        let rng = &mut self.rng;
        if self.left == 0 {
            self.left = 1 + rng.below(HOUSEHOLD_MAX);
            self.members = 0;
            self.household += 1 + rng.below(60) as i64;
            self.puma = 100 * (1 + rng.below(20) as i32);
        }
        self.left -= 1;
        self.members += 1;
        // The shares below make 16.1% of all values NULL.
        let child = rng.percent(20);
        let age = if child { rng.below(16) } else { 16 + rng.below(79) };
        Person {
            state: STATES[state].1,
            household: self.household,
            member: self.members,
            puma: self.puma,
            age: age as i8,
            weight: 20 + (rng.below(120) + rng.below(120)) as i16,
            works: !child && rng.percent(60),
            served: !child && rng.percent(10),
            born_abroad: rng.percent(13),
            moved: rng.percent(14),
            married: rng.percent(5),
            cares: rng.percent(16),
        }
    }
}

fn batch(persons: &[Person], rng: &mut Rng) -> RecordBatch {
    let mut columns = Columns::default();
    let all = || persons.iter();
    columns.text("RT", all().map(|_| Some("P")));
    columns.number::<Int64Type>("SERIALNO", all().map(|p| Some(p.household)));
    columns.number::<Int8Type>("SPORDER", all().map(|p| Some(p.member)));
    columns.number::<Int32Type>("PUMA", all().map(|p| Some(p.puma)));
    columns.number::<Int8Type>("ST", all().map(|p| Some(p.state)));
    columns.number::<Int32Type>("ADJINC", all().map(|_| Some(1_007_549)));
    columns.number::<Int16Type>("PWGTP", all().map(|p| Some(p.weight)));
    columns.number::<Int8Type>("AGEP", all().map(|p| Some(p.age)));
    let mut names = vec![];
    for &(asked, questions) in QUESTIONS {
        for &(name, kind) in questions {
            answer(&mut columns, name, kind, persons, asked, rng);
            names.push(name);
        }
    }
    for name in &names[..MARKED] {
        let mark = |_: &Person| Some(i8::from(rng.percent(FILLED_IN_PERCENT)));
        columns.number::<Int8Type>(format!("F{name}"), all().map(mark));
    }
    for i in 1..=WEIGHTS {
        // A replicate weight is between a fifth and nearly twice of the person's weight.
        let replicate = |p: &Person| Some((i32::from(p.weight) * (20 + rng.below(160) as i32) / 100) as i16);
        columns.number::<Int16Type>(format!("PWGTP{i}"), all().map(replicate));
    }
    columns.finish()
}

/// Adds a column of answers in the narrowest type that holds its codes. It is NULL for
/// persons who are not asked.
fn answer(
    columns: &mut Columns,
    name: &str,
    kind: SurveyAnswer,
    persons: &[Person],
    asked: Asked,
    rng: &mut Rng,
) {
    // The lower of two draws: small codes are common, as they are in the survey.
    let mut code = |of: usize| 1 + rng.below(of).min(rng.below(of));
    let to = persons.iter().map(|p| p.is(asked));
    match kind {
        Code(of @ 0..128) => columns.number::<Int8Type>(name, to.map(|yes| yes.then(|| code(of) as i8))),
        Code(of @ 128..32_768) => {
            columns.number::<Int16Type>(name, to.map(|yes| yes.then(|| code(of) as i16)));
        }
        Code(of) => columns.number::<Int32Type>(name, to.map(|yes| yes.then(|| code(of) as i32))),
        Amount => {
            let dollars = |code: usize| if code < 1_400 { 0 } else { 10 * (code as i32 - 1_400) };
            columns.number::<Int32Type>(name, to.map(|yes| yes.then(|| dollars(code(4_000)))));
        }
        Text(of) => {
            let codes: Vec<_> =
                (0..=of).map(|code| format!("{}{:02}XX", 11 + code / 40, code % 40)).collect();
            columns.text(name, to.map(|yes| yes.then(|| codes[code(of)].as_str())));
        }
    }
}
