//! A guest whose agent is played by the test, under paused time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use api::kubevirt::v1::VirtualMachineInstance;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::secrets::tests::show;
use super::*;
use crate::exec::Error;

const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIMbNq one";
const OTHER: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIXyZw two";

/// How the agent behaves.
#[derive(Clone, Copy, Default, PartialEq)]
enum Mood {
    #[default]
    Willing,
    /// It knows nothing of keys.
    Old,
    Silent,
    Paused,
    Frozen,
    /// It repeats in its refusals what it was told.
    Chatty,
}

#[derive(Default)]
struct World {
    mood: Mood,
    users: Vec<&'static str>,
    keys: BTreeMap<String, Vec<String>>,
    passwords: BTreeMap<String, String>,
    files: BTreeMap<String, String>,
    modes: BTreeMap<String, String>,
    /// Files that are open: their number, path and how far they are read.
    open: BTreeMap<i64, (String, usize)>,
    ran: Vec<Vec<String>>,
    output: String,
    exit_code: i64,
}

/// See the module.
#[derive(Clone, Default)]
struct Guest(Arc<Mutex<World>>);

fn refused(why: &str) -> Error {
    let message = format!("internal error: unable to execute QEMU agent command 'x': {why}");
    Error::Agent(libvirt::Error::Call { call: "asking the guest agent", code: 1, message })
}

fn silent() -> Error {
    let message = "Guest agent is not responding".to_owned();
    Error::Agent(libvirt::Error::Call { call: "asking the guest agent", code: 86, message })
}

impl Agent for Guest {
    async fn ask_within(&self, _: i32, command: Value) -> Result<Value, Error> {
        self.0.lock().unwrap().answer(&command)
    }
}

impl World {
    fn answer(&mut self, command: &Value) -> Result<Value, Error> {
        let arguments = &command["arguments"];
        let text = |key: &str| arguments[key].as_str().unwrap().to_owned();
        if self.mood == Mood::Silent {
            return Err(silent());
        }
        if self.mood == Mood::Paused {
            let message = "Requested operation is not valid: domain is not running".to_owned();
            return Err(Error::Agent(libvirt::Error::Call { call: "asking the guest agent", code: 55, message }));
        }
        let name = command["execute"].as_str().unwrap();
        let known = |user: &str| -> Result<(), Error> {
            let lost = || refused(&format!("failed to lookup user '{user}'"));
            self.users.contains(&user).then_some(()).ok_or_else(lost)
        };
        match name {
            "guest-info" => {
                let every = [
                    "guest-ssh-add-authorized-keys",
                    "guest-set-user-password",
                    "guest-exec",
                    "guest-exec-status",
                    "guest-file-open",
                    "guest-file-read",
                    "guest-file-write",
                    "guest-file-close",
                ];
                let offered = |name: &&str| match self.mood {
                    Mood::Old => !name.starts_with("guest-ssh"),
                    _ => !name.starts_with("guest-exec"),
                };
                let list = every.iter().map(|name| json!({ "name": name, "enabled": offered(name) }));
                Ok(json!({ "version": "x", "supported_commands": list.collect::<Vec<_>>() }))
            }
            "guest-fsfreeze-status" => Ok(json!(if self.mood == Mood::Frozen { "frozen" } else { "thawed" })),
            "guest-ssh-add-authorized-keys" => {
                known(&text("username"))?;
                assert_eq!(arguments["reset"], true);
                let keys: Vec<String> = serde_json::from_value(arguments["keys"].clone()).unwrap();
                if self.mood == Mood::Chatty {
                    return Err(refused(&format!("invalid OpenSSH public key: {}", keys[0])));
                }
                self.keys.insert(text("username"), keys);
                Ok(json!({}))
            }
            "guest-set-user-password" => {
                assert_eq!(arguments["crypted"], false);
                let password = String::from_utf8(STANDARD.decode(text("password")).unwrap()).unwrap();
                if self.mood == Mood::Chatty {
                    return Err(refused(&format!("{password} is too simple")));
                }
                known(&text("username"))?;
                self.passwords.insert(text("username"), password);
                Ok(json!({}))
            }
            "guest-exec" => Ok(self.run(&text("path"), serde_json::from_value(arguments["arg"].clone()).unwrap())),
            "guest-exec-status" => {
                let output = STANDARD.encode(&self.output);
                Ok(json!({ "exited": true, "exitcode": self.exit_code, "out-data": output }))
            }
            "guest-file-open" => {
                let handle = i64::try_from(self.ran.len() + self.open.len()).unwrap();
                if text("mode") == "w" {
                    self.files.insert(text("path"), String::new());
                } else if !self.files.contains_key(&text("path")) {
                    return Err(refused("failed to open file: No such file or directory"));
                }
                self.open.insert(handle, (text("path"), 0));
                Ok(json!(handle))
            }
            other => Ok(self.file(other, arguments)),
        }
    }

    fn run(&mut self, program: &str, args: Vec<String>) -> Value {
        (self.output, self.exit_code) = (String::new(), 0);
        match program {
            "getent" if self.users.contains(&args[1].as_str()) => {
                self.output = format!("{0}:x:1000:1001::/home/{0}:/bin/sh\n", args[1]);
            }
            "getent" => self.exit_code = 2,
            "chmod" => {
                self.modes.insert(args[2].clone(), args[0].clone());
            }
            _ => {}
        }
        self.ran.push(std::iter::once(program.to_owned()).chain(args).collect());
        json!({ "pid": 7 })
    }

    fn file(&mut self, command: &str, arguments: &Value) -> Value {
        let handle = arguments["handle"].as_i64().unwrap();
        let (path, at) = self.open.get_mut(&handle).unwrap();
        let content = self.files.get_mut(path).unwrap();
        match command {
            "guest-file-read" => {
                let rest = &content.as_bytes()[*at..];
                *at = content.len();
                json!({ "count": rest.len(), "buf-b64": STANDARD.encode(rest), "eof": true })
            }
            "guest-file-write" => {
                let bytes = STANDARD.decode(arguments["buf-b64"].as_str().unwrap()).unwrap();
                content.push_str(std::str::from_utf8(&bytes).unwrap());
                json!({ "count": bytes.len(), "eof": false })
            }
            "guest-file-close" => {
                self.open.remove(&handle);
                json!({})
            }
            other => panic!("asked {other}, which the agent does not offer"),
        }
    }
}

/// What the VMI asks for: keys for eve and adam, and passwords.
fn asked() -> Asked {
    let source = |name: &str| json!({ "secret": { "secretName": name } });
    let agent = |rest: Value| json!({ "qemuGuestAgent": rest });
    let vmi: VirtualMachineInstance = serde_json::from_value(json!({ "spec": {
        "domain": { "devices": {} },
        "accessCredentials": [
            { "sshPublicKey": { "source": source("keys"), "propagationMethod": agent(json!({ "users": ["eve", "adam"] })) } },
            { "userPassword": { "source": source("words"), "propagationMethod": agent(json!({})) } },
        ],
    } }))
    .unwrap();
    Asked::of(&vmi).unwrap()
}

/// A guest that is kept its credentials, with the Secrets `keys` and `words`.
struct Scene {
    home: TempDir,
    guest: Guest,
    there: watch::Sender<bool>,
    told: mpsc::Receiver<CredentialsOutcome>,
    _task: kit::Task<()>,
}

impl Scene {
    fn new(users: &[&'static str]) -> Self {
        let home = tempfile::tempdir().unwrap();
        show(home.path(), "keys", "..1", &[("one", KEY)]);
        show(home.path(), "words", "..1", &[("eve", "first word")]);
        let guest = Guest::default();
        guest.0.lock().unwrap().users = users.to_vec();
        let (there, agent) = watch::channel(false);
        let (tell, told) = mpsc::channel(4);
        let keeping = keep(guest.clone(), asked(), home.path().to_owned(), agent, tell);
        Self { guest, there, told, _task: kit::spawn("credentials", keeping), home }
    }

    fn world<T>(&self, read: impl FnOnce(&mut World) -> T) -> T {
        read(&mut self.guest.0.lock().unwrap())
    }

    async fn told(&mut self) -> CredentialsOutcome {
        timeout(Duration::from_secs(600), self.told.recv()).await.expect("something is told").unwrap()
    }

    async fn done(&mut self) {
        assert_eq!(self.told().await, CredentialsOutcome { succeeded: true, message: String::new() });
    }

    async fn failed(&mut self) -> String {
        let told = self.told().await;
        assert!(!told.succeeded);
        told.message
    }
}

#[tokio::test(start_paused = true)]
async fn a_guest_has_what_the_secrets_have_and_follows_them() {
    let mut scene = Scene::new(&["eve", "adam"]);
    scene.there.send_replace(true);
    scene.done().await;
    scene.world(|guest| {
        assert_eq!(guest.keys["eve"], [KEY]);
        assert_eq!(guest.keys["adam"], [KEY]);
        assert_eq!(guest.passwords["eve"], "first word");
    });
    show(scene.home.path(), "keys", "..2", &[("one", OTHER)]);
    let began = Instant::now();
    scene.done().await;
    assert!(began.elapsed() <= LOOK * 2, "a change is seen soon: {:?}", began.elapsed());
    assert_eq!(scene.world(|guest| guest.keys["eve"].clone()), [OTHER]);
    show(scene.home.path(), "words", "..2", &[("eve", "second word"), ("adam", "own word")]);
    scene.done().await;
    assert_eq!(scene.world(|guest| guest.passwords["adam"].clone()), "own word");
}

#[tokio::test(start_paused = true)]
async fn what_a_guest_lost_is_given_again() {
    let mut scene = Scene::new(&["eve", "adam"]);
    scene.there.send_replace(true);
    scene.done().await;
    // It was started anew, from a disk that forgets.
    scene.world(|guest| guest.keys.clear());
    scene.there.send_replace(false);
    scene.there.send_replace(true);
    let began = Instant::now();
    scene.done().await;
    assert!(began.elapsed() <= LOOK, "as soon as its agent is there: {:?}", began.elapsed());
    assert_eq!(scene.world(|guest| guest.keys.len()), 2);
    // Somebody took them away in the guest.
    scene.world(|guest| guest.keys.clear());
    let began = Instant::now();
    scene.done().await;
    assert!(began.elapsed().abs_diff(AGAIN) <= LOOK * 2, "{:?}", began.elapsed());
    assert_eq!(scene.world(|guest| guest.keys.len()), 2);
}

#[tokio::test(start_paused = true)]
async fn a_user_that_the_guest_has_not_keeps_nothing_from_the_others() {
    let mut scene = Scene::new(&["adam"]);
    scene.there.send_replace(true);
    let why = scene.failed().await;
    let keys = "Error encountered writing ssh pub key access credentials for user [eve]: failed to lookup user 'eve'";
    let password = "Error encountered setting password for user [eve]: failed to lookup user 'eve'";
    assert_eq!(why, format!("{keys}; {password}"));
    assert_eq!(scene.world(|guest| guest.keys["adam"].clone()), [KEY]);
    // It is made while the guest boots.
    scene.world(|guest| guest.users.push("eve"));
    let began = Instant::now();
    scene.done().await;
    assert!(began.elapsed() <= RETRY + LOOK, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_guest_without_its_users_is_asked_less_and_less_often() {
    let mut scene = Scene::new(&[]);
    scene.there.send_replace(true);
    for _ in 0..8 {
        scene.failed().await;
    }
    let began = Instant::now();
    scene.failed().await;
    assert!(began.elapsed().abs_diff(RETRY_AT_MOST) <= LOOK, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn an_old_agent_writes_the_file_itself() {
    let mut scene = Scene::new(&["eve", "adam"]);
    scene.world(|guest| {
        guest.mood = Mood::Old;
        guest.files.insert("/home/adam/.ssh/authorized_keys".into(), format!("{KEY}\n"));
        guest.files.insert("/home/eve/.ssh/authorized_keys".into(), "x".repeat(100_000));
    });
    scene.there.send_replace(true);
    scene.done().await;
    scene.world(|guest| {
        assert_eq!(guest.files["/home/eve/.ssh/authorized_keys"], format!("{KEY}\n"));
        assert_eq!(guest.modes["/home/eve/.ssh/authorized_keys"], "600");
        assert_eq!(guest.modes["/home/eve/.ssh"], "700");
        assert!(guest.ran.contains(&["chown", "--", "1000:1001", "/home/eve/.ssh"].map(str::to_owned).to_vec()));
        let touched = |words: &Vec<String>| words[0] != "getent" && words.iter().any(|word| word.contains("adam"));
        assert!(!guest.ran.iter().any(touched), "a file that is right already is left alone: {:?}", guest.ran);
        assert!(guest.open.is_empty(), "every file was closed");
        guest.users.clear();
    });
    show(scene.home.path(), "keys", "..2", &[("one", OTHER)]);
    let why = scene.failed().await;
    assert!(why.contains("for user [adam]: the guest does not know this user"), "{why}");
}

#[tokio::test(start_paused = true)]
async fn a_guest_that_says_nothing_is_waited_for_and_then_told_of() {
    let mut scene = Scene::new(&["eve", "adam"]);
    let began = Instant::now();
    assert_eq!(scene.failed().await, OFFLINE);
    assert!(began.elapsed() >= PATIENCE);
    // Connected, and nobody answers: for a while that is a guest that boots.
    scene.world(|guest| guest.mood = Mood::Silent);
    scene.there.send_replace(true);
    let began = Instant::now();
    assert_eq!(scene.failed().await, OFFLINE);
    assert!(began.elapsed() + LOOK >= PATIENCE, "{:?}", began.elapsed());
    scene.world(|guest| guest.mood = Mood::Willing);
    scene.done().await;
}

#[tokio::test(start_paused = true)]
async fn a_guest_that_stands_still_is_given_nothing_and_nothing_is_told_of_it() {
    for mood in [Mood::Frozen, Mood::Paused] {
        let mut scene = Scene::new(&["eve", "adam"]);
        scene.world(|guest| guest.mood = mood);
        scene.there.send_replace(true);
        assert!(timeout(PATIENCE * 3, scene.told.recv()).await.is_err());
        assert!(scene.world(|guest| guest.keys.is_empty()));
        scene.world(|guest| guest.mood = Mood::Willing);
        scene.done().await;
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_that_is_secret_is_told_whatever_the_guest_says() {
    let mut scene = Scene::new(&["eve", "adam"]);
    scene.world(|guest| guest.mood = Mood::Chatty);
    scene.there.send_replace(true);
    let why = scene.failed().await;
    assert!(why.contains("[eve]") && why.contains("[adam]"), "{why}");
    assert!(!why.contains("AAAA") && !why.contains("first word"), "{why}");
}

#[tokio::test(start_paused = true)]
async fn a_secret_that_cannot_be_read_takes_no_key_away() {
    let mut scene = Scene::new(&["eve", "adam"]);
    scene.there.send_replace(true);
    scene.done().await;
    let shown = |name: &str| scene.home.path().join(name);
    std::fs::rename(shown("keys-access-cred"), shown("elsewhere")).unwrap();
    let why = scene.failed().await;
    assert!(why.starts_with("Secret keys cannot be read: No such file"), "{why}");
    assert_eq!(scene.world(|guest| guest.keys["eve"].clone()), [KEY]);
}

mod properties {
    use proptest::prelude::*;

    use super::*;

    /// An agent that offers everything and answers anything: a document, a refusal, or nothing.
    struct Any(Mutex<Vec<Option<Value>>>);

    impl Agent for Any {
        async fn ask_within(&self, _: i32, command: Value) -> Result<Value, Error> {
            if command["execute"] == "guest-info" {
                let list = command["execute"].as_str().map(|_| {
                    ["guest-set-user-password", "guest-exec", "guest-exec-status", "guest-file-open"]
                        .into_iter()
                        .chain(["guest-file-read", "guest-file-write", "guest-file-close"])
                        .map(|name| json!({ "name": name, "enabled": true }))
                        .collect::<Vec<_>>()
                });
                return Ok(json!({ "supported_commands": list }));
            }
            // What it says when it has said everything is what it said first.
            let mut answers = self.0.lock().unwrap();
            answers.rotate_left(1);
            match answers.last().cloned().flatten() {
                Some(Value::String(why)) => Err(refused(&format!("{why} first word {command}"))),
                Some(answer) => Ok(answer),
                None => Err(silent()),
            }
        }
    }

    fn answer() -> impl Strategy<Value = Option<Value>> {
        let passwd = prop_oneof!["(?s).{0,80}", Just("eve:x:1:1::/home/eve:".to_owned())];
        let code = prop_oneof![Just(0_i64), any::<i64>()];
        let ended = (any::<bool>(), code, passwd).prop_map(|(exited, code, text)| {
            json!({ "exited": exited, "exitcode": code, "out-data": STANDARD.encode(&text), "buf-b64": STANDARD.encode(&text), "pid": 1 })
        });
        prop_oneof![
            1 => Just(None),
            2 => ".{0,40}".prop_map(|text| Some(Value::from(text))),
            3 => any::<i64>().prop_map(|number| Some(Value::from(number))),
            3 => any::<u8>().prop_map(|pid| Some(json!({ "pid": pid }))),
            9 => ended.prop_map(Some),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn whatever_an_agent_answers_a_pass_ends_and_betrays_nothing(answers in prop::collection::vec(answer(), 1..24)) {
            let home = tempfile::tempdir().unwrap();
            show(home.path(), "keys", "..1", &[("one", KEY)]);
            show(home.path(), "words", "..1", &[("eve", "first word")]);
            let asked = asked();
            let wanted = wanted(&asked, &secrets::read(home.path(), &asked.secrets()));
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
            let outcome = runtime.block_on(async {
                timeout(Duration::from_secs(3600), hand_over(&Any(Mutex::new(answers)), &wanted)).await
            });
            let outcome = outcome.expect("the pass ends");
            if let Outcome::Failed(why) = outcome {
                prop_assert!(why.len() <= meta::text::STATUS);
                prop_assert!(!why.contains("first word") && !why.contains("AAAAC3"), "{}", why);
            }
        }
    }
}
