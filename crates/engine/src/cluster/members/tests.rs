//! Members join, leave, are lost and are removed.

use lightship_transport::net::ClientConfig;

use super::super::VERSION;
use super::super::request::Watch;
use super::*;

fn try_members(name: &str, tables: Vec<Table>, config: MembersConfig) -> Result<Arc<Members>> {
    let client = ClientConfig::default();
    let runtime = tokio::runtime::Handle::current();
    let dial = Dial { runtime, tls: None, client, overlay: None };
    Members::new(name, tables, dial, config)
}

fn members(name: &str) -> Arc<Members> {
    try_members(name, Vec::new(), MembersConfig::default()).unwrap()
}

fn watch(name: &str, instance: u64, version: &str) -> Watch {
    Watch { name: name.into(), instance, version: version.into() }
}

fn entries(names: &[&str]) -> Vec<MemberEntry> {
    let entry = |name: &&str| MemberEntry { name: (*name).into(), generation: 1, removed: false };
    names.iter().map(entry).collect()
}

fn part(name: &str) -> Table {
    Table { name: name.into(), ..Table::default() }
}

/// Pretends that a node with a part of `t` is connected and knows these others. Callers must not wait for it
/// afterwards, because the node does not exist.
async fn met(members: &Arc<Members>, name: &str, instance: u64, others: &[&str]) {
    members.learn(name, &entries(others)).await.unwrap();
    members.follow(name, false, 0);
    let (name, tables) = (name.to_owned(), vec![part("t")]);
    let description = Description { name: name.clone(), instance, tables, ..Description::default() };
    members.set(&name, MemberStatus::Met(description));
}

fn names(members: &Members) -> Vec<String> {
    members.known().keys().cloned().collect()
}

fn missing(members: &Members, table: &str) -> String {
    members.snapshot().missing(table).map(|failure| failure.message).unwrap_or_default()
}

#[tokio::test]
async fn a_node_of_another_version_or_with_the_name_of_another_is_refused() {
    let members = members("localhost:1");
    let failure = members.watched(&watch("localhost:2", 7, "lightship 99")).err().unwrap();
    assert!(failure.message.contains("lightship 99") && failure.message.contains("localhost:2"));
    let failure = members.watched(&watch("localhost:1", 7, VERSION)).err().unwrap();
    assert!(failure.message.contains("two nodes have the name localhost:1"), "{failure:?}");
    assert!(members.watched(&watch("localhost:1", members.instance, VERSION)).is_ok(), "itself");
    met(&members, "localhost:2", 7, &[]).await;
    assert!(members.watched(&watch("localhost:2", 7, VERSION)).is_ok());
    let failure = members.watched(&watch("localhost:2", 8, VERSION)).err().unwrap();
    assert!(failure.message.contains("two nodes have the name localhost:2") && failure.retryable);
}

#[tokio::test]
async fn the_rows_of_an_absent_member_are_missing_until_it_is_removed() {
    let members = members("localhost:1");
    members.join(&["localhost:9".into()]);
    met(&members, "localhost:2", 2, &["localhost:1", "localhost:3"]).await;
    assert_eq!(names(&members), ["localhost:2", "localhost:3", "localhost:9"]);
    members.remove("localhost:3").await.unwrap();
    assert_eq!(names(&members), ["localhost:2", "localhost:9"], "localhost:9 is in --join");
    met(&members, "localhost:2", 2, &["localhost:3"]).await;
    assert_eq!(
        names(&members),
        ["localhost:2", "localhost:9"],
        "the other node's entry is older than the removal"
    );
    members.known().remove("localhost:9").unwrap().task.abort();
    assert_eq!(missing(&members, "t"), "");
    let had = Description { tables: vec![part("t")], ..Description::default() };
    members.set("localhost:2", MemberStatus::Stopped { had });
    assert!(missing(&members, "t").contains("node localhost:2 has stopped"), "{}", missing(&members, "t"));
    assert_eq!(missing(&members, "u"), "", "it had no part of `u`");
    members.set("localhost:2", MemberStatus::Unmet { why: "not there".into() });
    assert!(missing(&members, "u").contains("not there"), "its current tables are unknown");
    members.remove("localhost:2").await.unwrap();
    assert_eq!(missing(&members, "t"), "");
    members.restore("localhost:2").await.unwrap();
    assert!(missing(&members, "t").contains("localhost:2"));
    members.remove("localhost:1").await.unwrap_err();
    members.remove("localhost:7").await.unwrap_err();
}

#[tokio::test]
async fn a_removed_node_has_no_complete_tables() {
    let members = members("localhost:1");
    let removed = MemberEntry { name: "localhost:1".into(), generation: 1, removed: true };
    members.learn("localhost:2", &[removed]).await.unwrap();
    assert!(missing(&members, "t").contains("node localhost:1 was removed from the cluster"));
    let restored = MemberEntry { name: "localhost:1".into(), generation: 2, removed: false };
    met(&members, "localhost:2", 2, &[]).await;
    members.learn("localhost:2", &[restored]).await.unwrap();
    assert!(!missing(&members, "t").contains("removed"));
}

#[tokio::test]
async fn tables_are_complete_once_the_expected_number_of_nodes_has_joined() {
    let config = MembersConfig { expect_nodes: 3, ..MembersConfig::default() };
    let members = try_members("localhost:1", vec![part("t")], config).unwrap();
    assert!(missing(&members, "t").contains("1 of 3 nodes have joined"));
    met(&members, "localhost:2", 2, &[]).await;
    assert!(missing(&members, "t").contains("2 of 3 nodes have joined"));
    members.learn("localhost:2", &entries(&["localhost:3"])).await.unwrap();
    assert!(!missing(&members, "t").contains("of 3 nodes"));
    members.remove("localhost:3").await.unwrap();
    assert!(!missing(&members, "t").contains("of 3 nodes"), "a removed node counts as joined");
}

#[tokio::test]
async fn a_restarted_node_knows_the_members() {
    let folder = tempfile::tempdir().unwrap();
    let config = || MembersConfig { state_folder: Some(folder.path().into()), ..MembersConfig::default() };
    let members = try_members("localhost:1", vec![part("t")], config()).unwrap();
    met(&members, "localhost:2", 2, &["localhost:3"]).await;
    members.remove("localhost:3").await.unwrap();
    drop(members);
    let again = try_members("localhost:1", vec![part("t")], config()).unwrap();
    // Before any node was tried.
    assert!(missing(&again, "t").contains("node localhost:2 has not been reached yet"));
    let snapshot = again.snapshot();
    let absent: Vec<&str> = snapshot.absent.iter().map(|absent| absent.name.as_str()).collect();
    assert_eq!((absent, snapshot.removed), (vec!["localhost:2"], vec!["localhost:3".to_owned()]));
    drop(again);

    // It must still have its parts, or give them up by name.
    let error = try_members("localhost:1", Vec::new(), config()).err().unwrap().to_string();
    assert!(error.contains("`t`") && error.contains("--drop-part t"), "{error}");
    let dropping = MembersConfig { drop_parts: vec!["t".into()], ..config() };
    try_members("localhost:1", Vec::new(), dropping).unwrap();
    try_members("localhost:1", Vec::new(), config()).unwrap();
}

#[tokio::test]
async fn a_node_does_not_count_if_it_cannot_be_stored_on_disk() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let config = MembersConfig { state_folder: Some(state.clone()), ..MembersConfig::default() };
    let members = try_members("localhost:1", Vec::new(), config).unwrap();
    std::fs::remove_dir_all(&state).unwrap();
    std::fs::write(&state, "a file in its place").unwrap();
    let error = members.learn("localhost:2", &[]).await.unwrap_err().to_string();
    assert!(error.contains("can't be written"), "{error}");
    assert!(!members.describe().members.iter().any(|entry| entry.name == "localhost:2"));
}

#[tokio::test]
async fn names_that_are_not_addresses_are_refused() {
    let members = members("localhost:1");
    for name in ["", "localhost", "a b:1", "localhost:x", "lightship://localhost:2", "LOCALHOST:2/x"] {
        members.learn("localhost:2", &entries(&[name])).await.expect_err(name);
    }
}

#[tokio::test]
async fn descriptions_are_sent_when_something_has_changed() {
    use futures::FutureExt;
    let members = members("localhost:1");
    let mut watched = members.watched(&watch("localhost:2", 2, VERSION)).unwrap();
    let named = |description: Description| -> Vec<String> {
        description.members.into_iter().map(|entry| entry.name).collect()
    };
    assert_eq!(named(watched.next().await.unwrap()), ["localhost:1"]);
    met(&members, "localhost:2", 2, &[]).await;
    assert_eq!(named(watched.next().await.unwrap()), ["localhost:1", "localhost:2"]);
    // Nothing has changed.
    met(&members, "localhost:2", 2, &["localhost:1"]).await;
    assert!(watched.next().now_or_never().is_none());
}

#[tokio::test]
async fn a_leaving_node_ends_the_answers_to_watching_nodes() {
    let members = members("localhost:1");
    let mut watched = members.watched(&watch("localhost:2", 7, VERSION)).unwrap();
    assert_eq!(watched.next().await.unwrap().name, "localhost:1");
    members.leave();
    assert!(watched.next().await.is_none());
    assert!(members.watched(&watch("localhost:2", 7, VERSION)).is_err());
}

#[tokio::test]
async fn an_alias_can_become_the_name_of_a_node() {
    let members = members("localhost:1");
    members.follow("127.0.0.1:5", true, 0);
    members.forget("127.0.0.1:5", Some("localhost:5"));
    members.follow("127.0.0.1:5", false, 0);
    assert_eq!(names(&members), ["localhost:5"]);
    // Now a node has this name.
    let _watched = members.watched(&watch("127.0.0.1:5", 9, VERSION)).unwrap();
    assert_eq!(names(&members), ["127.0.0.1:5", "localhost:5"]);
}

#[tokio::test]
async fn a_change_whose_caller_is_cancelled_is_made_before_the_next() {
    use futures::FutureExt;
    let folder = tempfile::tempdir().unwrap();
    let config = || MembersConfig { state_folder: Some(folder.path().into()), ..MembersConfig::default() };
    let members = try_members("localhost:1", Vec::new(), config()).unwrap();
    members.learn("localhost:2", &entries(&["localhost:3"])).await.unwrap();
    assert!(members.remove("localhost:3").now_or_never().is_none(), "it is being written");
    members.learn("localhost:4", &[]).await.unwrap();
    let in_memory = members.describe().members;
    drop(members);
    let on_disk = try_members("localhost:1", Vec::new(), config()).unwrap().describe().members;
    assert_eq!(in_memory, on_disk);
    let of = |name: &str| on_disk.iter().find(|entry| entry.name == name).map(|entry| entry.removed);
    assert_eq!((of("localhost:3"), of("localhost:4")), (Some(true), Some(false)));
}
