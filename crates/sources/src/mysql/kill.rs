//! Cancelling a statement from another connection.
//!
//! `KILL` takes a connection number, and the number alone is not safe: one address may lead to several servers,
//! where the same number is another connection; a proxy has its own numbers; and a server reuses them. Each
//! connection therefore holds a named lock with a random name ([`ConnectionLock`]), and cancelling kills the connection that
//! holds that lock. If the server forbids such locks, nothing is killed: the statement ends when the server next
//! writes to the closed connection.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts};
use tokio::time::timeout;

use super::errors;
use crate::cancel;

/// How long the server may take to accept the connection that kills another.
const KILL_MAX: Duration = Duration::from_secs(10);

/// The named lock that identifies a connection.
#[derive(Debug, Clone)]
pub(super) struct ConnectionLock(String);

impl ConnectionLock {
    /// A mark that no other connection has.
    pub(super) fn new() -> Self {
        // Each `RandomState` has keys from the system's source of randomness.
        let random = || RandomState::new().build_hasher().finish();
        Self(format!("lightship-{:016x}{:016x}", random(), random()))
    }

    /// The statement by which a connection takes the lock.
    pub(super) fn take(&self) -> String {
        format!("DO GET_LOCK('{}', 0)", self.0)
    }

    /// The mark after the server answered [`Self::take`]; `None` where it refused, as some clusters do.
    pub(super) fn taken(
        self,
        answer: Result<(), mysql_async::Error>,
    ) -> Result<Option<Self>, mysql_async::Error> {
        match answer {
            Ok(()) => Ok(Some(self)),
            Err(mysql_async::Error::Server(error)) => {
                tracing::debug!(%error, "statements on this server can't be cancelled");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

/// Kills the connection with this mark, and the statement it runs, from a background task.
pub(super) fn kill(opts: Opts, mark: ConnectionLock) {
    let target = format!("{}:{}", opts.ip_or_hostname(), opts.tcp_port());
    cancel::send(target, async move {
        let kill = async {
            let mut conn = Conn::new(opts).await?;
            let killed = kill_marked(&mut conn, &mark).await;
            // The result counts, not how this connection closes.
            let _ = conn.disconnect().await;
            killed
        };
        match timeout(KILL_MAX, kill).await {
            Ok(Ok(true)) => Ok(()),
            // The connection has closed already, which is usual, or belongs to another server.
            Ok(Ok(false)) => {
                tracing::debug!("no connection to kill on the server that answered");
                Ok(())
            }
            Ok(Err(error)) => Err(errors::words(&error)),
            Err(_) => Err(format!("no answer within {} s", KILL_MAX.as_secs())),
        }
    });
}

/// Kills the connection with this mark, and returns whether there was one.
pub(super) async fn kill_marked(conn: &mut Conn, mark: &ConnectionLock) -> Result<bool, mysql_async::Error> {
    let holder: Option<Option<u64>> = conn.query_first(format!("SELECT IS_USED_LOCK('{}')", mark.0)).await?;
    let Some(id) = holder.flatten() else { return Ok(false) };
    kill_id(conn, id).await
}

/// Kills the connection with this number, and returns whether there was one: it may have ended since it was found.
async fn kill_id(conn: &mut Conn, id: u64) -> Result<bool, mysql_async::Error> {
    match conn.query_drop(format!("KILL CONNECTION {id}")).await {
        Ok(()) => Ok(true),
        Err(mysql_async::Error::Server(error)) if error.code == errors::NO_SUCH_THREAD => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use lightship_testkit::mariadb::MariaDb;

    use super::*;

    #[tokio::test]
    async fn only_the_connection_with_the_mark_is_killed() {
        let server = MariaDb::start();
        let opts = Opts::from_url(&server.uri()).unwrap();
        let mark = ConnectionLock::new();
        let mut marked = Conn::new(opts.clone()).await.unwrap();
        marked.query_drop(mark.take()).await.unwrap();
        let (mut other, mut killer) =
            (Conn::new(opts.clone()).await.unwrap(), Conn::new(opts).await.unwrap());
        let is_alive = async |conn: &mut Conn| conn.query_drop("DO 1").await.is_ok();

        // A mark that no connection has.
        assert!(!kill_marked(&mut killer, &ConnectionLock::new()).await.unwrap());
        assert!(is_alive(&mut marked).await && is_alive(&mut other).await);
        let id = u64::from(marked.id());
        assert!(kill_marked(&mut killer, &mark).await.unwrap());
        assert!(!is_alive(&mut marked).await && is_alive(&mut other).await);
        // The connection is gone, and its number may belong to another one.
        assert!(!kill_marked(&mut killer, &mark).await.unwrap());
        // One that ended after its number was found: the server takes a moment to forget it.
        let forgotten = async {
            while kill_id(&mut killer, id).await.unwrap() {
                tokio::task::yield_now().await;
            }
        };
        timeout(Duration::from_secs(30), forgotten).await.unwrap();
        assert!(is_alive(&mut killer).await);
    }
}
