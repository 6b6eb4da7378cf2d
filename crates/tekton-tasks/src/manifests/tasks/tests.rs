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
