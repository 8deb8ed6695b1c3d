//! An ADBC driver: query results of any source as Arrow streams, for every program with an ADBC driver manager.
//!
//! A [`LightshipDatabase`] is a URI with options, a [`LightshipConnection`](connection::LightshipConnection) also answers what is
//! in it, and a [`LightshipStatement`](statement::LightshipStatement) runs a query or writes a table. What is
//! built is `libadbc_driver_lightship.so`, with the entry points `AdbcDriverLightshipInit` and `AdbcDriverInit`.

mod bound;
mod connection;
mod errors;
mod info;
mod login;
mod objects;
mod partitions;
mod settings;
mod statement;
mod statistics;
mod xdbc;

use adbc_core::error::{Result, Status};
use adbc_core::options::{OptionConnection, OptionDatabase, OptionValue};
use adbc_core::{Database, Driver, Optionable};
use lightship::Location;
use lightship::blocking::Connection;

use crate::connection::LightshipConnection;
use crate::errors::{error, from_library};
use crate::login::Login;
use crate::settings::{Settings, text_of, unset};

pub mod entry {
    //! The entry points of the library, which the macro makes without documentation.
    #![allow(missing_docs)]

    adbc_ffi::export_driver!(AdbcDriverLightshipInit, super::LightshipDriver);
}

/// The driver.
#[derive(Debug, Default)]
pub struct LightshipDriver {}

impl Driver for LightshipDriver {
    type DatabaseType = LightshipDatabase;

    fn new_database(&mut self) -> Result<LightshipDatabase> {
        Ok(LightshipDatabase::default())
    }

    fn new_database_with_opts(
        &mut self,
        opts: impl IntoIterator<Item = (OptionDatabase, OptionValue)>,
    ) -> Result<LightshipDatabase> {
        let mut database = LightshipDatabase::default();
        opts.into_iter().try_for_each(|(key, value)| database.set_option(key, value))?;
        Ok(database)
    }
}

/// A source by its URI, with the options of its results.
#[derive(Debug, Default)]
pub struct LightshipDatabase {
    uri: Option<String>,
    login: Login,
    settings: Settings,
}

impl Optionable for LightshipDatabase {
    type Option = OptionDatabase;

    fn set_option(&mut self, key: OptionDatabase, value: OptionValue) -> Result<()> {
        match &key {
            OptionDatabase::Uri => {
                let uri = text_of(value)?;
                Location::parse(&uri).map_err(|error| from_library(&error.into()))?;
                self.uri = Some(uri);
                Ok(())
            }
            OptionDatabase::Username => {
                self.login.username = Some(text_of(value)?);
                Ok(())
            }
            OptionDatabase::Password => {
                self.login.password = Some(text_of(value)?);
                Ok(())
            }
            _ => self.settings.set(key.as_ref(), value),
        }
    }

    fn get_option_string(&self, key: OptionDatabase) -> Result<String> {
        let set = match &key {
            OptionDatabase::Uri => &self.uri,
            OptionDatabase::Username => &self.login.username,
            OptionDatabase::Password => &self.login.password,
            _ => return self.settings.get(key.as_ref()),
        };
        set.clone().ok_or_else(|| unset(key.as_ref()))
    }

    fn get_option_bytes(&self, key: OptionDatabase) -> Result<Vec<u8>> {
        self.get_option_string(key).map(String::into_bytes)
    }

    fn get_option_int(&self, key: OptionDatabase) -> Result<i64> {
        settings::int_of(&self.get_option_string(key)?)
    }

    fn get_option_double(&self, key: OptionDatabase) -> Result<f64> {
        settings::double_of(&self.get_option_string(key)?)
    }
}

impl Database for LightshipDatabase {
    type ConnectionType = LightshipConnection;

    fn new_connection(&self) -> Result<LightshipConnection> {
        self.new_connection_with_opts([])
    }

    fn new_connection_with_opts(
        &self,
        opts: impl IntoIterator<Item = (OptionConnection, OptionValue)>,
    ) -> Result<LightshipConnection> {
        let Some(uri) = &self.uri else {
            return Err(error(Status::InvalidState, "the option `uri` is missing, such as lightship://host"));
        };
        let mut locations = std::iter::once(uri.as_str())
            .chain(self.settings.also())
            .map(|uri| Location::parse(uri).map_err(|error| from_library(&error.into())))
            .collect::<Result<Vec<_>>>()?;
        let first = self.login.apply(locations.remove(0))?;
        locations.insert(0, first);
        let opened = Connection::open(locations, self.settings.options()?, || Ok(()));
        let opened = opened.map_err(|error| from_library(&error))?;
        let mut connection = LightshipConnection::new(opened, self.settings.clone());
        opts.into_iter().try_for_each(|(key, value)| connection.set_option(key, value))?;
        Ok(connection)
    }
}
