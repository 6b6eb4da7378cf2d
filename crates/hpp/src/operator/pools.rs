//! The pools that a HostPathProvisioner asks for. Pure.

use api::hpp::{SHARED, Spec, StoragePool};
use sha2::{Digest, Sha256};

/// The pool of `pathConfig`.
pub(crate) const LEGACY: &str = "legacy";

/// Why what is asked for cannot be had, with the field that says it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {why}")]
pub(crate) struct Refusal {
    field: String,
    why: String,
}

fn refuse(field: impl Into<String>, why: impl Into<String>) -> Refusal {
    Refusal { field: field.into(), why: why.into() }
}

/// The refusal of an object that comes after another.
pub(crate) fn another(first: &str) -> Refusal {
    refuse("metadata.name", format!("the HostPathProvisioner {first:?} says already how the provisioner is deployed"))
}

/// The pools of the driver; `pathConfig` is one beneath its directory, which the legacy provisioner uses as well.
pub(crate) fn of(spec: &Spec) -> Result<Vec<StoragePool>, Refusal> {
    match (&spec.path_config, spec.storage_pools.as_slice()) {
        (Some(_), [_, ..]) => Err(refuse("spec.pathConfig", "pathConfig and storagePools cannot be both set")),
        (None, []) => Err(refuse("spec.storagePools", "either pathConfig or storagePools is required")),
        (Some(config), []) => {
            check_path("spec.pathConfig.path", &config.path)?;
            let path = format!("{}/csi", config.path.trim_end_matches('/'));
            Ok(vec![StoragePool { name: LEGACY.into(), path, ..StoragePool::default() }])
        }
        (None, pools) => {
            for (index, pool) in pools.iter().enumerate() {
                let field = format!("spec.storagePools[{index}]");
                if pool.name.is_empty() {
                    return Err(refuse(format!("{field}.name"), "a pool needs a name"));
                }
                check_path(&format!("{field}.path"), &pool.path)?;
                let same = |other: &&StoragePool| other.name == pool.name || trimmed(other) == trimmed(pool);
                if let Some(other) = pools[..index].iter().find(same) {
                    let which = if other.name == pool.name { "name" } else { "path" };
                    return Err(refuse(
                        format!("{field}.{which}"),
                        format!("pool {:?} has the same {which}", other.name),
                    ));
                }
            }
            Ok(pools.to_vec())
        }
    }
}

/// Whether each pool that is said to be shared is one, and not a volume that one node has.
pub(crate) fn check_shared(pools: &[StoragePool], shared: &[&str]) -> Result<(), Refusal> {
    let field = format!("metadata.annotations[{SHARED}]");
    for name in shared {
        match pools.iter().find(|pool| pool.name == *name) {
            None => return Err(refuse(field, format!("there is no pool {name:?}"))),
            Some(pool) if pool.pvc_template.is_some() => {
                let why = format!("pool {name:?} is a volume of each node's own, and not one on all");
                return Err(refuse(field, why));
            }
            Some(_) => {}
        }
    }
    Ok(())
}

fn trimmed(pool: &StoragePool) -> &str {
    pool.path.trim_end_matches('/')
}

fn check_path(field: &str, path: &str) -> Result<(), Refusal> {
    if !path.starts_with('/') || path.split('/').any(|part| part == "..") {
        return Err(refuse(field, format!("{path:?} is not an absolute path without \"..\"")));
    }
    if path.trim_end_matches('/').is_empty() {
        return Err(refuse(field, "the root directory cannot be a pool"));
    }
    Ok(())
}

/// A name of at most `most` characters that can be a label, made of several words: cut where it is too long, and then
/// told
/// apart by a digest.
pub(crate) fn short(words: &[&str], most: usize) -> String {
    let whole = words.join("-");
    let plain = |c: char| if c.is_ascii_lowercase() || c.is_ascii_digit() { c } else { '-' };
    let clean: String = whole.chars().map(plain).collect();
    let clean = clean.trim_matches('-');
    if clean == whole && clean.len() <= most {
        return whole;
    }
    let digest: String = Sha256::digest(whole.as_bytes()).iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    let cut: String = clean.chars().take(most.saturating_sub(digest.len() + 1)).collect();
    format!("{}-{digest}", cut.trim_matches('-')).trim_matches('-').to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[track_caller]
    fn check(spec: Value, expect: Result<&[(&str, &str)], &str>) {
        let spec: Spec = serde_json::from_value(spec).unwrap();
        let got = of(&spec).map_err(|refusal| refusal.to_string());
        let got: Result<Vec<(&str, &str)>, &str> = match &got {
            Ok(pools) => Ok(pools.iter().map(|pool| (pool.name.as_str(), pool.path.as_str())).collect()),
            Err(text) => Err(text.as_str()),
        };
        assert_eq!(got, expect.map(<[_]>::to_vec));
    }

    #[test]
    fn pools_of_each_form() {
        check(json!({"pathConfig": {"path": "/var/hpvolumes/"}}), Ok(&[("legacy", "/var/hpvolumes/csi")]));
        let two = json!({"storagePools": [{"name": "a", "path": "/a"}, {"name": "b", "path": "/b"}]});
        check(two, Ok(&[("a", "/a"), ("b", "/b")]));
    }

    #[test]
    fn invalid_pools_are_refused_by_field() {
        let one = |name: &str, path: &str| json!({"name": name, "path": path});
        let pools = |list: &[Value]| json!({ "storagePools": list });
        check(json!({}), Err("spec.storagePools: either pathConfig or storagePools is required"));
        let both = json!({"pathConfig": {"path": "/a"}, "storagePools": [one("a", "/a")]});
        check(both, Err("spec.pathConfig: pathConfig and storagePools cannot be both set"));
        let relative = "spec.pathConfig.path: \"a\" is not an absolute path without \"..\"";
        check(json!({"pathConfig": {"path": "a"}}), Err(relative));
        check(pools(&[one("", "/a")]), Err("spec.storagePools[0].name: a pool needs a name"));
        let up = "spec.storagePools[0].path: \"/a/../b\" is not an absolute path without \"..\"";
        check(pools(&[one("a", "/a/../b")]), Err(up));
        check(pools(&[one("a", "/")]), Err("spec.storagePools[0].path: the root directory cannot be a pool"));
        let twice = "spec.storagePools[1].name: pool \"a\" has the same name";
        check(pools(&[one("a", "/a"), one("a", "/b")]), Err(twice));
        let beside = "spec.storagePools[1].path: pool \"a\" has the same path";
        check(pools(&[one("a", "/a"), one("b", "/a/")]), Err(beside));
    }

    #[test]
    fn shared_pools_are_pools() {
        let pools: Vec<StoragePool> = serde_json::from_value(
            json!([{"name": "a", "path": "/a"}, {"name": "b", "path": "/b", "pvcTemplate": {}}]),
        )
        .unwrap();
        let check = |shared: &[&str], expect: &str| {
            let got = check_shared(&pools, shared).map_err(|refusal| refusal.to_string());
            assert_eq!(got.err().unwrap_or_default(), expect);
        };
        check(&["a"], "");
        check(&["c"], "metadata.annotations[ferrovirt.io/shared-pools]: there is no pool \"c\"");
        let own = "metadata.annotations[ferrovirt.io/shared-pools]: pool \"b\" is a volume of each node's own, and not one on all";
        check(&["b"], own);
    }

    #[test]
    fn names_fit() {
        assert_eq!(short(&["pool", "local"], 63), "pool-local");
        let long = "x".repeat(80);
        let cut = short(&["pool", &long], 63);
        assert!(cut.len() == 63 && cut.starts_with("pool-xxx"), "{cut}");
        assert_ne!(cut, short(&["pool", &format!("{long}y")], 63));
        let odd = short(&["pool", "A.b_c"], 63);
        assert!(odd.starts_with("pool---b-c-") && odd != short(&["pool", "A.b.c"], 63), "{odd}");
    }
}
