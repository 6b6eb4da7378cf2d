//! Pipelines are of one piece, and do what they are told: they are run as Tekton orders their Tasks, without any.

mod interpreter;

use std::collections::{BTreeMap, BTreeSet};

use clap::Parser;
use serde_json::Map;

use self::interpreter::{Ended, Run, run};
use super::*;
use crate::manifests::tasks;
use crate::steps::prepare_windows;

fn all() -> Vec<Value> {
    pipelines("home", "image", "v1")
}

fn list<'a>(value: &'a Value, field: &str) -> Vec<&'a Value> {
    value[field].as_array().into_iter().flatten().collect()
}

fn names(all: &[&Value]) -> BTreeSet<String> {
    all.iter().map(|one| one["name"].as_str().unwrap().to_owned()).collect()
}

/// What the Task of a Pipeline is: its own, or the one that its reference leads to.
fn spec_of(task: &Value) -> Value {
    if task["taskSpec"].is_object() {
        return task["taskSpec"].clone();
    }
    assert_eq!(task["taskRef"]["resolver"], "cluster", "{}", task["name"]);
    let place: Map<String, Value> = list(&task["taskRef"], "params")
        .iter()
        .map(|param| (param["name"].as_str().unwrap().to_owned(), param["value"].clone()))
        .collect();
    assert_eq!((&place["kind"], &place["namespace"], place.len()), (&json!("task"), &json!("home"), 3));
    let all = tasks("i", "d", "v");
    all.iter().find(|one| one["metadata"]["name"] == place["name"]).unwrap()["spec"].clone()
}

/// Words in `$(…)` of a value.
fn references(value: &Value) -> BTreeSet<String> {
    let text = value.to_string();
    text.split("$(").skip(1).map(|rest| rest.split(')').next().unwrap().to_owned()).collect()
}

/// Whether `task` runs only after `other`, by order or by what it takes of it.
fn is_behind(tasks: &[&Value], task: &Value, other: &str) -> bool {
    let mut before: BTreeSet<String> =
        list(task, "runAfter").iter().map(|name| name.as_str().unwrap().to_owned()).collect();
    before.extend(
        references(&json!([task["params"], task["when"]]))
            .iter()
            .filter_map(|word| word.strip_prefix("tasks.").and_then(|rest| rest.split('.').next()).map(str::to_owned)),
    );
    before.contains(other)
        || before.iter().any(|name| tasks.iter().any(|one| one["name"] == *name && is_behind(tasks, one, other)))
}

#[test]
fn every_reference_of_a_pipeline_leads_to_something() {
    for pipeline in all() {
        let spec = &pipeline["spec"];
        let (tasks, last) = (list(spec, "tasks"), list(spec, "finally"));
        let every = [tasks.clone(), last.clone()].concat();
        assert_eq!(names(&every).len(), every.len(), "a name is there twice");
        let (params, mut used) = (names(&list(spec, "params")), BTreeSet::new());
        for task in &every {
            let of_task = spec_of(task);
            let given = names(&list(task, "params"));
            let has = list(&of_task, "params");
            assert!(given.is_subset(&names(&has)), "{}: {given:?}", task["name"]);
            let needed = has.iter().filter(|param| param["default"].is_null()).copied().collect::<Vec<_>>();
            assert!(names(&needed).is_subset(&given), "{} is not given all that it needs", task["name"]);
            assert!(list(&of_task, "workspaces").iter().all(|workspace| workspace["optional"] == true));
            for after in list(task, "runAfter") {
                assert!(tasks.iter().any(|other| other["name"] == *after), "{after}");
            }
            for word in references(&json!([task["params"], task["when"]])) {
                match word.split('.').collect::<Vec<_>>().as_slice() {
                    ["params", name] => {
                        assert!(params.contains(*name), "{word}");
                        used.insert((*name).to_owned());
                    }
                    ["context", "pipelineRun", "namespace"] => {}
                    ["tasks", other, "results", result] => {
                        let other = tasks.iter().find(|one| one["name"] == **other).unwrap();
                        assert!(names(&list(&spec_of(other), "results")).contains(*result), "{word}");
                    }
                    // Which Tekton knows of only when the others have ended.
                    ["tasks", other, "status"] => {
                        assert!(last.contains(task) && tasks.iter().any(|one| one["name"] == **other), "{word}");
                    }
                    other => panic!("{}: {other:?}", task["name"]),
                }
            }
        }
        // Tekton takes a Pipeline only if each of its results is one of a Task.
        for result in list(spec, "results") {
            let words = references(&result["value"]);
            let word = words.first().unwrap();
            let ["tasks", task, "results", name] = word.split('.').collect::<Vec<_>>()[..] else { panic!("{word}") };
            let task = tasks.iter().find(|one| one["name"] == task).unwrap();
            assert!(words.len() == 1 && names(&list(&spec_of(task), "results")).contains(name), "{word}");
        }
        assert_eq!(used, params, "what is declared is used");
        // Nothing begins before the params were looked at.
        assert!(tasks.iter().all(|task| task["name"] == "prepare" || is_behind(&tasks, task, "prepare")));
    }
}

#[derive(Parser)]
struct Wrapped {
    #[command(flatten)]
    args: prepare_windows::Args,
}

/// The first Task as its step does it, all others as if they went well but `fails`.
fn play<'a>(namespace: &'a str, fails: &'a str) -> impl Fn(&Value, &BTreeMap<String, String>) -> Ended + 'a {
    move |task, params| {
        if task["name"] == fails {
            return None;
        }
        let mut results = BTreeMap::new();
        if task["name"] != "prepare" {
            for result in list(&spec_of(task), "results") {
                let name = result["name"].as_str().unwrap();
                results.insert(name.to_owned(), format!("{name}-of-{}", task["name"].as_str().unwrap()));
            }
            return Some(results);
        }
        let words = list(&task["taskSpec"]["steps"][0], "args").into_iter().map(|word| {
            let word = word.as_str().unwrap().to_owned();
            params.iter().fold(word, |word, (name, value)| word.replace(&format!("$(params.{name})"), value))
        });
        let plan = prepare_windows::plan(&Wrapped::try_parse_from(words).unwrap().args, namespace, 7).ok()?;
        let answers = params.get("autounattendConfigMapName").or(params.get("customizeConfigMapName")).unwrap();
        results.insert("answers".to_owned(), answers.clone());
        results.insert("rootDisk".to_owned(), plan.root_disk);
        results.insert("firmware".to_owned(), plan.firmware.to_string());
        results.insert("smm".to_owned(), plan.smm.to_string());
        Some(results)
    }
}

fn install(params: &[(&str, &str)], fails: &str) -> Run {
    let given = [&[("winImageDownloadURL", "http://a/b.iso"), ("autounattendConfigMapName", "mine")], params].concat();
    run(&all()[0]["spec"], "images", &given, play("images", fails))
}

/// The manifest that a Task was given.
fn manifest(run: &Run, task: &str) -> Value {
    let (_, params) = run.done.iter().find(|(name, _)| name == task).unwrap();
    serde_saphyr::from_str(&params["manifest"]).unwrap()
}

#[test]
fn nothing_is_done_for_who_does_not_accept_the_licence() {
    for eula in ["false", "", "no"] {
        let run = install(&[("acceptEula", eula), ("baseDvNamespace", "images")], "");
        assert_eq!((run.failed.as_deref(), run.done.len()), (Some("prepare"), 0), "{:?}", run.names());
    }
}

const DONE: [&str; 9] = [
    "prepare",
    "import-win-iso",
    "create-vm-root-disk",
    "modify-windows-iso-file",
    "create-vm",
    "wait-for-vmi-status",
    "create-datasource-root-disk",
    "cleanup-vm",
    "delete-imported-iso",
];

#[test]
fn a_boot_source_is_made_where_the_pipeline_runs() {
    let run = install(&[("acceptEula", "true"), ("baseDvNamespace", "images")], "");
    assert_eq!((run.failed.as_deref(), run.names()), (None, DONE.to_vec()));
    let disk = manifest(&run, "create-vm-root-disk");
    assert_eq!((&disk["metadata"]["name"], &disk["metadata"]["namespace"]), (&json!("win11"), &json!("images")));
    let machine = manifest(&run, "create-vm");
    let volumes = machine.pointer("/spec/template/spec/volumes").unwrap();
    assert_eq!(volumes[1]["persistentVolumeClaim"]["claimName"], "win11");
    assert_eq!(volumes[3]["sysprep"]["configMap"]["name"], "mine");
    let domain = machine.pointer("/spec/template/spec/domain").unwrap();
    assert_eq!(domain["firmware"], json!({ "bootloader": { "efi": { "secureBoot": true } } }));
    assert_eq!(domain["features"]["smm"], json!({ "enabled": true }));
}

#[test]
fn a_boot_source_of_another_namespace_is_a_copy() {
    let run = install(&[("acceptEula", "true"), ("baseDvNamespace", "others")], "");
    assert!(
        run.failed.is_none() && run.names().contains(&"copy-root-disk") && run.names().contains(&"delete-root-disk")
    );
    let disk = manifest(&run, "create-vm-root-disk");
    assert_eq!(
        (&disk["metadata"]["name"], &disk["metadata"]["namespace"]),
        (&json!("win11-00000007"), &json!("images"))
    );
    let machine = manifest(&run, "create-vm");
    let claim = machine.pointer("/spec/template/spec/volumes/1/persistentVolumeClaim/claimName").unwrap();
    assert_eq!(claim, "win11-00000007");
    let copy = manifest(&run, "copy-root-disk");
    assert_eq!((&copy["metadata"]["name"], &copy["metadata"]["namespace"]), (&json!("win11"), &json!("others")));
    assert_eq!(copy["spec"]["source"]["pvc"], json!({ "name": "win11-00000007", "namespace": "images" }));
    let source = manifest(&run, "create-datasource-root-disk");
    assert_eq!(source["metadata"]["namespace"], "others");
    assert_eq!(source["spec"]["source"]["pvc"], json!({ "name": "win11", "namespace": "others" }));
}

#[test]
fn a_machine_of_bios_has_no_uefi_and_its_medium_stays_as_it_is() {
    let run = install(&[("acceptEula", "true"), ("useBiosMode", "true")], "");
    assert!(run.failed.is_none() && !run.names().contains(&"modify-windows-iso-file"));
    let machine = manifest(&run, "create-vm");
    let domain = machine.pointer("/spec/template/spec/domain").unwrap();
    assert_eq!(domain["firmware"], json!({ "bootloader": { "bios": {} } }));
    assert_eq!(domain["features"]["smm"], json!({ "enabled": false }));
}

/// What is left of what was begun goes, and what was not begun is somebody else's.
#[test]
fn what_fails_is_cleaned_up() {
    let accepted = [("acceptEula", "true"), ("baseDvNamespace", "others")];
    let run = install(&accepted, "wait-for-vmi-status");
    let last = ["cleanup-vm", "delete-root-disk", "delete-imported-iso"];
    assert!(run.names().ends_with(&last) && !run.names().contains(&"create-datasource-root-disk"), "{:?}", run.names());
    let run = install(&accepted, "import-win-iso");
    assert!(
        run.names().ends_with(&["delete-imported-iso"]) && !run.names().contains(&"cleanup-vm"),
        "{:?}",
        run.names()
    );
}

#[test]
fn a_boot_source_is_customized() {
    let given = [("baseDvNamespace", "images"), ("sourceDiskImageNamespace", "golden")];
    let run = run(&all()[1]["spec"], "images", &given, play("images", ""));
    let done = [
        "prepare",
        "create-vm-root-disk",
        "create-vm",
        "wait-for-vmi-status",
        "create-datasource-root-disk",
        "cleanup-vm",
    ];
    assert_eq!((run.failed.as_deref(), run.names()), (None, done.to_vec()));
    let disk = manifest(&run, "create-vm-root-disk");
    assert_eq!(disk["spec"]["source"]["pvc"], json!({ "name": "win11", "namespace": "golden" }));
    assert_eq!(disk["metadata"]["name"], "win11-customized");
}

#[test]
fn what_pipelines_name_is_there() {
    let names: Vec<Value> = config_maps().iter().map(|map| map["metadata"]["name"].clone()).collect();
    assert_eq!(names, [UNATTEND_NAME, CUSTOMIZE_NAME]);
}
