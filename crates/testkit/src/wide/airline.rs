//! Airline On-Time Performance: one row a flight.

use arrow_array::RecordBatch;
use arrow_array::types::{Date32Type, Float64Type, Int8Type, Int16Type, Int32Type};
use arrow_schema::DataType;

use super::{Columns, STATES, batches};
use crate::rng::Rng;

/// Flights of the Airline On-Time Performance data from October 1987 on, 8192 a batch:
/// 109 columns, 55.2% NULL.
///
/// Codes and names of airports, carriers, times of day as `hhmm`, delays and durations
/// as whole `Float64`s. As in the first years of the data, from which its share of NULL
/// comes, many columns are not recorded yet (tail numbers, taxiing, causes of delay) and
/// always NULL; columns about cancelled and diverted flights are nearly always NULL. Rows
/// are in order of year, month and day, and within a day by carrier and flight number;
/// every day has the same 14 000 scheduled flights.
///
/// Names and order of columns are those of the Bureau of Transportation Statistics;
/// airports, schedule and delays are invented. Diverted flights have data on their first
/// diversion, which the real data has only from 2008 on.
pub fn airline(rows: usize, seed: u64) -> impl Iterator<Item = RecordBatch> + Send {
    let mut rng = Rng(seed);
    let schedule = Schedule::new(&mut rng);
    let mut today = Day { number: 6_482, year: 1987, month: 10, day: 1, weekday: 4 };
    batches(rows).map(move |(first, count)| {
        let flights: Vec<_> = (first..first + count)
            .map(|row| {
                if row > 0 && row % FLIGHTS_A_DAY == 0 {
                    today = today.next();
                }
                Flown::new(today, &schedule.flights[row % FLIGHTS_A_DAY], &mut rng)
            })
            .collect();
        batch(&flights, &schedule)
    })
}

const FLIGHTS_A_DAY: usize = 14_000;
const AIRPORTS: usize = 240;
/// Diversions of a flight that have columns.
const DIVERSIONS: usize = 5;
/// Code and number of the carriers of those years.
#[rustfmt::skip]
const CARRIERS: [(&str, i32); 14] = [
    ("AA", 19805), ("AS", 19930), ("CO", 19704), ("DL", 19790), ("EA", 19391), ("HP", 19991), ("NW", 19386),
    ("PA (1)", 20384), ("PI", 19822), ("PS", 19964), ("TW", 20211), ("UA", 19977), ("US", 20355), ("WN", 19393),
];

/// A day of the calendar. `number` counts from 1 January 1970, `weekday` from Monday as 1.
#[derive(Clone, Copy)]
struct Day {
    number: i32,
    year: i16,
    month: i8,
    day: i8,
    weekday: i8,
}

impl Day {
    fn next(self) -> Self {
        let leap = self.year % 4 == 0 && (self.year % 100 != 0 || self.year % 400 == 0);
        let last = match self.month {
            2 => 28 + i8::from(leap),
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        };
        let (year, month, day) = match (self.month, self.day) {
            (12, 31) => (self.year + 1, 1, 1),
            (month, day) if day == last => (self.year, month + 1, 1),
            (month, day) => (self.year, month, day + 1),
        };
        Self { number: self.number + 1, year, month, day, weekday: self.weekday % 7 + 1 }
    }
}

struct Airport {
    code: String,
    city: String,
    /// Index into [`STATES`].
    state: usize,
    id: i32,
    market: i32,
    /// Miles east and north of a corner of the country.
    place: (i32, i32),
}

struct Scheduled {
    carrier: usize,
    number: i16,
    origin: usize,
    destination: usize,
    /// Minutes since midnight.
    departs: i32,
    minutes: i32,
    miles: i32,
}

struct Schedule {
    airports: Vec<Airport>,
    flights: Vec<Scheduled>,
    /// `0600-0659` and so on, by hour.
    hours: Vec<String>,
}

impl Schedule {
    fn new(rng: &mut Rng) -> Self {
        let airports: Vec<_> = (0..AIRPORTS).map(|i| airport(i, rng)).collect();
        // The lower of two draws: few airports have most of the flights.
        let any = |rng: &mut Rng| rng.below(AIRPORTS).min(rng.below(AIRPORTS));
        let flight = |i: usize| {
            let origin = any(rng);
            let destination = (origin + 1 + any(rng).min(AIRPORTS - 2)) % AIRPORTS;
            let (from, to) = (airports[origin].place, airports[destination].place);
            let miles = 60 + f64::from((from.0 - to.0).pow(2) + (from.1 - to.1).pow(2)).sqrt() as i32;
            let a_carrier = FLIGHTS_A_DAY.div_ceil(CARRIERS.len());
            Scheduled {
                carrier: i / a_carrier,
                number: (1 + i % a_carrier * 3 / 2) as i16,
                origin,
                destination,
                departs: 360 + 5 * rng.below(192) as i32,
                minutes: 35 + miles / 7,
                miles,
            }
        };
        let flights = (0..FLIGHTS_A_DAY).map(flight).collect();
        let hours = (0..24).map(|hour| format!("{hour:02}00-{hour:02}59")).collect();
        Self { airports, flights, hours }
    }
}

fn airport(i: usize, rng: &mut Rng) -> Airport {
    const FIRST: [&str; 12] = [
        "Spring", "Fort ", "Saint ", "Cedar ", "Grand ", "Port ", "Lake ", "Green", "Oak", "West", "River",
        "Mill",
    ];
    const SECOND: [&str; 10] =
        ["field", "Rapids", "Harbor", "ville", "Falls", "ton", "Bluffs", "City", "Junction", "wood"];
    let letter = |n: usize| char::from(b'A' + (n % 26) as u8);
    let state = rng.below(STATES.len());
    Airport {
        code: [letter(i / 26), letter(i), letter(i * 7 + 3)].iter().collect(),
        city: format!("{}{}, {}", rng.pick(&FIRST), rng.pick(&SECOND), STATES[state].0),
        state,
        id: 10_135 + 17 * i as i32,
        market: 30_070 + 23 * (i / 2) as i32,
        place: (rng.below(2_500) as i32, rng.below(1_200) as i32),
    }
}

/// The outcome of a scheduled flight on a day.
struct Flown<'a> {
    day: Day,
    plan: &'a Scheduled,
    fate: Fate,
    /// Minutes after the schedule; before it, if negative.
    late_off: i32,
    late_on: i32,
}

#[derive(Clone, Copy, PartialEq)]
enum Fate {
    Arrived,
    Cancelled,
    Diverted,
}

impl<'a> Flown<'a> {
    fn new(day: Day, plan: &'a Scheduled, rng: &mut Rng) -> Self {
        let fate = match rng.below(1_000) {
            0..15 => Fate::Cancelled,
            15..18 => Fate::Diverted,
            _ => Fate::Arrived,
        };
        let late_off = match rng.below(10) {
            0..4 => 0,
            4..8 => rng.below(14) as i32 - 5,
            _ => rng.below(30) as i32 * (1 + rng.below(4) as i32),
        };
        Self { day, plan, fate, late_off, late_on: late_off + rng.below(31) as i32 - 16 }
    }

    /// `value`, if the flight took off.
    fn off<T>(&self, value: T) -> Option<T> {
        (self.fate != Fate::Cancelled).then_some(value)
    }

    /// `value`, if the flight landed at its destination.
    fn on<T>(&self, value: T) -> Option<T> {
        (self.fate == Fate::Arrived).then_some(value)
    }

    /// `value`, if the flight was diverted.
    fn elsewhere<T>(&self, value: T) -> Option<T> {
        (self.fate == Fate::Diverted).then_some(value)
    }

    fn arrives(&self) -> i32 {
        self.plan.departs + self.plan.minutes
    }

    /// The airport where a diverted flight lands.
    fn refuge(&self) -> usize {
        (self.plan.origin + self.plan.destination) / 2
    }
}

/// Minutes since midnight in the format of the data: 1 minute past 2 in the afternoon is 1401.
fn hhmm(minutes: i32) -> i16 {
    let minutes = minutes.rem_euclid(24 * 60);
    (minutes / 60 * 100 + minutes % 60) as i16
}

fn quarter_hours(minutes: i32) -> i8 {
    minutes.div_euclid(15).clamp(-2, 12) as i8
}

fn at_least_a_quarter_hour(minutes: i32) -> f64 {
    f64::from(u8::from(minutes >= 15))
}

fn batch(flights: &[Flown<'_>], schedule: &Schedule) -> RecordBatch {
    let mut columns = Columns::default();
    dates_and_carriers(&mut columns, flights);
    place(&mut columns, "Origin", flights, |f| &schedule.airports[f.plan.origin]);
    place(&mut columns, "Dest", flights, |f| &schedule.airports[f.plan.destination]);
    departure_and_arrival(&mut columns, flights, &schedule.hours);
    distance(&mut columns, flights);
    diversions(&mut columns, flights, &schedule.airports);
    columns.finish()
}

fn dates_and_carriers(columns: &mut Columns, flights: &[Flown<'_>]) {
    let all = || flights.iter();
    columns.number::<Int16Type>("Year", all().map(|f| Some(f.day.year)));
    columns.number::<Int8Type>("Quarter", all().map(|f| Some((f.day.month + 2) / 3)));
    columns.number::<Int8Type>("Month", all().map(|f| Some(f.day.month)));
    columns.number::<Int8Type>("DayofMonth", all().map(|f| Some(f.day.day)));
    columns.number::<Int8Type>("DayOfWeek", all().map(|f| Some(f.day.weekday)));
    columns.number::<Date32Type>("FlightDate", all().map(|f| Some(f.day.number)));
    columns.text("UniqueCarrier", all().map(|f| Some(CARRIERS[f.plan.carrier].0)));
    columns.number::<Int32Type>("AirlineID", all().map(|f| Some(CARRIERS[f.plan.carrier].1)));
    columns.text("Carrier", all().map(|f| CARRIERS[f.plan.carrier].0.get(..2)));
    columns.nulls("TailNum", &DataType::Utf8, flights.len());
    columns.number::<Int16Type>("FlightNum", all().map(|f| Some(f.plan.number)));
}

/// Adds the columns about one end of a flight.
fn place<'a>(
    columns: &mut Columns,
    end: &str,
    flights: &'a [Flown<'_>],
    airport: impl Fn(&'a Flown<'_>) -> &'a Airport,
) {
    let all = || flights.iter().map(&airport);
    columns.number::<Int32Type>(format!("{end}AirportID"), all().map(|a| Some(a.id)));
    columns.number::<Int32Type>(format!("{end}AirportSeqID"), all().map(|a| Some(a.id * 100 + 1)));
    columns.number::<Int32Type>(format!("{end}CityMarketID"), all().map(|a| Some(a.market)));
    columns.text(end, all().map(|a| Some(a.code.as_str())));
    columns.text(format!("{end}CityName"), all().map(|a| Some(a.city.as_str())));
    columns.text(format!("{end}State"), all().map(|a| Some(STATES[a.state].0)));
    columns.number::<Int8Type>(format!("{end}StateFips"), all().map(|a| Some(STATES[a.state].1)));
    columns.text(format!("{end}StateName"), all().map(|a| Some(STATES[a.state].2)));
    columns.number::<Int8Type>(format!("{end}Wac"), all().map(|a| Some(1 + a.state as i8)));
}

fn departure_and_arrival(columns: &mut Columns, flights: &[Flown<'_>], hours: &[String]) {
    let all = || flights.iter();
    let hour = |minutes: i32| Some(hours[(minutes / 60 % 24) as usize].as_str());
    let none = |columns: &mut Columns, name: &str, data_type| columns.nulls(name, &data_type, flights.len());

    columns.number::<Int16Type>("CRSDepTime", all().map(|f| Some(hhmm(f.plan.departs))));
    columns.number::<Int16Type>("DepTime", all().map(|f| f.off(hhmm(f.plan.departs + f.late_off))));
    columns.number::<Float64Type>("DepDelay", all().map(|f| f.off(f.late_off.into())));
    columns.number::<Float64Type>("DepDelayMinutes", all().map(|f| f.off(f.late_off.max(0).into())));
    columns.number::<Float64Type>("DepDel15", all().map(|f| f.off(at_least_a_quarter_hour(f.late_off))));
    columns.number::<Int8Type>("DepartureDelayGroups", all().map(|f| f.off(quarter_hours(f.late_off))));
    columns.text("DepTimeBlk", all().map(|f| hour(f.plan.departs)));
    none(columns, "TaxiOut", DataType::Float64);
    none(columns, "WheelsOff", DataType::Int16);
    none(columns, "WheelsOn", DataType::Int16);
    none(columns, "TaxiIn", DataType::Float64);
    columns.number::<Int16Type>("CRSArrTime", all().map(|f| Some(hhmm(f.arrives()))));
    columns.number::<Int16Type>("ArrTime", all().map(|f| f.on(hhmm(f.arrives() + f.late_on))));
    columns.number::<Float64Type>("ArrDelay", all().map(|f| f.on(f.late_on.into())));
    columns.number::<Float64Type>("ArrDelayMinutes", all().map(|f| f.on(f.late_on.max(0).into())));
    columns.number::<Float64Type>("ArrDel15", all().map(|f| f.on(at_least_a_quarter_hour(f.late_on))));
    columns.number::<Int8Type>("ArrivalDelayGroups", all().map(|f| f.on(quarter_hours(f.late_on))));
    columns.text("ArrTimeBlk", all().map(|f| hour(f.arrives())));
    let is = |fate| all().map(move |f| Some(f64::from(u8::from(f.fate == fate))));
    columns.number::<Float64Type>("Cancelled", is(Fate::Cancelled));
    none(columns, "CancellationCode", DataType::Utf8);
    columns.number::<Float64Type>("Diverted", is(Fate::Diverted));
}

fn distance(columns: &mut Columns, flights: &[Flown<'_>]) {
    let all = || flights.iter();
    columns.number::<Float64Type>("CRSElapsedTime", all().map(|f| Some(f.plan.minutes.into())));
    let taken = |f: &Flown<'_>| f.on((f.plan.minutes + f.late_on - f.late_off).into());
    columns.number::<Float64Type>("ActualElapsedTime", all().map(taken));
    columns.nulls("AirTime", &DataType::Float64, flights.len());
    columns.number::<Float64Type>("Flights", all().map(|_| Some(1.0)));
    columns.number::<Float64Type>("Distance", all().map(|f| Some(f.plan.miles.into())));
    columns.number::<Int8Type>("DistanceGroup", all().map(|f| Some((1 + f.plan.miles / 250) as i8)));
    for name in ["CarrierDelay", "WeatherDelay", "NASDelay", "SecurityDelay", "LateAircraftDelay"] {
        columns.nulls(name, &DataType::Float64, flights.len());
    }
}

fn diversions(columns: &mut Columns, flights: &[Flown<'_>], airports: &[Airport]) {
    let all = || flights.iter();
    let rows = flights.len();
    columns.nulls("FirstDepTime", &DataType::Int16, rows);
    columns.nulls("TotalAddGTime", &DataType::Float64, rows);
    columns.nulls("LongestAddGTime", &DataType::Float64, rows);
    columns.number::<Int8Type>("DivAirportLandings", all().map(|f| f.elsewhere(1)));
    columns.number::<Float64Type>("DivReachedDest", all().map(|f| f.elsewhere(0.0)));
    columns.nulls("DivActualElapsedTime", &DataType::Float64, rows);
    columns.nulls("DivArrDelay", &DataType::Float64, rows);
    columns.number::<Float64Type>("DivDistance", all().map(|f| f.elsewhere((f.plan.miles / 2).into())));

    let refuge = |f: &Flown<'_>| &airports[f.refuge()];
    columns.text("Div1Airport", all().map(|f| f.elsewhere(refuge(f).code.as_str())));
    columns.number::<Int32Type>("Div1AirportID", all().map(|f| f.elsewhere(refuge(f).id)));
    columns.number::<Int32Type>("Div1AirportSeqID", all().map(|f| f.elsewhere(refuge(f).id * 100 + 1)));
    columns.number::<Int16Type>("Div1WheelsOn", all().map(|f| f.elsewhere(hhmm(f.arrives() + f.late_on))));
    columns.number::<Float64Type>("Div1TotalGTime", all().map(|f| f.elsewhere(20.0)));
    columns.number::<Float64Type>("Div1LongestGTime", all().map(|f| f.elsewhere(20.0)));
    columns.nulls("Div1WheelsOff", &DataType::Int16, rows);
    columns.nulls("Div1TailNum", &DataType::Utf8, rows);
    for i in 2..=DIVERSIONS {
        columns.nulls(format!("Div{i}Airport"), &DataType::Utf8, rows);
        columns.nulls(format!("Div{i}AirportID"), &DataType::Int32, rows);
        columns.nulls(format!("Div{i}AirportSeqID"), &DataType::Int32, rows);
        columns.nulls(format!("Div{i}WheelsOn"), &DataType::Int16, rows);
        columns.nulls(format!("Div{i}TotalGTime"), &DataType::Float64, rows);
        columns.nulls(format!("Div{i}LongestGTime"), &DataType::Float64, rows);
        columns.nulls(format!("Div{i}WheelsOff"), &DataType::Int16, rows);
        columns.nulls(format!("Div{i}TailNum"), &DataType::Utf8, rows);
    }
}
