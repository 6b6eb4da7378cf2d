//! What options of `ssh` say of the way to the guest, which is looked at before the conversation begins. Pure.

/// Where SSH servers are.
pub(super) const PORT: u16 = 22;
/// Letters whose option takes a word.
const TAKES: &str = "BbcDEeFIiJLlmOopPQRSWw";

/// The way to the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Route {
    pub(super) port: u16,
    /// Whether the guest is dialled from here, and not by a jump host or a program.
    pub(super) is_direct: bool,
}

impl Default for Route {
    fn default() -> Self {
        Self { port: PORT, is_direct: true }
    }
}

impl Route {
    /// As `ssh` reads its words: of several ports the first counts.
    ///
    /// # Errors
    /// When a word is no option, which would be the host and its command, or a port is none; in a sentence.
    pub(super) fn of(words: &[String]) -> Result<Self, String> {
        let (mut port, mut route) = (None, Self::default());
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let letters = word.strip_prefix('-').filter(|letters| !letters.is_empty() && !letters.starts_with('-'));
            let letters =
                letters.ok_or_else(|| format!("{word:?} is no option of ssh: the guest is named by vmName"))?;
            for (at, letter) in letters.char_indices() {
                if !TAKES.contains(letter) {
                    continue;
                }
                let rest = &letters[at + letter.len_utf8()..];
                let value = if rest.is_empty() { words.next().map(String::as_str) } else { Some(rest) };
                let value = value.ok_or_else(|| format!("-{letter} is given nothing"))?;
                let (name, value) = match letter {
                    'p' => ("port".to_owned(), value),
                    'J' => ("proxyjump".to_owned(), value),
                    'o' => setting(value),
                    _ => break,
                };
                match name.as_str() {
                    "port" => {
                        let found = value.parse().ok().filter(|port| *port > 0);
                        let found = found.ok_or_else(|| format!("{value:?} is no port"))?;
                        port.get_or_insert(found);
                    }
                    "proxyjump" | "proxycommand" if !value.eq_ignore_ascii_case("none") => route.is_direct = false,
                    _ => {}
                }
                break;
            }
        }
        route.port = port.unwrap_or(PORT);
        Ok(route)
    }
}

/// `Name=value` or `Name value`; letters of names may be of either case.
fn setting(text: &str) -> (String, &str) {
    let (name, value) = text.trim().split_once(|c: char| c == '=' || c.is_whitespace()).unwrap_or((text, ""));
    (name.to_ascii_lowercase(), value.trim_start_matches(|c: char| c == '=' || c.is_whitespace()).trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(words: &str, expect: Result<(u16, bool), &str>) {
        let words: Vec<String> = shlex::split(words).unwrap();
        match (Route::of(&words), expect) {
            (Ok(route), Ok(expect)) => assert_eq!((route.port, route.is_direct), expect, "{words:?}"),
            (Err(error), Err(expect)) => assert!(error.contains(expect), "{error}"),
            (found, expect) => panic!("{words:?}: {found:?}, not {expect:?}"),
        }
    }

    #[test]
    fn a_port_is_found_wherever_ssh_finds_it() {
        check("", Ok((22, true)));
        check("-p 2222", Ok((2222, true)));
        check("-Cp2222 -p 23", Ok((2222, true)));
        check("-o Port=2222 -v", Ok((2222, true)));
        check("-oport=2222", Ok((2222, true)));
        check("-o 'Port 2222'", Ok((2222, true)));
        check("-o 'PORT = 2222'", Ok((2222, true)));
        check("-c -p", Ok((22, true)));
        check("-p 0", Err("no port"));
        check("-p ssh", Err("no port"));
        check("-p", Err("given nothing"));
    }

    #[test]
    fn a_guest_behind_another_is_not_dialled_from_here() {
        check("-J bastion -p 2222", Ok((2222, false)));
        check("-o ProxyCommand='nc %h %p'", Ok((22, false)));
        check("-o ProxyJump=none", Ok((22, true)));
    }

    /// A host among the options would have the key tried elsewhere.
    #[test]
    fn a_word_that_is_no_option_is_refused() {
        check("-C elsewhere", Err("no option"));
        check("-- elsewhere", Err("no option"));
        check("-", Err("no option"));
    }
}
