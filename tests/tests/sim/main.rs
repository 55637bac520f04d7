//! Engines over the simulated fabric, one module an invariant, in one executable, and the fault laboratory (`lab`).

mod checksum;
mod copies;
mod credits;
mod deadline;
mod determinism;
mod exactly_once;
mod lab;
mod modes;
mod order;
mod placement;
mod rounds;
mod unregistered;
mod views;
