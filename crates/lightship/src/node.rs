//! How to reach a node, and what earlier transfers showed about the link to it.

use std::net::IpAddr;
use std::time::SystemTime;

use lightship_session::{ClientConfig, Endpoint, LinkPrior, Profiles, TransferRecord};
use lightship_sources::Location;
use lightship_sources::location::Tls;

use crate::{Error, Result};

/// Environment variable that holds the token for a node.
const TOKEN_VARIABLE: &str = "LIGHTSHIP_TOKEN";

/// The endpoint of a node, and the client settings for it.
///
/// # Errors
/// If the location is not a node, the CA file can't be read, or the token would be sent to another host
/// unencrypted.
pub fn endpoint(location: &Location) -> Result<(Endpoint, ClientConfig)> {
    endpoint_as(location, None)
}

/// Like [`endpoint`], but `own`, if given, replaces the token of the URI or the environment.
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
                return Err(Error::usage(format!("the token would be sent to {host} unencrypted")).hint(
                    "encrypt the connection with ?tls=true, or ?ca=FILE for a private CA; on a network that you \
                     trust, ?insecure=true allows it",
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

/// What the profile and earlier transfers say about a link and a query. Unreadable records
/// and outdated or foreign profiles are ignored; the transfer then measures the link itself.
pub fn known(name: &str, sql: &str, carrier: &str) -> LinkPrior {
    let Ok(profiles) = Profiles::of_user() else { return LinkPrior::default() };
    let unread = |error| tracing::warn!(%error, "continuing without earlier measurements of the link");
    let profile = profiles.find(name).map_err(unread).ok().flatten();
    let profile = profile.filter(|profile| profile.doubts(SystemTime::now()).is_empty());
    let mut facts = profiles.facts(name).map_err(unread).unwrap_or_default();
    facts.retain(|fact| fact.carrier == carrier);
    LinkPrior::of(profile.as_ref(), &facts, sql)
}

/// Records a transfer, so that later ones can be planned from it. A failure to record does not fail the
/// transfer.
pub(crate) fn keep(name: &str, fact: TransferRecord) {
    if let Ok(profiles) = Profiles::of_user()
        && let Err(error) = profiles.record(name, fact)
    {
        tracing::warn!(%error, "cannot record this transfer");
    }
}
