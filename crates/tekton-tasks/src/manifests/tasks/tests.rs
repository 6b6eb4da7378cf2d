//! Tasks are of one piece: what a step names is declared, and what is declared is used.

use std::collections::BTreeSet;

use super::*;

/// Names in `$(WHAT.NAME…)`, as far as their first dot, bracket or parenthesis.
fn named(value: &Value, what: &str) -> BTreeSet<String> {
    let text = value.to_string();
    let open = format!("$({what}.");
    let name = |rest: &str| rest.split([')', '[', '.']).next().unwrap_or_default().to_owned();
    text.split(&open).skip(1).map(name).collect()
}

fn declared(list: &Value) -> BTreeSet<String> {
    list.as_array().into_iter().flatten().map(|one| one["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn what_a_step_names_is_declared_and_what_is_declared_is_used() {
    let all = tasks("registry/tasks:v1", "registry/disk:v1", "v1");
    let names: Vec<&str> = all.iter().map(|task| task["metadata"]["name"].as_str().unwrap()).collect();
    assert_eq!(names, NAMES);
    for task in &all {
        let (name, spec) = (&task["metadata"]["name"], &task["spec"]);
        let used = json!([spec["steps"], spec["volumes"]]);
        assert_eq!(named(&used, "params"), declared(&spec["params"]), "{name}");
        assert_eq!(named(&used, "results"), declared(&spec["results"]), "{name}");
        let mounts: BTreeSet<String> =
            spec["steps"].as_array().unwrap().iter().flat_map(|step| declared(&step["volumeMounts"])).collect();
        assert_eq!(mounts, declared(&spec["volumes"]), "{name}");
        for step in spec["steps"].as_array().unwrap() {
            assert_eq!(step["securityContext"], super::super::task::unprivileged(), "{name}");
        }
        for param in spec["params"].as_array().unwrap() {
            assert!(param["description"].as_str().is_some_and(|text| text.ends_with('.')), "{name}: {param}");
        }
    }
}

/// The words of each step are those that the program takes.
#[test]
fn the_program_takes_the_words_of_each_step() {
    use clap::Parser;

    #[derive(Parser)]
    struct Wrapped {
        #[command(flatten)]
        _args: crate::Args,
    }
    for task in tasks("i", "d", "v") {
        for step in task["spec"]["steps"].as_array().unwrap() {
            let args = step["args"].as_array().unwrap().iter().map(|word| word.as_str().unwrap().to_owned()).collect();
            let words = crate::lists::expand(args).unwrap();
            let words = [vec![crate::PROGRAM.to_owned()], words].concat();
            if let Err(error) = Wrapped::try_parse_from(&words) {
                panic!("{}: {error}", task["metadata"]["name"]);
            }
        }
    }
}

#[test]
fn results_and_workspaces_are_those_that_pipelines_use() {
    let all = tasks("i", "d", "v");
    let find = |name: &str| all.iter().find(|task| task["metadata"]["name"] == name).unwrap()["spec"].clone();
    assert_eq!(declared(&find("modify-data-object")["results"]), ["name", "namespace"].map(str::to_owned).into());
    assert_eq!(declared(&find("disk-uploader")["results"]), ["digest".to_owned()].into());
    assert_eq!(declared(&find("disk-virt-customize")["workspaces"]).len(), 10);
    assert_eq!(find("cleanup-vm")["params"].as_array().unwrap().len(), 9);
}

#[test]
fn steps_take_what_their_tools_need() {
    let all = tasks("i", "d", "v");
    let step =
        |name: &str| all.iter().find(|task| task["metadata"]["name"] == name).unwrap()["spec"]["steps"][0].clone();
    let taken = |name: &str| step(name)["computeResources"].clone();
    let kvm = json!({ "limits": { "devices.kubevirt.io/kvm": "1" } });
    for name in ["disk-virt-customize", "disk-virt-sysprep"] {
        assert_eq!(taken(name), kvm, "{name}");
        // What libguestfs puts together is in a volume, at the place that it is told.
        let mounts = step(name)["volumeMounts"].clone();
        let mount = mounts.as_array().unwrap().iter().find(|mount| mount["name"] == "guestfsappliance").unwrap();
        let variable = json!({ "name": "LIBGUESTFS_CACHEDIR", "value": mount["mountPath"] });
        assert!(step(name)["env"].as_array().unwrap().contains(&variable), "{name}");
    }
    assert_eq!(taken("modify-windows-iso-file"), kvm);
    let mut emulated = all.clone();
    without_kvm(&mut emulated);
    assert!(!json!(emulated).to_string().contains("devices.kubevirt.io/kvm"));
    assert_eq!(emulated[..3], all[..3], "others are as they were");
    let memory = json!({ "requests": { "memory": "3Gi" }, "limits": { "memory": "5Gi" } });
    assert_eq!(taken("disk-uploader"), memory);
}

/// As the hub reads them: lists in YAML, which name somebody, and Tasks that are there.
#[test]
fn the_hub_is_told_who_keeps_a_task_and_what_goes_with_it() {
    for task in tasks("i", "d", "v") {
        let said = &task["metadata"]["annotations"];
        let list = |name: &str| -> Value { serde_saphyr::from_str(said[name].as_str().unwrap()).unwrap() };
        let keeper = list("artifacthub.io/maintainers");
        assert!(
            keeper[0]["name"] == said["artifacthub.io/provider"] && keeper[0]["email"].as_str().unwrap().contains('@')
        );
        let recommended = list("artifacthub.io/recommendations");
        let other = recommended[0]["url"].as_str().unwrap().rsplit('/').next().unwrap();
        assert!(NAMES.contains(&other) && task["metadata"]["name"] != other, "{other}");
    }
}
