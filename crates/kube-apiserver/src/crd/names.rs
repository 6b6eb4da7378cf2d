//! Names of definitions: within a group, plural, singular, kind, list kind and short names belong to one of them.

use serde_json::Value;

use kube_store::Store;

/// The condition that tells of a conflict, if the names of `crd` are taken by another definition of its group.
pub(crate) fn conflict(store: &Store, crd: &Value) -> Option<(String, String)> {
    let own = crd["metadata"]["name"].as_str().unwrap_or_default();
    let group = &crd["spec"]["group"];
    let wanted = names(&crd["spec"]["names"]);
    for object in store.list(super::STORAGE, None).objects.iter().filter(|object| &*object.key.name != own) {
        let other = object.value();
        if other["spec"]["group"] != *group {
            continue;
        }
        // What another one was given is taken, also while it asks for other names in vain.
        let taken = names(&other["status"]["acceptedNames"]);
        for (word, name) in &wanted {
            // Kinds and list kinds share their names, and so do plurals, singulars and short names.
            let kinds = |word: &str| word.ends_with("Kind");
            if taken.iter().any(|(other, used)| used == name && kinds(other) == kinds(word)) {
                return Some(((*word).to_owned() + "Conflict", format!("{name:?} is already in use")));
            }
        }
    }
    None
}

fn names(names: &Value) -> Vec<(&'static str, String)> {
    let single = [("Plural", "plural"), ("Singular", "singular"), ("Kind", "kind"), ("ListKind", "listKind")];
    let mut found: Vec<(&'static str, String)> = single
        .iter()
        .filter_map(|(word, key)| Some((*word, names[*key].as_str().filter(|name| !name.is_empty())?.to_owned())))
        .collect();
    let short = names["shortNames"].as_array().into_iter().flatten().filter_map(Value::as_str);
    found.extend(short.map(|name| ("ShortNames", name.to_owned())));
    found
}
