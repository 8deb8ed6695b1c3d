//! Nodes as places: how to reach them, and what earlier transfers showed of the link.

use std::net::IpAddr;
use std::time::SystemTime;

use lightship_session::{ClientConfig, Endpoint, Fact, Known, Profiles};
use lightship_sources::Location;
use lightship_sources::location::Tls;

use crate::{Error, Result};

/// Environment variable with the token for a node.
const TOKEN_VARIABLE: &str = "LIGHTSHIP_TOKEN";

/// The endpoint of a node, and the settings of its client.
///
/// # Errors
/// For a location that is no node, an authority that can't be read, or a token that would go to another host in clear.
pub fn endpoint(location: &Location) -> Result<(Endpoint, ClientConfig)> {
    endpoint_as(location, None)
}

/// As [`endpoint`], with this token, if there is one, instead of that of the URI or the environment.
///
/// # Errors
/// As [`endpoint`].
pub fn endpoint_as(location: &Location, own: Option<String>) -> Result<(Endpoint, ClientConfig)> {
    let config = |token: Option<&String>, shared_memory| {
        let from_environment = || std::env::var(TOKEN_VARIABLE).unwrap_or_default();
        let token = own.clone().or_else(|| token.cloned()).unwrap_or_else(from_environment);
        ClientConfig { token, shared_memory, ..ClientConfig::default() }
    };
    match location {
        Location::NodeUnix { path, shared_memory } => {
            Ok((Endpoint::Unix(path.clone()), config(None, *shared_memory)))
        }
        Location::Node { host, port, token, tls, shared_memory, insecure } => {
            let tls = match tls {
                Tls::Off => None,
                Tls::System => {
                    let found = rustls_native_certs::load_native_certs();
                    Some(lightship_transport::net::tls::client(found.certs)?)
                }
                Tls::Ca(path) => Some(lightship_transport::net::tls::client_with_authority(path)?),
            };
            let config = config(token.as_ref(), *shared_memory);
            if tls.is_none() && !config.token.is_empty() && !insecure && !is_this_host(host) {
                return Err(Error::usage(format!("the token would go to {host} in clear")).hint(
                    "encrypt the connection with ?tls=true, or ?ca=FILE for an own authority; on a network that \
                     you trust, ?insecure=true sends it all the same",
                ));
            }
            Ok((Endpoint::Tcp { host: host.clone(), port: *port, tls }, config))
        }
        other => Err(Error::usage(format!("{other} is not a node"))),
    }
}

/// Whether this is the name or address of the loopback interface.
pub fn is_this_host(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// What profiles and earlier transfers say of a link and a query. What can't be read, or is in doubt, counts as
/// unknown: the transfer measures it.
pub fn known(name: &str, sql: &str, carrier: &str) -> Known {
    let Ok(profiles) = Profiles::of_user() else { return Known::default() };
    let unread = |error| tracing::warn!(%error, "going on without what was known of the link");
    let profile = profiles.find(name).map_err(unread).ok().flatten();
    let profile = profile.filter(|profile| profile.doubts(SystemTime::now()).is_empty());
    let mut facts = profiles.facts(name).map_err(unread).unwrap_or_default();
    facts.retain(|fact| fact.carrier == carrier);
    Known::of(profile.as_ref(), &facts, sql)
}

/// Keeps what a transfer took for the next one; a failure to do so is not one of the transfer.
pub(crate) fn keep(name: &str, fact: Fact) {
    if let Ok(profiles) = Profiles::of_user()
        && let Err(error) = profiles.record(name, fact)
    {
        tracing::warn!(%error, "what this transfer took is not kept");
    }
}
