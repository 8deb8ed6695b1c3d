//! Tests the client against a real server.

mod calibration;
