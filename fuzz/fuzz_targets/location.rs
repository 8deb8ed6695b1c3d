//! Arbitrary locations: an accepted location can be displayed.
#![no_main]

use libfuzzer_sys::fuzz_target;
use lightship_sources::Location;

fuzz_target!(|text: &str| {
    if let Ok(location) = Location::parse(text) {
        let _ = (location.to_string(), format!("{location:?}"));
    }
    let _ = lightship_sources::location::redact(text);
});
