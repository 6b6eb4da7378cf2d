//! Which running objects collide, and what they are told. Pure.

use std::collections::{BTreeSet, HashMap};

use super::mac::Mac;
use super::reservation::Object;

/// How many objects an event names.
const NAMED: usize = 8;

/// A running object that has the address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Running {
    /// Which.
    pub object: Object,
    /// Group and version of its kind.
    pub api_version: &'static str,
    /// Its UID.
    pub uid: String,
    /// The migrations it is part of, as their source and their target name them.
    pub migrations: Vec<String>,
}

/// Those of `running` that collide: all of them, unless they are the two sides of one migration, or only one.
pub(crate) fn collision(mut running: Vec<Running>) -> Vec<Running> {
    let mut machines = 0;
    let mut of_migration: HashMap<&str, usize> = HashMap::new();
    for one in &running {
        let known = one.migrations.iter().find_map(|migration| of_migration.get(migration.as_str()).copied());
        let machine = known.unwrap_or(machines);
        machines += usize::from(known.is_none());
        of_migration.extend(one.migrations.iter().map(|migration| (migration.as_str(), machine)));
    }
    if machines < 2 {
        return Vec::new();
    }
    running.sort_by(|one, other| one.object.cmp(&other.object));
    running
}

/// What objects in `namespace` are told of a collision between `all`.
pub(crate) fn told(mac: Mac, namespace: &str, all: &BTreeSet<Object>) -> String {
    let (own, others): (Vec<&Object>, Vec<&Object>) = all.iter().partition(|object| object.namespace == namespace);
    let mut names: Vec<String> = own.iter().take(NAMED).map(ToString::to_string).collect();
    let more = own.len().saturating_sub(NAMED);
    if more > 0 {
        names.push(format!("{more} more"));
    }
    match others.len() {
        0 => {}
        1 => names.push("1 object of another namespace".to_owned()),
        count => names.push(format!("{count} objects of other namespaces")),
    }
    format!("MAC {mac}: Collision between {}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::super::reservation::Kind;
    use super::*;

    fn object(namespace: &str, name: &str) -> Object {
        Object { namespace: namespace.into(), kind: Kind::VirtualMachineInstance, name: name.into() }
    }

    /// Objects as a name and the migrations they are part of.
    #[track_caller]
    fn check(running: &[(&str, &[&str])], expect: &[&str]) {
        let running = running.iter().map(|(name, migrations)| Running {
            object: object("ns", name),
            api_version: "kubevirt.io/v1",
            uid: (*name).to_owned(),
            migrations: migrations.iter().map(|migration| (*migration).to_owned()).collect(),
        });
        let found = collision(running.collect());
        assert_eq!(found.iter().map(|running| running.uid.as_str()).collect::<Vec<_>>(), expect);
    }

    #[test]
    fn two_that_run_collide_unless_one_moves_to_the_other() {
        check(&[], &[]);
        check(&[("a", &[])], &[]);
        check(&[("b", &[]), ("a", &[])], &["a", "b"]);
        check(&[("a", &["source", "target"]), ("b", &["target"])], &[]);
        check(&[("a", &["source"]), ("b", &["target"])], &["a", "b"]);
        check(&[("a", &["target"]), ("b", &["target"]), ("c", &[])], &["a", "b", "c"]);
    }

    #[test]
    fn objects_of_other_namespaces_are_not_named() {
        let mac = "02:00:00:00:00:01".parse().unwrap();
        let mut all: BTreeSet<Object> = [object("a", "one"), object("a", "two"), object("b", "secret")].into();
        let one = "VirtualMachineInstance a/one, VirtualMachineInstance a/two, 1 object of another namespace";
        assert_eq!(told(mac, "a", &all), format!("MAC {mac}: Collision between {one}"));
        let two = "VirtualMachineInstance b/secret, 2 objects of other namespaces";
        assert_eq!(told(mac, "b", &all), format!("MAC {mac}: Collision between {two}"));
        all.extend((0..1000).map(|at| object("a", &format!("vm-{at}"))));
        assert!(told(mac, "a", &all).ends_with("994 more, 1 object of another namespace"), "{}", told(mac, "a", &all));
    }
}
