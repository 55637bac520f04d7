//! The words that flags share: transports and placements.

#[cfg(any(test, feature = "cli"))]
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
#[cfg(any(test, feature = "cli"))]
use proto_common::transport::Driver;

/// Reads a transport's name on a command line.
#[cfg(any(test, feature = "cli"))]
#[must_use]
pub fn driver_words() -> impl TypedValueParser<Value = Driver> {
    let word = |driver: Driver| PossibleValue::new(driver.name()).help(driver.about());
    PossibleValuesParser::new(Driver::ALL.map(word)).try_map(|name| name.parse::<Driver>())
}

/// Words of --placement.
pub const PLACEMENTS: [&str; 5] = ["auto", "slot", "static", "rendezvous-read", "rendezvous-write"];
