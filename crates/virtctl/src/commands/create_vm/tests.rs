//! Manifests by options: whole ones as snapshots, mistakes by their words.

use clap::Parser;
use insta::assert_snapshot;

use super::*;
use crate::cli::{Cli, Command};

/// Options to arguments; a word in single quotes may hold blanks.
fn parse(options: &str) -> Result<Args, clap::Error> {
    let mut words = vec!["virtctl".to_owned(), "create".to_owned(), "vm".to_owned()];
    for (index, piece) in options.split('\'').enumerate() {
        match index % 2 {
            0 => words.extend(piece.split_whitespace().map(str::to_owned)),
            _ => words.last_mut().unwrap().push_str(piece),
        }
    }
    let cli = Cli::try_parse_from(words)?;
    match cli.command {
        Command::Create(create) => Ok(create.into_vm()),
        other => panic!("{other:?}"),
    }
}

fn build(options: &str) -> Result<Value, Fault> {
    manifest(&parse(options).unwrap(), None, &mut || "abcde".to_owned())
}

fn yaml(options: &str) -> String {
    serde_saphyr::to_string(&build(options).unwrap()).unwrap()
}

#[track_caller]
fn refused(options: &str, expect: &str) {
    let fault = build(options).unwrap_err().to_string();
    assert_eq!(fault.lines().next().unwrap(), format!("error: {expect}"));
}

#[test]
fn nothing_asked() {
    assert_snapshot!(yaml(""), @r"
    apiVersion: kubevirt.io/v1
    kind: VirtualMachine
    metadata:
      name: vm-abcde
    spec:
      runStrategy: Always
      template:
        metadata: {}
        spec:
          domain:
            devices: {}
            memory:
              guest: 512Mi
            resources: {}
          terminationGracePeriodSeconds: 180
    ");
}

#[test]
fn a_containerdisk_and_a_user() {
    assert_snapshot!(yaml("--name=web --memory=1Gi --volume-containerdisk=src:quay.io/a/b:c --user=me --ssh-key='ssh-ed25519 AAAA me@x'"), @r"
    apiVersion: kubevirt.io/v1
    kind: VirtualMachine
    metadata:
      name: web
    spec:
      runStrategy: Always
      template:
        metadata: {}
        spec:
          domain:
            devices: {}
            memory:
              guest: 1Gi
            resources: {}
          terminationGracePeriodSeconds: 180
          volumes:
          - containerDisk:
              image: quay.io/a/b:c
            name: web-containerdisk-0
          - cloudInitNoCloud:
              userData: |-
                #cloud-config
                user: me
                ssh_authorized_keys:
                  - ssh-ed25519 AAAA me@x
            name: cloudinitdisk
    ");
}

#[test]
fn volumes_in_their_order() {
    let text = yaml(
        "--name=v --volume-import=type:blank,size:1Gi,name:scratch --volume-pvc=src:data,bootorder:2 \
         --volume-import=type:ds,src:images/fedora,size:30Gi,name:root,bootorder:1 --run-strategy=manual",
    );
    assert_snapshot!(text, @r"
    apiVersion: kubevirt.io/v1
    kind: VirtualMachine
    metadata:
      name: v
    spec:
      dataVolumeTemplates:
      - metadata:
          name: scratch
        spec:
          source:
            blank: {}
          storage:
            resources:
              requests:
                storage: 1Gi
      - metadata:
          name: root
        spec:
          sourceRef:
            kind: DataSource
            name: fedora
            namespace: images
          storage:
            resources:
              requests:
                storage: 30Gi
      instancetype:
        inferFromVolume: root
        inferFromVolumeFailurePolicy: Ignore
      preference:
        inferFromVolume: root
        inferFromVolumeFailurePolicy: Ignore
      runStrategy: Manual
      template:
        metadata: {}
        spec:
          domain:
            devices:
              disks:
              - bootOrder: 2
                name: data
              - bootOrder: 1
                name: root
            memory:
              guest: 512Mi
            resources: {}
          terminationGracePeriodSeconds: 180
          volumes:
          - name: data
            persistentVolumeClaim:
              claimName: data
          - dataVolume:
              name: scratch
            name: scratch
          - dataVolume:
              name: root
            name: root
    ");
}

#[test]
fn sources() {
    let source = |params: &str| {
        let vm = build(&format!("--volume-import={params},name:a")).unwrap();
        let spec = &vm["spec"]["dataVolumeTemplates"][0]["spec"];
        spec.get("source").or(spec.get("sourceRef")).unwrap().clone()
    };
    assert_eq!(source("type:blank,size:1Gi"), json!({ "blank": {} }));
    assert_eq!(source("type:pvc,src:n/c"), json!({ "pvc": { "name": "c", "namespace": "n" } }));
    assert_eq!(source("type:snapshot,src:n/s"), json!({ "snapshot": { "name": "s", "namespace": "n" } }));
    assert_eq!(source("type:ds,src:f"), json!({ "kind": "DataSource", "name": "f" }));
    assert_eq!(
        source("type:http,url:https://h/x,size:1Gi,extraheaders:a;b"),
        json!({ "http": { "url": "https://h/x", "extraHeaders": ["a", "b"] } })
    );
    assert_eq!(
        source("type:registry,url:docker://r/i,size:1Gi,pullmethod:node"),
        json!({ "registry": { "url": "docker://r/i", "pullMethod": "node" } })
    );
    assert_eq!(
        source("type:s3,url:https://s/b,size:1Gi,secretref:k"),
        json!({ "s3": { "url": "https://s/b", "secretRef": "k" } })
    );
    assert_eq!(source("type:gcs,url:gs://b,size:1Gi"), json!({ "gcs": { "url": "gs://b" } }));
    assert_eq!(
        source("type:imageio,url:https://i,diskid:7,size:1Gi"),
        json!({ "imageio": { "url": "https://i", "diskId": "7" } })
    );
    assert_eq!(
        source("type:vddk,url:https://v,uuid:u,thumbprint:t,secretref:s,backingfile:b,size:1Gi"),
        json!({ "vddk": { "url": "https://v", "uuid": "u", "thumbprint": "t", "secretRef": "s", "backingFile": "b" } })
    );
}

#[test]
fn older_options_are_imports() {
    let vm = build("--volume-datasource=src:f,name:a --volume-clone-pvc=src:n/c,name:b --volume-blank=size:1Gi,name:c")
        .unwrap();
    let names: Vec<_> =
        vm["spec"]["dataVolumeTemplates"].as_array().unwrap().iter().map(|t| &t["metadata"]["name"]).collect();
    assert_eq!(names, ["a", "b", "c"]);
}

#[test]
fn types_and_preferences() {
    let vm = build("--instancetype=u1.small --preference=virtualmachinepreference/fedora").unwrap();
    assert_eq!(vm["spec"]["instancetype"], json!({ "name": "u1.small" }));
    assert_eq!(vm["spec"]["preference"], json!({ "kind": "virtualmachinepreference", "name": "fedora" }));
    assert_eq!(vm["spec"]["template"]["spec"]["domain"].get("memory"), None);

    let vm =
        build("--volume-import=type:ds,src:f,name:a --volume-pvc=src:b --infer-instancetype --infer-preference-from=a")
            .unwrap();
    assert_eq!(vm["spec"]["instancetype"], json!({ "inferFromVolume": "b" }));
    assert_eq!(vm["spec"]["preference"], json!({ "inferFromVolume": "a" }));

    let vm = build("--volume-pvc=src:b --infer-preference=false").unwrap();
    let tried = json!({ "inferFromVolume": "b", "inferFromVolumeFailurePolicy": "Ignore" });
    assert_eq!(vm["spec"]["instancetype"], tried);
    assert_eq!(vm["spec"].get("preference"), None);
    assert_eq!(vm["spec"]["template"]["spec"]["domain"]["memory"], json!({ "guest": "512Mi" }));
}

#[test]
fn credentials() {
    let instance = |options: &str| build(options).unwrap()["spec"]["template"]["spec"].clone();
    let found = instance("--user=me --access-cred=src:keys");
    assert_snapshot!(serde_saphyr::to_string(&found).unwrap(), @r"
    accessCredentials:
    - sshPublicKey:
        propagationMethod:
          qemuGuestAgent:
            users:
            - me
        source:
          secret:
            secretName: keys
    domain:
      devices: {}
      memory:
        guest: 512Mi
      resources: {}
    terminationGracePeriodSeconds: 180
    volumes:
    - cloudInitNoCloud:
        userData: |-
          #cloud-config
          user: me
          runcmd:
            - [ setsebool, -P, 'virt_qemu_ga_manage_ssh', 'on' ]
      name: cloudinitdisk
    ");
    let found = instance("--access-cred=src:keys,method:configdrive");
    assert_eq!(found["accessCredentials"][0]["sshPublicKey"]["propagationMethod"], json!({ "configDrive": {} }));
    assert_eq!(found["volumes"][0]["cloudInitConfigDrive"], json!({ "userData": "#cloud-config" }));
    let found = instance("--access-cred=type:password,src:pw");
    assert_eq!(found["accessCredentials"][0]["userPassword"]["source"], json!({ "secret": { "secretName": "pw" } }));
    assert_eq!(found.get("volumes"), None);
    let found = instance("--user=me --ga-manage-ssh=false --access-cred=src:keys");
    assert_eq!(found["volumes"][0]["cloudInitNoCloud"]["userData"], "#cloud-config\nuser: me");
}

#[test]
fn cloud_init() {
    let volumes = |options: &str| build(options).unwrap()["spec"]["template"]["spec"].get("volumes").cloned();
    assert_eq!(
        volumes("--cloud-init-user-data=dXNlcg== --cloud-init-network-data=bmV0 --cloud-init=configDrive"),
        Some(
            json!([{ "name": "cloudinitdisk", "cloudInitConfigDrive": { "userDataBase64": "dXNlcg==", "networkDataBase64": "bmV0" } }])
        )
    );
    assert_eq!(volumes("--cloud-init=none --user=me"), None);
    assert_eq!(
        volumes("--volume-sysprep=src:answers,type:secret"),
        Some(json!([{ "name": "sysprepdisk", "sysprep": { "secret": { "name": "answers" } } }]))
    );
}

#[test]
fn a_namespace_that_was_given() {
    let vm = manifest(&parse("--name=a").unwrap(), Some("ns"), &mut String::new).unwrap();
    assert_eq!(vm["metadata"], json!({ "name": "a", "namespace": "ns" }));
}

#[test]
fn mistakes() {
    refused(
        "--run-strategy=Sometimes",
        "failed to parse \"--run-strategy\" flag: invalid run strategy \"Sometimes\", supported values are: Always, Manual, Halted, Once, RerunOnFailure",
    );
    refused(
        "--instancetype=pod/a",
        "failed to parse \"--instancetype\" flag: invalid instancetype kind \"pod\", supported values are: virtualmachineinstancetype, virtualmachineclusterinstancetype",
    );
    refused("--volume-containerdisk=name:a", "failed to parse \"--volume-containerdisk\" flag: src must be specified");
    refused(
        "--volume-containerdisk=src:a,color:red",
        "failed to parse \"--volume-containerdisk\" flag: unknown param(s): color:red",
    );
    refused(
        "--volume-containerdisk=image",
        "failed to parse \"--volume-containerdisk\" flag: params need to have at least one colon: image",
    );
    refused(
        "--volume-containerdisk=src:a,name:A_b",
        "failed to parse \"--volume-containerdisk\" flag: invalid name \"A_b\": lower case letters, digits and '-', a letter or digit at both ends, at most 63",
    );
    refused(
        "--volume-pvc=src:n/c",
        "failed to parse \"--volume-pvc\" flag: not allowed to specify namespace of pvc \"c\"",
    );
    refused(
        "--volume-pvc=src:c,bootorder:0",
        "failed to parse \"--volume-pvc\" flag: bootorder must be greater than 0",
    );
    refused(
        "--volume-pvc=src:a,bootorder:1 --volume-pvc=src:b,bootorder:1",
        "failed to parse \"--volume-pvc\" flag: bootorder 1 was specified multiple times",
    );
    refused(
        "--volume-pvc=src:a --volume-pvc=src:a",
        "failed to parse \"--volume-pvc\" flag: there is already a volume with name \"a\"",
    );
    refused(
        "--volume-import=type:pvc,src:c",
        "failed to parse \"--volume-import\" flag: namespace of pvc \"c\" must be specified",
    );
    refused("--volume-import=type:blank", "failed to parse \"--volume-import\" flag: size must be specified");
    refused(
        "--volume-import=type:floppy,size:1",
        "failed to parse \"--volume-import\" flag: invalid volume import type \"floppy\"",
    );
    refused(
        "--volume-import=type:registry,size:1Gi",
        "failed to parse \"--volume-import\" flag: exactly one of url or imagestream must be defined",
    );
    refused(
        "--access-cred=src:k",
        "failed to parse \"--access-cred\" flag: user must be specified with access credential ssh method ga (\"--user\" flag or param \"user\")",
    );
    refused(
        "--access-cred=src:k,type:pin",
        "failed to parse \"--access-cred\" flag: invalid access credential type \"pin\", supported values are: ssh, password",
    );
    refused(
        "--cloud-init=floppy",
        "failed to parse \"--cloud-init\" flag: invalid cloud-init data source type \"floppy\", supported values are: nocloud, configdrive, none",
    );
    refused(
        "--infer-instancetype",
        "failed to parse \"--infer-instancetype\" flag: at least one volume is needed to infer an instance type or preference",
    );
    refused(
        "--volume-containerdisk=src:a --infer-preference",
        "failed to parse \"--infer-preference\" flag: inference of instancetype or preference works only with datasources, datavolumes or pvcs",
    );
}

#[test]
fn options_that_exclude_each_other() {
    let conflict = |options: &str| {
        assert_eq!(parse(options).unwrap_err().kind(), clap::error::ErrorKind::ArgumentConflict, "{options}");
    };
    conflict("--memory=1Gi --instancetype=a");
    conflict("--infer-preference --infer-preference-from=a");
    conflict("--cloud-init-user-data=YQ== --user=me");
}
