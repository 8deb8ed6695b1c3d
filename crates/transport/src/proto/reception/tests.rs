//! The state machines, alone and in the simulation.

mod budget;
mod receiver;
mod sender;
mod simulated;
