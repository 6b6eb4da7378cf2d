//! What a guest is to be given, of what its VMI asks for and of the Secrets as they are now; and by which commands of its
//! agent. Pure.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use api::kubevirt::credentials::is_user;
use api::kubevirt::v1::VirtualMachineInstance;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use meta::text::brief;
use serde_json::{Value, json};

/// The agent's command that writes a user's keys.
pub(super) const ADD_KEYS: &str = "guest-ssh-add-authorized-keys";
/// The agent's command that sets a password.
pub(super) const SET_PASSWORD: &str = "guest-set-user-password";
/// The commands by which the keys of a user are written where the agent is older than that.
const OF_FILES: [&str; 6] =
    ["guest-exec", "guest-exec-status", "guest-file-open", "guest-file-read", "guest-file-write", "guest-file-close"];

/// Bytes of a guest's explanation.
const LONGEST_WHY: usize = 256;
/// What is told in its place.
const REPEATS: &str = "the guest agent's answer repeats what is secret";
/// Characters of a word of a key that many keys have, and that says nothing of one.
const LONGEST_TYPE: usize = 20;

/// The values of a Secret by their keys.
pub(super) type Values = BTreeMap<String, Vec<u8>>;

/// What a VMI asks its agent to be given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    /// Users, each with a Secret that has SSH keys for it.
    keys: Vec<(String, String)>,
    /// Secrets whose keys are users and whose values are their passwords.
    passwords: Vec<String>,
}

impl Asked {
    /// None where nothing is given by the agent.
    pub(crate) fn of(vmi: &VirtualMachineInstance) -> Option<Self> {
        let mut asked = Self { keys: Vec::new(), passwords: Vec::new() };
        for credential in &vmi.spec.access_credentials {
            if let Some(key) = &credential.ssh_public_key
                && let Some(agent) = &key.propagation_method.qemu_guest_agent
                && let Some(secret) = &key.source.secret
            {
                asked.keys.extend(agent.users.iter().map(|user| (user.clone(), secret.secret_name.clone())));
            }
            if let Some(password) = &credential.user_password
                && password.propagation_method.qemu_guest_agent.is_some()
                && let Some(secret) = &password.source.secret
            {
                asked.passwords.push(secret.secret_name.clone());
            }
        }
        (!asked.keys.is_empty() || !asked.passwords.is_empty()).then_some(asked)
    }

    /// The Secrets that have it.
    pub(super) fn secrets(&self) -> BTreeSet<&str> {
        self.keys.iter().map(|(_, secret)| secret).chain(&self.passwords).map(String::as_str).collect()
    }
}

/// What nobody is shown.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Hidden(Vec<u8>);

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

/// What the guest is to have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    /// All keys of each user.
    keys: BTreeMap<String, Vec<String>>,
    passwords: BTreeMap<String, Hidden>,
    /// What cannot be handed over at all.
    pub(super) missing: Vec<String>,
}

impl Wanted {
    /// Why something was not done, in words of the guest, which knows all of this: what is in `words`, is told only if nothing of it
    /// is. Not the part, but all of them are kept back else: what is left out of a sentence can be guessed from the rest.
    fn legible<'a>(&self, words: &'a str) -> Cow<'a, str> {
        if self.is_in(words) { REPEATS.into() } else { brief(words, LONGEST_WHY) }
    }

    fn is_in(&self, words: &str) -> bool {
        let has = |text: &str| !text.is_empty() && words.contains(text);
        // Of a key, what makes it one is its second word, or a longer one behind options.
        let parts = |key: &String| key.split_whitespace().any(|word| word.len() > LONGEST_TYPE && has(word));
        let keys =
            |keys: &Vec<String>| keys.iter().any(|key| has(key) || parts(key)) || has(&STANDARD.encode(file(keys)));
        let password =
            |password: &Hidden| has(&String::from_utf8_lossy(&password.0)) || has(&STANDARD.encode(&password.0));
        self.keys.values().any(keys) || self.passwords.values().any(password)
    }
}

/// Puts it together. A user one of whose Secrets cannot be read keeps the keys that it has.
pub(super) fn wanted(asked: &Asked, secrets: &BTreeMap<String, Result<Values, String>>) -> Wanted {
    let mut wanted = Wanted::default();
    let mut unread = BTreeSet::new();
    for (name, read) in secrets {
        if let Err(why) = read {
            wanted.missing.push(format!("Secret {name} cannot be read: {why}"));
        }
    }
    let values = |secret: &str| secrets.get(secret).and_then(|read| read.as_ref().ok());
    for (user, secret) in &asked.keys {
        if !is_user(user) {
            wanted.missing.push(format!("{user:?} is not the name of a user"));
            continue;
        }
        let Some(values) = values(secret) else {
            unread.insert(user.clone());
            continue;
        };
        let held = wanted.keys.entry(user.clone()).or_default();
        for key in values.values().flat_map(|value| keys(value)) {
            if !held.contains(&key) {
                held.push(key);
            }
        }
    }
    wanted.keys.retain(|user, _| !unread.contains(user));
    for secret in &asked.passwords {
        for (user, value) in values(secret).into_iter().flatten() {
            let password = value.trim_ascii();
            if !is_user(user) {
                wanted.missing.push(format!("Secret {secret} has a key {user:?}, which is not the name of a user"));
            } else if !password.is_empty() {
                wanted.passwords.insert(user.clone(), Hidden(password.to_vec()));
            }
        }
    }
    wanted
}

/// The lines that are keys.
fn keys(value: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(value);
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(str::to_owned).collect()
}

/// The file that has these keys and no others.
pub(super) fn file(keys: &[String]) -> String {
    keys.iter().map(|key| format!("{key}\n")).collect()
}

/// One thing to do in the guest.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step<'a> {
    /// Have the agent write the keys of a user in place of those that it has.
    Keys { user: &'a str, keys: &'a [String] },
    /// Write the file with the keys of a user, where the agent does not know what keys are.
    File { user: &'a str, keys: &'a [String] },
    /// Set the password of a user.
    Password { user: &'a str, password: &'a Hidden },
    /// The agent offers no way.
    Impossible { user: &'a str, keys: bool },
}

/// What to do, with an agent that `offers` these commands.
pub(super) fn steps(wanted: &Wanted, offers: impl Fn(&str) -> bool) -> Vec<Step<'_>> {
    let by_files = OF_FILES.iter().all(|command| offers(command));
    let keys = wanted.keys.iter().map(|(user, keys)| {
        if offers(ADD_KEYS) {
            Step::Keys { user, keys }
        } else if by_files {
            Step::File { user, keys }
        } else {
            Step::Impossible { user, keys: true }
        }
    });
    let passwords = wanted.passwords.iter().map(|(user, password)| {
        if offers(SET_PASSWORD) { Step::Password { user, password } } else { Step::Impossible { user, keys: false } }
    });
    keys.chain(passwords).collect()
}

impl Step<'_> {
    /// The one command that does it, where one does.
    pub(super) fn command(&self) -> Option<Value> {
        match self {
            Self::Keys { user, keys } => Some(json!({
                "execute": ADD_KEYS, "arguments": { "username": user, "keys": keys, "reset": true },
            })),
            Self::Password { user, password } => {
                let password = STANDARD.encode(&password.0);
                let arguments = json!({ "username": user, "password": password, "crypted": false });
                Some(json!({ "execute": SET_PASSWORD, "arguments": arguments }))
            }
            Self::File { .. } | Self::Impossible { .. } => None,
        }
    }

    /// The sentence for a failure, which the guest explains so.
    pub(super) fn failed(&self, why: &str, wanted: &Wanted) -> String {
        let why = wanted.legible(why);
        match self {
            Self::Keys { user, .. } | Self::File { user, .. } | Self::Impossible { user, keys: true } => {
                format!("Error encountered writing ssh pub key access credentials for user [{user}]: {why}")
            }
            Self::Password { user, .. } | Self::Impossible { user, keys: false } => {
                format!("Error encountered setting password for user [{user}]: {why}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(credentials: Value) -> Option<Asked> {
        let vmi = json!({ "spec": { "domain": { "devices": {} }, "accessCredentials": credentials } });
        Asked::of(&serde_json::from_value(vmi).unwrap())
    }

    fn keys(secret: &str, users: &[&str]) -> Value {
        let way = json!({ "qemuGuestAgent": { "users": users } });
        json!({ "sshPublicKey": { "source": { "secret": { "secretName": secret } }, "propagationMethod": way } })
    }

    fn passwords(secret: &str) -> Value {
        let way = json!({ "qemuGuestAgent": {} });
        json!({ "userPassword": { "source": { "secret": { "secretName": secret } }, "propagationMethod": way } })
    }

    fn secret(values: &[(&str, &str)]) -> Result<Values, String> {
        Ok(values.iter().map(|(key, value)| ((*key).to_owned(), value.as_bytes().to_vec())).collect())
    }

    /// The commands for these credentials, and what is said without any.
    #[track_caller]
    fn check(
        credentials: Value,
        secrets: &[(&str, Result<Values, String>)],
        offered: &[&str],
        expect: Value,
        missing: &[&str],
    ) {
        let secrets = secrets.iter().map(|(name, read)| ((*name).to_owned(), read.clone())).collect();
        let wanted = wanted(&asked(credentials).unwrap(), &secrets);
        let steps = steps(&wanted, |command| offered.contains(&command));
        let told = steps
            .iter()
            .map(|step| step.command().unwrap_or_else(|| json!(step.failed("", &wanted).replace("\"", "'"))));
        assert_eq!(Value::Array(told.collect()), expect);
        assert_eq!(wanted.missing, missing);
    }

    fn add(user: &str, keys: &[&str]) -> Value {
        json!({ "execute": ADD_KEYS, "arguments": { "username": user, "keys": keys, "reset": true } })
    }

    fn set(user: &str, password: &str) -> Value {
        let arguments = json!({ "username": user, "password": STANDARD.encode(password), "crypted": false });
        json!({ "execute": SET_PASSWORD, "arguments": arguments })
    }

    #[test]
    fn each_user_is_given_the_keys_of_all_its_secrets_together() {
        let two = json!([keys("a", &["eve", "adam"]), keys("b", &["eve"])]);
        let a = secret(&[("1", "ssh-rsa AAA one\n\n# mine\n  ssh-rsa BBB two  \n"), ("2", "ssh-rsa CCC")]);
        let b = secret(&[("x", "ssh-rsa DDD\nssh-rsa AAA one")]);
        let of_a = ["ssh-rsa AAA one", "ssh-rsa BBB two", "ssh-rsa CCC"];
        let of_both = ["ssh-rsa AAA one", "ssh-rsa BBB two", "ssh-rsa CCC", "ssh-rsa DDD"];
        let expect = json!([add("adam", &of_a), add("eve", &of_both)]);
        check(two.clone(), &[("a", a.clone()), ("b", b)], &[ADD_KEYS], expect, &[]);
        // Without any key it has none any more; that is not what a Secret says that cannot be read.
        check(json!([keys("a", &["eve"])]), &[("a", secret(&[]))], &[ADD_KEYS], json!([add("eve", &[])]), &[]);
        let lost = Err("no such file".to_owned());
        let why = "Secret b cannot be read: no such file";
        check(two, &[("a", a), ("b", lost)], &[ADD_KEYS], json!([add("adam", &of_a)]), &[why]);
    }

    #[test]
    fn passwords_are_set_for_the_users_that_a_secret_names() {
        let values = secret(&[("eve", " pass word\n"), ("adam", ""), ("-x", "p")]);
        let missing = ["Secret p has a key \"-x\", which is not the name of a user"];
        check(json!([passwords("p")]), &[("p", values)], &[SET_PASSWORD], json!([set("eve", "pass word")]), &missing);
    }

    #[test]
    fn an_agent_is_told_nothing_that_it_does_not_offer() {
        let both = json!([keys("k", &["eve"]), passwords("p")]);
        let secrets = [("k", secret(&[("1", "ssh-rsa AAA")])), ("p", secret(&[("eve", "x")]))];
        let no_keys = "Error encountered writing ssh pub key access credentials for user [eve]: ";
        let no_password = "Error encountered setting password for user [eve]: ";
        check(both.clone(), &secrets, &[], json!([no_keys, no_password]), &[]);
        check(both.clone(), &secrets, &[SET_PASSWORD], json!([no_keys, set("eve", "x")]), &[]);
        check(both.clone(), &secrets, &[ADD_KEYS], json!([add("eve", &["ssh-rsa AAA"]), no_password]), &[]);
        let wanted = wanted(&asked(both).unwrap(), &secrets.into_iter().map(|(n, s)| (n.to_owned(), s)).collect());
        let old = steps(&wanted, |command| OF_FILES.contains(&command));
        assert!(matches!(old.as_slice(), [Step::File { user: "eve", .. }, Step::Impossible { .. }]), "{old:?}");
    }

    #[test]
    fn a_user_that_no_guest_has_is_named_and_not_tried() {
        let bad = json!([keys("k", &["-rf", "a:b"])]);
        let missing = ["\"-rf\" is not the name of a user", "\"a:b\" is not the name of a user"];
        check(bad, &[("k", secret(&[("1", "ssh-rsa AAA")]))], &[ADD_KEYS], json!([]), &missing);
    }

    #[test]
    fn nothing_is_asked_of_the_agent_for_what_a_seed_has() {
        let seed = json!({ "sshPublicKey": {
            "source": { "secret": { "secretName": "s" } }, "propagationMethod": { "noCloud": {} },
        } });
        assert_eq!(asked(json!([seed])), None);
        assert_eq!(asked(json!([])), None);
        let asked = asked(json!([seed, keys("k", &["eve"]), passwords("p"), keys("k", &["adam"])])).unwrap();
        assert_eq!(asked.secrets().into_iter().collect::<Vec<_>>(), ["k", "p"]);
    }

    #[test]
    fn no_sentence_has_what_is_secret_in_it() {
        let blob = "AAAAC3NzaC1lZDI1NTE5AAAAIMbNq";
        let wanted = Wanted {
            keys: BTreeMap::from([("eve".to_owned(), vec![format!("ssh-ed25519 {blob} somebody")])]),
            passwords: BTreeMap::from([("adam".to_owned(), Hidden(b"secret".to_vec()))]),
            missing: Vec::new(),
        };
        let steps = steps(&wanted, |_| true);
        let [keys, password] = steps.as_slice() else { panic!("{steps:?}") };
        let check = |step: &Step<'_>, why: &str, told: bool| {
            let said = step.failed(why, &wanted);
            assert_eq!(said.ends_with(why), told, "{said}");
            assert!(told || said.ends_with(REPEATS), "{said}");
        };
        check(keys, "failed to lookup user 'eve'", true);
        check(keys, &format!("invalid OpenSSH public key: 'ssh-ed25519 {blob} somebody'"), false);
        check(keys, &format!("no good: {blob}"), false);
        check(password, "child has failed to set user password", true);
        check(password, "'secret' is too simple", false);
        check(password, &format!("cannot read {}", STANDARD.encode("secret")), false);
        // What it learned before is not told either.
        check(keys, "of adam I know secret", false);
        assert_eq!(format!("{password:?}"), "Password { user: \"adam\", password: (hidden) }");
    }
}
