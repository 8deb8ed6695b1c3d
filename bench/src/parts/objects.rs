//! A server of S3.

use std::io::Write as _;

use lightship_testkit::s3::S3;

use crate::Result;

/// Serves an empty bucket on all addresses of the host, and prints the port.
pub(super) fn serve(bucket: &str) -> Result<()> {
    let server = S3::listen("0.0.0.0:0");
    server.bucket(bucket);
    writeln!(std::io::stdout(), "{}", server.endpoint.rsplit(':').next().unwrap_or_default())?;
    loop {
        std::thread::park();
    }
}
