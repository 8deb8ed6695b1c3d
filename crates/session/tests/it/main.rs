//! The client against a real server.

mod calibration;
